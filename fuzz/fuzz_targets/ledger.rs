//! Any bytes as a replay ledger, and a ledger that was written and then cut and changed: it opens or is refused. What opens
//! refuses all it holds, takes one more, and reopens.
//!
//! `cargo +nightly fuzz run ledger -- -max_len=4096`

#![no_main]

use std::io;
use std::sync::{Arc, Mutex};

use libfuzzer_sys::fuzz_target;
use muser_ledger::{Ledger, LedgerEntry, LedgerStorage, ReplaceError};

const ENTRIES_MAX: usize = 64;

#[derive(Clone)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl LedgerStorage for Memory {
    fn read_all(&mut self, bytes_max: u64) -> io::Result<Vec<u8>> {
        let bytes = self.0.lock().unwrap().clone();
        if bytes.len() as u64 > bytes_max { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap().extend(bytes);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.0.lock().unwrap().truncate(bytes as usize);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), ReplaceError> {
        *self.0.lock().unwrap() = bytes.to_vec();
        Ok(())
    }
}

/// Entry number `number` of a ledger.
fn entry(number: u8) -> LedgerEntry {
    LedgerEntry {
        key_id: 1,
        nonce: [number; 32],
        prompt_digest: [0; 32],
        boot_id: [0; 16],
        first_page: 0,
        rows: 1,
        expiry_unix_ms: u64::MAX,
        time_unix_ms: 0,
    }
}

/// A ledger of some entries; checksums keep a fuzzer from making one.
fn written(entries: u8) -> Vec<u8> {
    let memory = Memory(Arc::default());
    let ledger = Ledger::open(memory.clone(), ENTRIES_MAX).expect("an empty ledger opens");
    (0..entries).for_each(|number| ledger.record(entry(number)).expect("there is room, and none comes twice"));
    drop(ledger);
    let bytes = memory.0.lock().unwrap().clone();
    bytes
}

/// Cuts the ledger, and changes a byte for every three.
fn damaged(mut ledger: Vec<u8>, kept: u8, changes: &[u8]) -> Vec<u8> {
    ledger.truncate(ledger.len() * (usize::from(kept) + 1) / 256);
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        if let Some(byte) = ledger.get_mut(at) {
            *byte ^= change[2];
        }
    }
    ledger
}

fn check(bytes: Vec<u8>) {
    let memory = Memory(Arc::new(Mutex::new(bytes)));
    let Ok(ledger) = Ledger::open(memory.clone(), ENTRIES_MAX) else { return };
    let held = ledger.len();
    let another = entry(u8::MAX);
    let accepted = ledger.record(another).is_ok();
    assert!(ledger.record(another).is_err());
    drop(ledger);
    let again = Ledger::open(memory, ENTRIES_MAX).expect("what was opened and written to opens again");
    assert_eq!(again.len(), held + usize::from(accepted));
    assert!(again.record(another).is_err());
}

fuzz_target!(|bytes: &[u8]| {
    check(bytes.to_vec());
    if let [entries, kept, changes @ ..] = bytes {
        check(damaged(written(entries % 8), *kept, changes));
    }
});
