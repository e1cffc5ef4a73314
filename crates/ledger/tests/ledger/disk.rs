//! A disk in memory that loses what was not synced, and fails when it is told to.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muser_ledger::{Ledger, LedgerEntry, LedgerStorage, ReplaceError};

/// Shared by the test and the ledger, as a disk outlives the process.
#[derive(Clone, Default)]
pub struct Disk {
    inner: Arc<Mutex<Inner>>,
    pub syncs: Arc<AtomicUsize>,
    /// Duration of a sync.
    sync_time: Duration,
}

#[derive(Default)]
struct Inner {
    /// Bytes as read back now.
    bytes: Vec<u8>,
    /// Bytes that certainly survive a crash.
    durable: Vec<u8>,
    operations: usize,
    /// The operation, counted from 0, that fails, and how many of an append's bytes are there then.
    failing: Option<(usize, usize)>,
    /// Nothing can be written, appended or not.
    is_full: bool,
}

impl Inner {
    fn step(&mut self) -> Result<(), usize> {
        let number = self.operations;
        self.operations += 1;
        if self.is_full {
            return Err(0);
        }
        self.failing.filter(|(at, _)| *at == number).map_or(Ok(()), |(_, bytes)| Err(bytes))
    }
}

impl Disk {
    pub fn holding(bytes: &[u8]) -> Self {
        let disk = Self::default();
        *disk.inner.lock().unwrap() = Inner { bytes: bytes.to_vec(), durable: bytes.to_vec(), ..Inner::default() };
        disk
    }

    pub fn failing_at(self, operation: usize, partial_bytes: usize) -> Self {
        self.inner.lock().unwrap().failing = Some((operation, partial_bytes));
        self
    }

    pub fn set_full(&self, is_full: bool) {
        self.inner.lock().unwrap().is_full = is_full;
    }

    pub fn slow(sync_time: Duration) -> Self {
        Self { sync_time, ..Self::default() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.inner.lock().unwrap().bytes.clone()
    }

    /// The disk after a crash: all durable bytes, and `more` of those written since.
    pub fn after_crash(&self, more: usize) -> Self {
        let inner = self.inner.lock().unwrap();
        let kept = if inner.bytes.starts_with(&inner.durable) {
            &inner.bytes[..(inner.durable.len() + more).min(inner.bytes.len())]
        } else {
            &inner.durable[..]
        };
        Self::holding(kept)
    }
}

impl LedgerStorage for Disk {
    fn read_all(&mut self, bytes_max: u64) -> io::Result<Vec<u8>> {
        let bytes = self.bytes();
        if bytes.len() as u64 > bytes_max { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.inner.lock().unwrap();
        match inner.step() {
            Ok(()) => inner.bytes.extend(bytes),
            Err(partial) => {
                inner.bytes.extend(&bytes[..partial.min(bytes.len())]);
                return Err(io::Error::other("planted"));
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        std::thread::sleep(self.sync_time);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let mut inner = self.inner.lock().unwrap();
        inner.step().map_err(|_| io::Error::other("planted"))?;
        inner.durable = inner.bytes.clone();
        Ok(())
    }

    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        let mut inner = self.inner.lock().unwrap();
        inner.step().map_err(|_| io::Error::other("planted"))?;
        inner.bytes.truncate(usize::try_from(bytes).unwrap());
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), ReplaceError> {
        let mut inner = self.inner.lock().unwrap();
        inner.step().map_err(|_| ReplaceError::OldStays(io::Error::other("planted")))?;
        inner.bytes = bytes.to_vec();
        inner.step().map_err(|_| ReplaceError::Unknown(io::Error::other("planted")))?;
        inner.durable = inner.bytes.clone();
        Ok(())
    }
}

/// An entry with a nonce made from `seed`, that expires at 1000 ms plus `seed`.
pub fn entry(seed: u64) -> LedgerEntry {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = [0; 80];
    random.fill(&mut bytes);
    LedgerEntry {
        key_id: 1,
        nonce: bytes[..32].try_into().unwrap(),
        prompt_digest: bytes[32..64].try_into().unwrap(),
        boot_id: bytes[64..].try_into().unwrap(),
        first_page: 0,
        rows: 64,
        expiry_unix_ms: 1000 + seed,
        time_unix_ms: 10,
    }
}

/// The bytes of a ledger of `count` entries, recorded one by one.
pub fn ledger_of(count: u64) -> Vec<u8> {
    let disk = Disk::default();
    let ledger = Ledger::open(disk.clone(), 1000).unwrap();
    for seed in 0..count {
        ledger.record(entry(seed)).unwrap();
    }
    disk.bytes()
}
