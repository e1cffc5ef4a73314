//! Every message is read back, and no cut or flipped byte passes for another.

use std::time::Duration;

use super::super::frame::parse_header;
use super::super::report::Difference;
use super::*;

fn all() -> Vec<Message> {
    let round = |bytes| Round { bytes, wall_us: 250_000, busy_us: Some(9).filter(|_| bytes > 1) };
    let link = LinkReport {
        round_trips_us: vec![5, 7],
        to_producer: vec![round(1)],
        to_decoder: vec![round(2), round(u64::MAX)],
    };
    let qualification = |difference| Qualification {
        rows: 599,
        pages: 70,
        payload_bytes: 1 << 40,
        local: Duration::from_micros(12),
        remote: Duration::from_micros(34),
        difference,
    };
    vec![
        Message::Apply(Apply {
            secret: Zeroizing::new([7; 32]),
            identity: [[1; 32], [2; 32], [3; 32], [4; 32], [5; 32]],
            name: "gpu-box".into(),
            listen: Some("[::1]:9932".parse().unwrap()),
            request: "-----BEGIN".into(),
        }),
        Message::Grant(Grant {
            issuer: NodeId([9; 32]),
            issuer_roles: Roles::Both,
            authority: "authority".into(),
            certificate: "certificate".into(),
            keys: Zeroizing::new("keys".into()),
            revoked: vec![(Revoked::Node(NodeId([1; 32])), 5), (Revoked::Serial(Serial([2; 16])), 6)],
        }),
        Message::Joined,
        Message::Report(Some(link), qualification(None)),
        Message::Report(None, qualification(Some(Difference::Page { layer: 3, position: 64 }))),
        Message::Report(None, qualification(Some(Difference::Logits { position: 599 }))),
        Message::Done,
        Message::Kept,
        Message::Refuse(RefuseCode::OtherModel, "tensors".into()),
        Message::Ping(1),
        Message::Pong(2),
        Message::AskBulk { bytes_max: 1 << 24, time_max_ms: 250 },
        Message::Bulk(vec![1, 2, 3]),
        Message::BulkEnd(3),
        Message::BulkSeen(3),
        Message::BulkSent(round(3)),
    ]
}

/// The message in a whole frame.
fn read(frame: &[u8]) -> Result<Message, FrameError> {
    let (header, body) = frame.split_first_chunk().expect("a header");
    let (kind, body_bytes) = parse_header(header)?;
    assert_eq!(body_bytes as usize, body.len());
    Message::decode(kind, body)
}

#[test]
fn every_message_is_read_back_and_no_shorter_or_longer_body_is() {
    for message in all() {
        let frame = message.frame().unwrap();
        assert_eq!(read(&frame), Ok(message));
        let kind = parse_header(frame.first_chunk().unwrap()).unwrap().0;
        if kind == Kind::Bulk {
            continue;
        }
        let body = &frame[HEADER_BYTES..];
        for len in 0..body.len() {
            assert!(matches!(Message::decode(kind, &body[..len]), Err(FrameError::Truncated { .. })), "{kind:?} {len}");
        }
        let longer = [body, &[0]].concat();
        assert_eq!(Message::decode(kind, &longer), Err(FrameError::Trailing { kind, extra: 1 }));
    }
}

#[test]
fn a_flipped_byte_gives_another_message_or_none_and_never_the_same() {
    for message in all() {
        let frame = message.frame().unwrap();
        let kind = message.kind();
        for at in HEADER_BYTES..frame.len() {
            let mut body = frame[HEADER_BYTES..].to_vec();
            body[at - HEADER_BYTES] ^= 0x41;
            if let Ok(other) = Message::decode(kind, &body) {
                assert_ne!(other, message, "{kind:?} {at}");
                assert_eq!(other.frame().unwrap()[HEADER_BYTES..], body, "{kind:?} {at}");
            }
        }
    }
}

#[test]
fn a_header_is_refused_by_what_is_wrong_with_it_before_a_body_is_read() {
    let header = *header_of(Kind::Apply, 5).first_chunk().unwrap();
    assert_eq!(parse_header(&header), Ok((Kind::Apply, 5)));
    let with = |at: usize, byte: u8| {
        let mut header = header;
        header[at] = byte;
        parse_header(&header)
    };
    assert_eq!(with(0, b'X'), Err(FrameError::NotAFrame));
    assert_eq!(with(4, 2), Err(FrameError::Version { found: 2 }));
    assert_eq!(with(5, 99), Err(FrameError::UnknownKind { kind: 99 }));
    assert_eq!(with(6, 1), Err(FrameError::Value { kind: Kind::Apply, field: "reserved" }));
    let too_long = FrameError::TooLong { kind: Kind::Apply, bytes: 0x0100_0005, most: 8 << 10 };
    assert_eq!(with(11, 1), Err(too_long));
}

#[test]
fn what_has_no_meaning_is_refused_and_what_cannot_be_said_is_not_sent() {
    let value = |kind, field| Err(FrameError::Value { kind, field });
    assert_eq!(Message::decode(Kind::Refuse, &[0, 0, 0]), value(Kind::Refuse, "code"));
    assert_eq!(Message::decode(Kind::Report, &[2]), value(Kind::Report, "link"));
    assert_eq!(Message::decode(Kind::Report, &[1, 33]), value(Kind::Report, "round trips"));
    let mut apply = vec![0; 192];
    apply.extend([1, b'a', 1, b'x', 0, 0]);
    assert_eq!(Message::decode(Kind::Apply, &apply), value(Kind::Apply, "listen"));
    apply[193] = 0xff;
    assert_eq!(Message::decode(Kind::Apply, &apply), value(Kind::Apply, "name"));
    // A detail is cut at a character.
    let long = Message::Refuse(RefuseCode::Internal, "\u{e9}".repeat(600)).frame().unwrap();
    assert!(matches!(read(&long), Ok(Message::Refuse(_, detail)) if detail == "\u{e9}".repeat(512)));
    let too_long = Message::Bulk(vec![0; 70_000]).frame().unwrap_err();
    assert_eq!(too_long, FrameError::TooLong { kind: Kind::Bulk, bytes: 70_000, most: 65_536 });
}
