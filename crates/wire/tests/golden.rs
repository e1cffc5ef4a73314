//! Every kind of frame against the bytes that an independent script made from the byte tables.

use muser_wire::{
    Accept, Cancel, CancelReason, Codecs, Commit, Component, Frame, FrameError, FrameReader, HandoffId, HandoffPlan,
    Hello, HelloAck, Identity, LaneBinding, Limits, Manifest, Message, Node, PagePacker, Pages, Progress, Refuse,
    RefuseCode, Request, SenderTimes, write_frame,
};

const LIMITS: Limits = Limits { request_bytes_max: 1 << 12, pages_bytes_max: 1 << 12 };
const HANDOFF: HandoffId = HandoffId(run(0xA0));

const fn run<const N: usize>(start: u8) -> [u8; N] {
    let (mut bytes, mut index, mut next) = ([0; N], 0, start);
    while index < N {
        bytes[index] = next;
        next = next.wrapping_add(1);
        index += 1;
    }
    bytes
}

fn golden() -> Vec<(String, Vec<u8>)> {
    let text = include_str!("../../../golden/wire/frames.txt");
    let line = |line: &str| {
        let (name, hex) = line.split_once(' ').unwrap();
        let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        (name.to_owned(), digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect())
    };
    text.lines().map(line).collect()
}

fn identity() -> Identity {
    Identity([run(49), run(50), run(51), run(52), run(53)])
}

fn receiver() -> Node {
    Node { boot_id: run(1), node_id: run(17), identity: identity() }
}

fn sender() -> Node {
    Node { boot_id: run(0x81), node_id: run(0xC1), identity: identity() }
}

fn request() -> Request {
    Request {
        handoff: HANDOFF,
        key_id: 9,
        nonce: run(0x11),
        expires_in_ms: 60_000,
        held_pages: 4,
        held_name: run(0x77),
        codecs: Codecs::ALL,
        realm: run(0x99),
        tokens: vec![5, 0x0102_0304, u32::MAX],
    }
}

const ACCEPT: Accept = Accept {
    handoff: HANDOFF,
    nonce: run(0x55),
    first_page: 4,
    rows: 3,
    page_count: 2,
    payload_bytes: 128,
    reused_rows: 1,
};

const LANE: LaneBinding = LaneBinding(run(0x66));

const TIMES: SenderTimes = SenderTimes {
    queue_us: 0x11_1213_1415,
    compute_us: 0x21_2223_2425,
    pack_us: 0x31_3233_3435,
    send_busy_us: None,
    send_wall_us: 0x41_4243_4445,
};

/// The messages of the script, in its order; `entries` are those of the `Pages` frame.
fn messages(entries: &[u8]) -> Vec<Message<'_>> {
    let pages = Pages { handoff: HANDOFF, sequence: 0, group: 1, first_page: 4, page_count: 2, entries };
    let mut manifest = Manifest::new(&request(), &ACCEPT, &receiver(), &sender());
    manifest.add(&Message::Pages(pages).write_frame(&mut Vec::new()), entries.len() as u64 - 16);
    let detail = "zu viel los: übermorgen";
    let refuse = Refuse::new(HANDOFF, RefuseCode::Identity, detail);
    vec![
        Message::Hello(Hello { version_min: 3, version_max: 4, node: receiver(), frame_bytes_max: 1 << 20 }),
        Message::HelloAck(HelloAck {
            version: 3,
            node: sender(),
            concurrent_max: 8,
            codecs: Codecs::NONE_ONLY,
            frame_bytes_max: 1 << 21,
        }),
        Message::Refuse(Refuse { field: 5, retry_after_ms: 1234, ..refuse }),
        Message::Request(request()),
        Message::Accept(ACCEPT),
        Message::Pages(pages),
        Message::Progress(Progress { handoff: HANDOFF, rows_done: 2, rows_total: 3 }),
        Message::Commit(Commit {
            handoff: HANDOFF,
            frames: manifest.frames(),
            stored_bytes: manifest.stored_bytes(),
            times: TIMES,
            lane: LANE,
            root: manifest.root(),
            mac: manifest.mac(&run(0x30), &LANE, &TIMES),
        }),
        Message::Installed(HANDOFF),
        Message::Cancel(Cancel { handoff: HANDOFF, reason: CancelReason::Superseded }),
        Message::Ping(0x0102_0304_0506_0708),
        Message::Pong(0xF1F2_F3F4_F5F6_F7F8),
    ]
}

#[test]
fn every_message_is_written_and_read_as_the_script_says() {
    let golden = golden();
    let pages = &golden[5].1;
    let entries = pages[24 + Pages::FIXED_BYTES..pages.len() - 32].to_vec();
    let messages = messages(&entries);
    assert_eq!(golden.len(), messages.len());
    for ((name, bytes), message) in golden.iter().zip(&messages) {
        let mut written = Vec::new();
        message.write_frame(&mut written);
        assert_eq!(&written, bytes, "{name}");
        let mut reader = FrameReader::new(LIMITS);
        assert_eq!(reader.take(bytes), Ok(bytes.len()), "{name}");
        assert_eq!(Message::decode(&reader.frame().unwrap()).as_ref(), Ok(message), "{name}");
    }
    let Message::Refuse(refuse) = &messages[2] else { panic!("the third message is a refusal") };
    assert_eq!(refuse.component(), Some(Component::KvLayout));
}

#[test]
fn the_packed_page_of_the_script_unpacks() {
    let golden = golden();
    let pages = &golden[5].1;
    let packed = &pages[24 + Pages::FIXED_BYTES + 8 + 64 + 8..pages.len() - 32];
    assert_eq!(PagePacker::default().unpack(packed, 64), Ok(&[0; 64][..]));
}

#[test]
fn every_shorter_prefix_is_incomplete_in_any_two_pieces() {
    for (name, bytes) in golden() {
        for cut in 0..bytes.len() {
            let mut reader = FrameReader::new(LIMITS);
            assert_eq!(reader.take(&bytes[..cut]), Ok(cut), "{name} {cut}");
            assert_eq!(reader.frame(), None, "{name} {cut}");
            assert_eq!(reader.is_inside_a_frame(), cut > 0);
            assert_eq!(reader.take(&bytes[cut..]), Ok(bytes.len() - cut));
            assert!(reader.frame().is_some(), "{name} {cut}");
        }
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    for (name, bytes) in golden() {
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let mut reader = FrameReader::new(LIMITS);
            let refused = reader.take(&flipped);
            let (header, in_header) = (refused.clone(), bit < 24 * 8);
            assert!(refused.is_err(), "{name} bit {bit}");
            assert_eq!(matches!(header, Err(FrameError::BadBodyDigest(_))), !in_header, "{name} bit {bit}");
        }
    }
}

#[test]
fn bodies_that_are_shorter_or_longer_than_their_fields_are_refused_under_a_valid_digest() {
    for (name, bytes) in golden() {
        let mut reader = FrameReader::new(LIMITS);
        reader.take(&bytes).unwrap();
        let whole = reader.frame().unwrap();
        let decode = |body: &[u8]| {
            let frame = Frame { kind: whole.kind, body, digest: whole.digest };
            Message::decode(&frame).map(|_| ())
        };
        let fixed = if name == "pages" { Pages::FIXED_BYTES } else { whole.body.len() };
        for length in 0..fixed {
            assert!(decode(&whole.body[..length]).is_err(), "{name} {length}");
        }
        if name != "pages" {
            assert!(decode(&[whole.body, &[0]].concat()).is_err(), "{name}");
        }
    }
}

#[test]
fn values_without_a_meaning_and_lying_counts_are_refused() {
    let decode = |index: usize, at: usize, value: &[u8]| {
        let golden = golden();
        let mut body = golden[index].1[24..golden[index].1.len() - 32].to_vec();
        body[at..at + value.len()].copy_from_slice(value);
        let mut bytes = Vec::new();
        let mut reader = FrameReader::new(LIMITS);
        reader.take(&golden[index].1).unwrap();
        let kind = reader.frame().unwrap().kind;
        let digest = write_frame(&mut bytes, kind, |out| out.extend_from_slice(&body));
        Message::decode(&Frame { kind, body: &body, digest }).unwrap_err().to_string()
    };
    assert_eq!(decode(2, 16, &[0, 0]), "code of a Refuse body is 0");
    assert_eq!(decode(2, 16, &[16, 0]), "code of a Refuse body is 16");
    assert_eq!(decode(2, 23, &[201]), "detail_bytes of a Refuse body is 201");
    assert_eq!(decode(2, 24, &[0xFF]), "detail at byte of a Refuse body is 0");
    assert_eq!(decode(9, 16, &[0, 1]), "reason of a Cancel body is 256");
    assert_eq!(decode(3, 56, &u32::MAX.to_le_bytes()), "a Request body of 144 bytes lacks 17179869168 bytes");
    assert_eq!(decode(3, 56, &2u32.to_le_bytes()), "a Request body has 4 bytes behind its last field");
}

#[test]
fn the_plan_of_the_script_has_the_entries_of_its_frame() {
    let plan = HandoffPlan::new(vec![vec![0], vec![1]], vec![0..0, 4..6], 64).unwrap();
    assert_eq!(plan.entries(1, 4..6).collect::<Vec<_>>(), [(1, 4), (1, 5)]);
    assert_eq!((plan.page_count(), plan.payload_bytes()), (ACCEPT.page_count, ACCEPT.payload_bytes));
}
