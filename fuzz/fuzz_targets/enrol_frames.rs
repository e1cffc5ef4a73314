//! Any bytes as frames of an enrolment: they are read or refused, and what is read is written as it was.
//!
//! Run in this folder: `cargo +nightly fuzz run enrol_frames -- -max_len=8192 -malloc_limit_mb=64`

#![no_main]

use libfuzzer_sys::fuzz_target;
use muser_enrol::{HEADER_BYTES, Kind, Message, parse_header};

fuzz_target!(|bytes: &[u8]| {
    if let Some((header, body)) = bytes.split_first_chunk()
        && let Ok((kind, body_bytes)) = parse_header(header)
    {
        assert!(body_bytes <= kind.body_bytes_max());
        if let Some(body) = body.get(..body_bytes as usize)
            && let Ok(message) = Message::decode(kind, body)
        {
            let frame = message.frame().expect("what was read can be said");
            assert_eq!(frame[..], bytes[..HEADER_BYTES + body.len()]);
        }
    }
    // The same bytes as the body of each kind, so that the header does not keep the fuzzer out.
    for kind in Kind::ALL {
        if let Ok(message) = Message::decode(kind, bytes) {
            assert_eq!(message.kind(), kind);
            if let Ok(frame) = message.frame() {
                assert_eq!(frame[HEADER_BYTES..], *bytes);
            }
        }
    }
});
