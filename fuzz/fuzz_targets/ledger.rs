//! Any bytes as a replay ledger: it opens or is refused. What opens refuses all it holds, takes one more, and reopens.
//!
//! `cargo +nightly fuzz run ledger -- -max_len=4096`

#![no_main]

use std::io;
use std::sync::{Arc, Mutex};

use libfuzzer_sys::fuzz_target;
use muser_cluster::ledger::{Ledger, LedgerEntry, LedgerStorage, ReplaceError};

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

fuzz_target!(|bytes: &[u8]| {
    let memory = Memory(Arc::new(Mutex::new(bytes.to_vec())));
    let Ok(ledger) = Ledger::open(memory.clone(), ENTRIES_MAX) else { return };
    let held = ledger.len();
    let entry = LedgerEntry {
        key_id: u32::MAX,
        nonce: [0xa5; 32],
        prompt_digest: [0; 32],
        boot_id: [0; 16],
        first_page: 0,
        rows: 1,
        expiry_unix_ms: u64::MAX,
        time_unix_ms: 0,
    };
    let accepted = ledger.record(entry).is_ok();
    assert!(ledger.record(entry).is_err());
    drop(ledger);
    let again = Ledger::open(memory, ENTRIES_MAX).expect("what was opened and written to opens again");
    assert_eq!(again.len(), held + usize::from(accepted));
    assert!(again.record(entry).is_err());
});
