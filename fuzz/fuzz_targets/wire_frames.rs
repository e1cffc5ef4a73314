//! Any bytes as frames: they are read or refused, and what is read is written as it was.
//!
//! Run in this folder: `cargo +nightly fuzz run wire_frames -- -max_len=8192 -malloc_limit_mb=64`

#![no_main]

use libfuzzer_sys::fuzz_target;
use muser_wire::{FrameHeader, FrameKind, FrameReader, Limits, Message, PagePacker, write_frame};

fuzz_target!(|bytes: &[u8]| {
    read_all(bytes);
    // The same bytes as bodies of each kind, so that checksums do not keep the fuzzer out.
    for kind in FrameKind::ALL {
        let mut framed = Vec::new();
        write_frame(&mut framed, kind, |out| out.extend_from_slice(bytes));
        assert_eq!(read_all(&framed), framed.len());
    }
    if let Ok(page) = PagePacker::default().unpack(bytes, 256) {
        assert_eq!(page.len(), 256);
    }
});

/// Reads frames up to the first one that is refused or cut off, and returns the bytes taken.
fn read_all(bytes: &[u8]) -> usize {
    let mut reader = FrameReader::new(Limits::new(1 << 20, 1 << 20));
    let mut at = 0;
    while at < bytes.len() {
        let Ok(taken) = reader.take(&bytes[at..]) else { break };
        assert!(reader.body_capacity() <= 2 * bytes.len());
        let start = at;
        at += taken;
        let Some(frame) = reader.frame() else { break };
        if let Ok(message) = Message::decode(&frame) {
            let mut again = Vec::new();
            assert_eq!(message.write_frame(&mut again), frame.digest);
            assert_eq!(again, bytes[start..at]);
            assert!(again.len() >= FrameHeader::BYTES + FrameHeader::DIGEST_BYTES);
        }
        reader.release();
    }
    at
}
