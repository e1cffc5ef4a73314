//! Simulated storage of the ledger: a power loss drops unsynced bytes sector by sector, and operations fail on demand.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muser_ledger::{LedgerStorage, ReplaceError};

use crate::coverage::Mark;

/// The smallest unit that is written as a whole.
const SECTOR_BYTES: usize = 512;

/// A disk that outlives the processes that use it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Arc<Mutex<Inner>>);

/// An operation that is going to fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskFault {
    /// The only kind of operation that counts, or none for all.
    pub(crate) operation: Option<Operation>,
    /// Operations that succeed before.
    pub(crate) after: u32,
    /// Chooses among the ways of failing.
    pub(crate) how: u32,
}

/// Kind of a disk operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Append,
    Sync,
    Cut,
    Replace,
}

#[derive(Debug, Default)]
struct Inner {
    /// Contents as a process reads them.
    visible: Vec<u8>,
    /// Contents that survive a power loss.
    durable: Vec<u8>,
    /// Sectors that differ between the two and will be written by the next sync.
    dirty: BTreeSet<usize>,
    /// Contents before a replacement whose rename is not durable: a power loss may bring them back.
    replaced: Option<Vec<u8>>,
    fault: Option<DiskFault>,
    /// Number of replacements that will fail for lack of space.
    full_for: u32,
    has_lied: bool,
    /// The power fails during the operation that just failed.
    is_power_failing: bool,
    /// Marks since the last [`Disk::take_marks`].
    marks: Vec<Mark>,
}

impl Disk {
    /// Opens the storage for a new process. Opening syncs the folder, which makes a pending rename durable.
    pub(crate) fn open(&self) -> Self {
        self.lock().replaced = None;
        self.clone()
    }

    /// Lets an operation fail.
    pub(crate) fn fail(&self, fault: DiskFault) {
        self.lock().fault = Some(fault);
    }

    /// No operation fails any more.
    pub(crate) fn heal(&self) {
        let mut inner = self.lock();
        (inner.fault, inner.full_for) = (None, 0);
    }

    /// True if a failed sync ever dropped dirty sectors as clean.
    pub(crate) fn has_lied(&self) -> bool {
        self.lock().has_lied
    }

    /// True if `bytes` occur in every state that a power loss can leave.
    pub(crate) fn has_durably(&self, bytes: &[u8]) -> bool {
        let inner = self.lock();
        let has = |durable: &Vec<u8>| durable.windows(bytes.len()).any(|window| window == bytes);
        has(&inner.durable) && inner.replaced.as_ref().is_none_or(has)
    }

    /// Simulates a power loss: any unsynced sectors and any part of an unsynced length survive. True if anything was
    /// lost.
    pub(crate) fn lose_power(&self, random: &mut fastrand::Rng) -> bool {
        let mut inner = self.lock();
        let (old, new) = (inner.durable.len(), inner.visible.len());
        let length = [old, new, random.usize(old.min(new)..=old.max(new))][random.usize(0..3)];
        let chance = random.u32(0..3);
        let mut left = inner.durable.clone();
        left.resize(length, 0);
        for sector in std::mem::take(&mut inner.dirty) {
            if random.u32(0..2) < chance {
                copy_sector(sector, &inner.visible, &mut left);
            }
        }
        if let Some(old) = inner.replaced.take()
            && random.bool()
        {
            left = old;
        }
        let lost = left != inner.visible;
        (inner.visible, inner.durable, inner.fault) = (left.clone(), left, None);
        lost
    }

    /// True once after an operation during which the power failed.
    pub(crate) fn take_power_failure(&self) -> bool {
        std::mem::take(&mut self.lock().is_power_failing)
    }

    /// Marks since the last call.
    pub(crate) fn take_marks(&self) -> Vec<Mark> {
        std::mem::take(&mut self.lock().marks)
    }

    /// Locks the state. Poisoning is ignored, because no code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Counts an operation; the [`DiskFault::how`] of the fault if it is to fail.
    fn fails(&mut self, operation: Operation) -> Option<u32> {
        let fault = self.fault.as_mut().filter(|fault| fault.operation.is_none_or(|only| only == operation))?;
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        self.fault.take().map(|fault| fault.how)
    }

    fn write(&mut self, bytes: &[u8]) {
        let start = self.visible.len();
        self.visible.extend_from_slice(bytes);
        self.touch(start);
    }

    /// Marks every sector from byte `start` on as dirty.
    fn touch(&mut self, start: usize) {
        self.dirty.extend(start / SECTOR_BYTES..self.visible.len().div_ceil(SECTOR_BYTES));
    }
}

impl LedgerStorage for Disk {
    fn read_all(&mut self, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut inner = self.lock();
        if inner.fails(Operation::Read).is_some() {
            inner.marks.push(Mark::DiskReadFailed);
            return Err(failed());
        }
        if inner.visible.len() as u64 > bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(inner.visible.clone())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.lock();
        match inner.fails(Operation::Append) {
            None => inner.write(bytes),
            Some(how) if how % 2 == 0 => {
                inner.full_for = how / 2 % 4;
                inner.marks.push(Mark::DiskFull);
                return Err(io::ErrorKind::StorageFull.into());
            }
            Some(how) => {
                inner.write(&bytes[..how as usize % bytes.len()]);
                inner.marks.push(Mark::DiskShortWrite);
                return Err(failed());
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut inner = self.lock();
        match inner.fails(Operation::Sync) {
            Some(how) if how % 4 > 1 => {
                inner.is_power_failing = true;
                inner.marks.push(Mark::PowerLostDuringSync);
                return Err(failed());
            }
            Some(how) if how % 2 == 0 => {
                // As in some kernels, the bytes stay readable, are marked clean, and are never written.
                inner.dirty.clear();
                inner.has_lied = true;
                inner.marks.push(Mark::DiskSyncForgot);
                return Err(failed());
            }
            Some(_) => {
                inner.marks.push(Mark::DiskSyncFailed);
                return Err(failed());
            }
            None => {}
        }
        let Inner { visible, durable, dirty, .. } = &mut *inner;
        durable.resize(visible.len(), 0);
        std::mem::take(dirty).into_iter().for_each(|sector| copy_sector(sector, visible, durable));
        Ok(())
    }

    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        let mut inner = self.lock();
        if inner.fails(Operation::Cut).is_some() {
            inner.marks.push(Mark::DiskSyncFailed);
            return Err(failed());
        }
        inner.visible.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), ReplaceError> {
        let mut inner = self.lock();
        if let Some(left) = inner.full_for.checked_sub(1) {
            inner.full_for = left;
            inner.marks.push(Mark::DiskFull);
            return Err(ReplaceError::OldStays(io::ErrorKind::StorageFull.into()));
        }
        let fails = inner.fails(Operation::Replace);
        if let Some(how) = fails {
            inner.marks.push(Mark::DiskReplaceFailed);
            if how % 3 == 0 {
                return Err(ReplaceError::OldStays(failed()));
            }
        }
        let old = std::mem::replace(&mut inner.durable, bytes.to_vec());
        inner.visible = bytes.to_vec();
        inner.dirty.clear();
        // The contents before the first replacement that is not durable stay possible.
        inner.replaced = fails.map(|_| inner.replaced.take().unwrap_or(old));
        if fails.is_some() { Err(ReplaceError::Unknown(failed())) } else { Ok(()) }
    }
}

/// Writes one sector, as far as `to` reaches.
fn copy_sector(sector: usize, from: &[u8], to: &mut [u8]) {
    let start = sector * SECTOR_BYTES;
    let end = (start + SECTOR_BYTES).min(from.len()).min(to.len());
    if start < end {
        to[start..end].copy_from_slice(&from[start..end]);
    }
}

fn failed() -> io::Error {
    io::Error::other("the disk fails")
}
