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
        Message::Trial(Trial {
            issuer: NodeId([9; 32]),
            issuer_roles: Roles::Both,
            authority: "of tests".into(),
            certificate: "certificate".into(),
            keys: Zeroizing::new("key".into()),
        }),
        Message::Grant(Grant {
            authority: "authority".into(),
            certificate: "certificate".into(),
            keys: Zeroizing::new("keys".into()),
            revoked: vec![(Revoked::Node(NodeId([1; 32])), 5), (Revoked::Serial(Serial([2; 16])), 6)],
        }),
        Message::Joined,
        Message::Report(Some(link), qualification(None)),
        Message::Report(None, qualification(Some(Difference::Page { layer: 3, position: 64 }))),
        Message::Report(None, qualification(Some(Difference::Logits { position: 599 }))),
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
    assert_eq!(with(4, 1), Err(FrameError::Version { found: 1 }));
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

/// The tables of the documentation, byte by byte, without the code that writes them.
#[test]
fn the_bytes_are_those_of_the_tables() {
    let frame = |kind: u8, body: &[u8]| {
        let length = u32::try_from(body.len()).unwrap().to_le_bytes();
        [b"MUEN".as_slice(), &[2, kind, 0, 0], &length, body].concat()
    };
    let mut apply = vec![7; 32];
    (1..=5).for_each(|digest| apply.extend([digest; 32]));
    apply.extend(b"\x07gpu-box\x0a[::1]:9932\x0a\x00-----BEGIN");
    let mut trial = vec![9; 32];
    trial.extend(b"\x03\x08\0\0\0of tests\x0b\0\0\0certificate\x03\0\0\0key");
    let mut grant = b"\x09\0\0\0authority\x0b\0\0\0certificate\x04\0\0\0keys\x02\0\0\0".to_vec();
    grant.extend(
        [[0].as_slice(), &[1; 32], &[5, 0, 0, 0, 0, 0, 0, 0], &[1], &[2; 16], &[6, 0, 0, 0, 0, 0, 0, 0]].concat(),
    );
    let mut report = vec![1, 2, 5, 0, 0, 0, 7, 0, 0, 0];
    let round = |bytes: u64, busy_us: u64| [bytes, 250_000, busy_us].map(u64::to_le_bytes).concat();
    report.extend([[1].as_slice(), &round(1, u64::MAX), &[2], &round(2, 9), &round(u64::MAX, 9)].concat());
    let qualification = |difference: [u8; 9]| {
        let times = [1u64 << 40, 12, 34].map(u64::to_le_bytes).concat();
        [[0x57, 2, 0, 0, 70, 0, 0, 0].as_slice(), &times, &difference].concat()
    };
    report.extend(qualification([0; 9]));
    let expected = [
        frame(1, &apply),
        frame(8, &trial),
        frame(2, &grant),
        frame(3, &[]),
        frame(4, &report),
        frame(4, &[[0].as_slice(), &qualification([1, 3, 0, 0, 0, 64, 0, 0, 0])].concat()),
        frame(4, &[[0].as_slice(), &qualification([2, 0, 0, 0, 0, 0x57, 2, 0, 0])].concat()),
        frame(6, &[]),
        frame(7, b"\x06\x07\0tensors"),
        frame(16, &[1, 0, 0, 0, 0, 0, 0, 0]),
        frame(17, &[2, 0, 0, 0, 0, 0, 0, 0]),
        frame(18, &[0, 0, 0, 1, 0, 0, 0, 0, 250, 0, 0, 0]),
        frame(19, &[1, 2, 3]),
        frame(20, &[3, 0, 0, 0, 0, 0, 0, 0]),
        frame(21, &[3, 0, 0, 0, 0, 0, 0, 0]),
        frame(22, &round(3, 9)),
    ];
    for (message, expected) in all().into_iter().zip(expected) {
        assert_eq!(*message.frame().unwrap(), expected, "{message:?}");
    }
}
