//! The replay ledger: a handoff is accepted once, across threads, restarts and crashes.
//!
//! [`Ledger::record`] returns when the entry is durable. Callers that arrive while another waits for the disk are made
//! durable together by one sync (the first of them leads, the others follow).
//!
//! A failed write or sync poisons the ledger: the disk's content is then unknown, and a retried sync may succeed
//! although the page cache has dropped the dirty pages. So the whole ledger is written anew, as another file, before
//! the next handoff is accepted; entries whose durability is unknown are in it, and stay refused.
//!
//! The ledger's time never goes back ([`Ledger::time`]): after a clock that was ahead it runs on from there, so that
//! the expiry floor set under that clock refuses no new handoff.
//!
//! - `record` is the layout of the bytes, `recovery` reads them after a crash, `storage` is where they lie.

#![forbid(unsafe_code)]

mod crc32c;
mod record;
mod recovery;
mod storage;

use std::collections::HashSet;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use record::{Chain, Header, Record, ReplayKey};

pub use record::{HEADER_BYTES, HeaderError, LedgerEntry, RECORD_BYTES, VERSION};
pub use recovery::DamageError;
pub use storage::{FolderStorage, FolderStorageError, LedgerStorage, ReplaceError};

/// The accepted handoffs of one receiver. Shared by reference among threads.
pub struct Ledger<S: LedgerStorage> {
    state: Mutex<State>,
    /// Signalled when a commit or a compaction ends.
    settled: Condvar,
    /// Held by the thread that set `State::busy`; never waited for with the state locked.
    storage: Mutex<S>,
    entries_max: usize,
}

struct State {
    header: Header,
    seen: HashSet<ReplayKey>,
    durable: Vec<LedgerEntry>,
    /// Accepted, not yet handed to the storage. Their places follow those of `durable` and of the batch on its way.
    waiting: Vec<LedgerEntry>,
    /// Refused as their write failed, and perhaps on the disk all the same.
    doubtful: Vec<LedgerEntry>,
    /// Latest ledger time returned or read from the file, ms, and the caller's steady time then, ms.
    latest_ms: (u64, u64),
    /// Counts entries since opening; a caller waits until `settled_tickets` passes its own.
    next_ticket: u64,
    settled_tickets: u64,
    chain: Chain,
    busy: bool,
    poisoned: bool,
}

/// Refusal of a handoff by the ledger.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// This handoff was accepted before.
    #[error("a handoff with this nonce was accepted before under key {key_id}")]
    Replay {
        /// Id of its MAC key.
        key_id: u32,
    },
    /// Expired: it may have been accepted before, as expired entries are forgotten.
    #[error("the handoff expires at {expiry_unix_ms} ms, those up to {floor_unix_ms} ms are refused")]
    Expired {
        /// Its expiry.
        expiry_unix_ms: u64,
        /// Expiry floor: the later of now and of the header's floor, up to which entries were forgotten.
        floor_unix_ms: u64,
    },
    /// Compaction makes room as entries expire.
    #[error("the ledger holds its {entries_max} entries, none of which may be forgotten yet")]
    Full {
        /// The limit given when it was opened.
        entries_max: usize,
    },
    /// This entry's write or sync failed. The ledger is written anew before the next one.
    #[error("the handoff could not be recorded: {0}")]
    Io(#[source] io::Error),
    /// The write of another entry failed meanwhile.
    #[error("the handoff could not be recorded, as a write to the ledger failed")]
    Poisoned,
    /// A write failed before, and the ledger could not be written anew.
    #[error("the ledger takes nothing since a write failed: {0}")]
    Renewal(#[source] ReplaceError),
}

/// Failure to open a ledger.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Its bytes are damaged.
    #[error(transparent)]
    Damaged(#[from] DamageError),
    /// Two records with one key id and nonce.
    #[error("the record with index {index} repeats an earlier handoff")]
    Repeated {
        /// Index of the later record.
        index: usize,
    },
    /// The storage cannot be read or repaired.
    #[error("the ledger cannot be opened: {0}")]
    Io(#[from] io::Error),
    /// A new ledger could not be written.
    #[error(transparent)]
    Create(#[from] ReplaceError),
}

/// Failure of a compaction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompactError {
    /// The new file could not replace the old one. If the old bytes did not stay, the ledger is written anew before it
    /// accepts anything more.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
}

/// The last millisecond of the year 9999: no clock is right that is later.
const TIME_MAX_MS: u64 = 253_402_300_799_999;

impl<S: LedgerStorage> Ledger<S> {
    /// Reads the ledger in `storage`, or begins one if there are no bytes. A tail that was never acknowledged is cut off.
    /// `entries_max` bounds memory and file: an entry takes 160 bytes of file and about 250 bytes of memory.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is accepted then.
    pub fn open(mut storage: S, entries_max: usize) -> Result<Self, OpenError> {
        // One more record than allowed may be there in part.
        let bytes_max =
            (HEADER_BYTES as u64).saturating_add((entries_max as u64).saturating_add(1).saturating_mul(160));
        let mut bytes = storage.read_all(bytes_max)?;
        if bytes.is_empty() {
            bytes = Header { generation: 0, floor_unix_ms: 0 }.encode().to_vec();
            storage.replace(&bytes)?;
        }
        let recovered = recovery::recover(&bytes)?;
        if recovered.good_bytes < bytes.len() {
            storage.cut(recovered.good_bytes as u64)?;
        }
        // Also without a cut: bytes that a dying run wrote may be readable and not yet durable.
        storage.sync()?;
        let mut seen = HashSet::with_capacity(recovered.entries.len());
        for (index, entry) in recovered.entries.iter().enumerate() {
            if !seen.insert(entry.key()) {
                return Err(OpenError::Repeated { index });
            }
        }
        let times = recovered.entries.iter().map(|entry| entry.time_unix_ms);
        let latest_ms = times.max().unwrap_or(0).max(recovered.header.floor_unix_ms).min(TIME_MAX_MS);
        let state = State {
            header: recovered.header,
            seen,
            durable: recovered.entries,
            waiting: Vec::new(),
            doubtful: Vec::new(),
            latest_ms: (latest_ms, 0),
            next_ticket: 0,
            settled_tickets: 0,
            chain: recovered.chain,
            busy: false,
            poisoned: false,
        };
        Ok(Self { state: Mutex::new(state), settled: Condvar::new(), storage: Mutex::new(storage), entries_max })
    }

    /// The time now for entries, in milliseconds since 1970: that of the machine's clock; or, where that was ahead before and
    /// is not any more, the latest time that is known here, and what has passed since by `steady_ms`, which counts up from
    /// the opening of the ledger. So an entry that is made now has not expired by any time that the ledger ever knew.
    pub fn time(&self, clock_unix_ms: u64, steady_ms: u64) -> u64 {
        let mut state = self.lock();
        let (latest_ms, then_ms) = state.latest_ms;
        let run_on_ms = latest_ms.saturating_add(steady_ms.saturating_sub(then_ms));
        let now_ms = clock_unix_ms.min(TIME_MAX_MS).max(run_on_ms);
        state.latest_ms = (now_ms, steady_ms.max(then_ms));
        now_ms
    }

    /// As [`Self::record`], and if the ledger is full, once more without the entries that expired `margin_ms` and longer ago:
    /// those are refused by their age alone. Returns how many were forgotten.
    ///
    /// # Errors
    /// [`RecordError`]; the handoff must be refused then.
    pub fn record_making_room(&self, entry: LedgerEntry, margin_ms: u64) -> Result<usize, RecordError> {
        match self.record(entry) {
            Err(full @ RecordError::Full { .. }) => {
                let Ok(forgotten) = self.forget_expired(entry.time_unix_ms, margin_ms) else { return Err(full) };
                self.record(entry).map(|()| forgotten)
            }
            recorded => recorded.map(|()| 0),
        }
    }

    /// Accepts a handoff: returns when the entry is durable, and only for the first entry with its key id and nonce.
    /// `entry.time_unix_ms` counts as now.
    ///
    /// # Errors
    /// [`RecordError`]; the handoff must be refused then.
    pub fn record(&self, entry: LedgerEntry) -> Result<(), RecordError> {
        let mut state = self.sound().map_err(RecordError::Renewal)?;
        state.admit(&entry, self.entries_max)?;
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting.push(entry);
        loop {
            if state.settled_tickets > ticket {
                return Ok(());
            }
            if state.poisoned {
                return Err(RecordError::Poisoned);
            }
            if !state.busy {
                // The batch holds this entry: all that wait are in it.
                return self.commit(state).map_err(RecordError::Io);
            }
            state = self.settled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Forgets entries that expired at least `margin_ms` before `now_unix_ms`, and writes the rest anew. Callers of
    /// [`Self::record`] wait meanwhile. Returns how many were forgotten; with none, nothing is written.
    ///
    /// # Errors
    /// [`CompactError`]; no entry is lost.
    pub fn forget_expired(&self, now_unix_ms: u64, margin_ms: u64) -> Result<usize, CompactError> {
        let state = loop {
            let waited = self.settled.wait_while(self.sound()?, |state| state.busy);
            let state = waited.unwrap_or_else(PoisonError::into_inner);
            if !state.poisoned {
                break state;
            }
        };
        let floor = state.header.floor_unix_ms.max(now_unix_ms.saturating_sub(margin_ms));
        let kept: Vec<LedgerEntry> =
            state.durable.iter().filter(|entry| entry.expiry_unix_ms > floor).copied().collect();
        let forgotten = state.durable.len() - kept.len();
        if forgotten == 0 {
            return Ok(0);
        }
        let header = Header { generation: state.header.generation + 1, floor_unix_ms: floor };
        let (mut state, replaced) = self.write_anew(state, header, &kept);
        let chain = match replaced {
            Ok(chain) => chain,
            Err(error) => {
                state.poisoned |= !matches!(error, ReplaceError::OldStays(_));
                return Err(error.into());
            }
        };
        // Entries that came meanwhile are in `waiting`; those of them below the new floor were admitted by the old one, and
        // are kept in the set that is made now.
        state.seen = kept.iter().chain(&state.waiting).map(LedgerEntry::key).collect();
        (state.header, state.durable, state.chain) = (header, kept, chain);
        Ok(forgotten)
    }

    /// Number of durable entries.
    pub fn len(&self) -> usize {
        self.lock().durable.len()
    }

    /// True if no entry is durable.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes all that wait durable, as their leader.
    fn commit(&self, mut state: MutexGuard<'_, State>) -> io::Result<()> {
        let batch = std::mem::take(&mut state.waiting);
        let mut chain = state.chain;
        let bytes = encode_batch(&batch, state.durable.len() as u64, &mut chain);
        state.busy = true;
        drop(state);
        let mut storage = self.storage.lock().unwrap_or_else(PoisonError::into_inner);
        let written = storage.append(&bytes).and_then(|()| storage.sync());
        drop(storage);
        let mut state = self.lock();
        state.busy = false;
        self.settled.notify_all();
        if let Err(error) = written {
            state.poisoned = true;
            state.doubtful.extend(batch);
            return Err(error);
        }
        state.chain = chain;
        state.settled_tickets += batch.len() as u64;
        state.durable.extend(batch);
        Ok(())
    }

    /// The state of a ledger that can be written to: after a failure it is written anew, with all that may be on the disk.
    fn sound(&self) -> Result<MutexGuard<'_, State>, ReplaceError> {
        let state = self.lock();
        if !state.poisoned {
            return Ok(state);
        }
        let mut state = self.settled.wait_while(state, |state| state.busy).unwrap_or_else(PoisonError::into_inner);
        if !state.poisoned {
            return Ok(state);
        }
        // What waited when the write failed was never handed to the storage; whoever waits still hears that it is durable now.
        let waiting = std::mem::take(&mut state.waiting);
        state.doubtful.extend(waiting);
        let entries = [&state.durable[..], &state.doubtful[..]].concat();
        let header = Header { generation: state.header.generation + 1, floor_unix_ms: state.header.floor_unix_ms };
        let (mut state, replaced) = self.write_anew(state, header, &entries);
        state.chain = replaced?;
        (state.header, state.durable, state.poisoned) = (header, entries, false);
        state.doubtful.clear();
        state.settled_tickets = state.next_ticket;
        Ok(state)
    }

    /// Puts another file in the place of the ledger. Callers of [`Self::record`] wait meanwhile. Returns its last link.
    fn write_anew<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        header: Header,
        entries: &[LedgerEntry],
    ) -> (MutexGuard<'a, State>, Result<Chain, ReplaceError>) {
        let mut chain = header.chain();
        let mut bytes = header.encode().to_vec();
        bytes.extend(encode_batch(entries, 0, &mut chain));
        state.busy = true;
        drop(state);
        let replaced = self.storage.lock().unwrap_or_else(PoisonError::into_inner).replace(&bytes);
        let mut state = self.lock();
        state.busy = false;
        self.settled.notify_all();
        (state, replaced.map(|()| chain))
    }

    /// A panic while the state was locked cannot have left it half changed: no code in between panics.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Reserves the entry's key, or refuses the entry.
    fn admit(&mut self, entry: &LedgerEntry, entries_max: usize) -> Result<(), RecordError> {
        let floor_unix_ms = self.header.floor_unix_ms.max(entry.time_unix_ms);
        if entry.expiry_unix_ms <= floor_unix_ms {
            return Err(RecordError::Expired { expiry_unix_ms: entry.expiry_unix_ms, floor_unix_ms });
        }
        if self.seen.contains(&entry.key()) {
            return Err(RecordError::Replay { key_id: entry.key_id });
        }
        if self.seen.len() >= entries_max {
            return Err(RecordError::Full { entries_max });
        }
        self.seen.insert(entry.key());
        Ok(())
    }
}

/// The bytes of records that become durable together, the first with index `start`.
fn encode_batch(batch: &[LedgerEntry], start: u64, chain: &mut Chain) -> Vec<u8> {
    let places = batch.iter().zip(start..);
    places.flat_map(|(&entry, index)| Record { entry, index, batch_start: start }.encode(chain)).collect()
}
