//! Device copies of pages: found by the page's hint, believed by its stamp, dropped when room is needed.
//!
//! A copy is written through: the device writes the rows of a step into its copy, and the same rows go to the host before the
//! step ends. So a copy may be dropped at any time between two steps, and every page can be read on the host.

use std::sync::atomic::Ordering;

use muser_kernels::attention::{AttentionShape, KvLayout};
use muser_kv::Page;

use crate::driver::{Context, DeviceBuffer, DriverError, PinnedBuffer};
use crate::queue::Queue;
use crate::queue::pages::PageCopy;

/// Bytes of device memory taken at once for copies.
const SLAB_BYTES: usize = 64 << 20;
/// Pages brought to the device in one piece.
const STAGED_MAX: usize = 256;
/// Stamp of a slot without a copy: no page has it.
const NO_STAMP: u64 = 0;

/// Copies of pages of one shape and layout.
#[derive(Debug)]
pub(super) struct PageStore {
    shape: AttentionShape,
    layout: KvLayout,
    page_bytes: usize,
    slots_per_slab: usize,
    slabs_max: usize,
    slabs: Vec<DeviceBuffer<u8>>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    evictions: u64,
    step: u64,
    staging: Staging,
}

/// Room for one copy.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Stamp of the page when the copy was made or written.
    stamp: u64,
    /// Number of the last step that used it.
    step: u64,
}

/// Canonical bytes on their way to the device.
#[derive(Debug)]
struct Staging {
    host: PinnedBuffer<u8>,
    device: DeviceBuffer<u8>,
    copies: Vec<PageCopy>,
}

impl PageStore {
    /// An empty store of at most `bytes_max` bytes, but at least one slab.
    pub(super) fn new(
        context: &Context,
        shape: AttentionShape,
        layout: KvLayout,
        bytes_max: usize,
    ) -> Result<Self, DriverError> {
        let page_bytes = layout.page_bytes(&shape);
        let slots_per_slab = (SLAB_BYTES / page_bytes).max(1);
        let staged = STAGED_MAX * page_bytes;
        Ok(Self {
            shape,
            layout,
            page_bytes,
            slots_per_slab,
            slabs_max: (bytes_max / (slots_per_slab * page_bytes)).max(1),
            slabs: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            evictions: 0,
            step: 0,
            staging: Staging {
                host: PinnedBuffer::new(context, staged)?,
                device: DeviceBuffer::new(context, staged)?,
                copies: Vec::with_capacity(STAGED_MAX),
            },
        })
    }

    /// Layout of the pages.
    pub(super) fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Begins a step: copies found from here on stay until the next one begins.
    pub(super) fn begin_step(&mut self) {
        self.step += 1;
    }

    /// Address of the device copy of `page`. Without a good copy one is made of the first `rows` rows; the others may hold
    /// anything. [`Self::flush`] must come before the copy is used.
    pub(super) fn find(&mut self, queue: &mut Queue, page: &Page, rows: usize) -> Result<u64, DriverError> {
        let hint = usize::try_from(page.hint().load(Ordering::Relaxed)).unwrap_or(0);
        let known =
            hint.checked_sub(1).filter(|&slot| self.slots.get(slot).is_some_and(|copy| copy.stamp == page.stamp()));
        let slot = match known {
            Some(slot) => slot,
            None => {
                let slot = self.take(queue)?;
                self.slots[slot].stamp = page.stamp();
                page.hint().store(slot as u64 + 1, Ordering::Relaxed);
                if rows > 0 {
                    self.stage(queue, slot, page.bytes())?;
                }
                slot
            }
        };
        self.slots[slot].step = self.step;
        Ok(self.address(slot))
    }

    /// True if every copy that was found is where it was: none has had to make way yet.
    pub(super) fn is_roomy(&self) -> bool {
        self.evictions == 0
    }

    /// Records that the device copy of `page`, which this step found, has the page's present content.
    pub(super) fn has_written(&mut self, page: &Page) {
        let hint = usize::try_from(page.hint().load(Ordering::Relaxed)).unwrap_or(0);
        if let Some(slot) = hint.checked_sub(1).and_then(|slot| self.slots.get_mut(slot)) {
            slot.stamp = page.stamp();
        }
    }

    /// Drops every copy: after a failure nobody knows what they hold.
    pub(super) fn forget(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.stamp = NO_STAMP);
        self.staging.copies.clear();
    }

    /// Brings what was staged to the device, and waits until the staging room may be used again.
    pub(super) fn flush(&mut self, queue: &mut Queue) -> Result<(), DriverError> {
        let Staging { host, device, copies } = &mut self.staging;
        if copies.is_empty() {
            return Ok(());
        }
        let bytes = copies.len() * self.page_bytes;
        // SAFETY: the pinned bytes change in `stage` alone, which comes after the wait below.
        unsafe { queue.stream().upload_pinned(host, 0..bytes, device, 0)? };
        let words = PageCopy::words(copies);
        let mut list = DeviceBuffer::new(queue.context(), words.len())?;
        queue.stream().upload(&words, &mut list, 0)?;
        // SAFETY: every address lies in a slot of its own or in the staging buffer, both of which live as long as `self`;
        // the list lives until the wait below.
        unsafe { queue.unpack_pages((&self.shape, self.layout), &list) };
        copies.clear();
        queue.sync()
    }

    fn stage(&mut self, queue: &mut Queue, slot: usize, bytes: &[u8]) -> Result<(), DriverError> {
        if self.staging.copies.len() == STAGED_MAX {
            self.flush(queue)?;
        }
        let device = self.address(slot);
        let Staging { host, device: staged, copies } = &mut self.staging;
        let at = copies.len() * self.page_bytes;
        host.as_mut_slice()[at..at + self.page_bytes].copy_from_slice(bytes);
        copies.push(PageCopy { device, canonical: staged.address_at(at), rows: 64 });
        Ok(())
    }

    fn address(&self, slot: usize) -> u64 {
        self.slabs[slot / self.slots_per_slab].address_at(slot % self.slots_per_slab * self.page_bytes)
    }

    /// A slot without a copy.
    fn take(&mut self, queue: &mut Queue) -> Result<usize, DriverError> {
        if self.free.is_empty() {
            match self.grow(queue.context()) {
                Ok(()) => {}
                Err(refused) if !self.evict() => return Err(refused),
                Err(_) => {}
            }
        }
        Ok(self.free.pop().expect("a slab or an eviction gave at least one slot"))
    }

    fn grow(&mut self, context: &Context) -> Result<(), DriverError> {
        let bytes = self.slots_per_slab * self.page_bytes;
        if self.slabs.len() == self.slabs_max {
            return Err(DriverError::OutOfMemory { place: "device memory for pages", bytes, free: 0 });
        }
        self.slabs.push(DeviceBuffer::new(context, bytes)?);
        let first = self.slots.len();
        self.slots.resize(first + self.slots_per_slab, Slot { stamp: NO_STAMP, step: 0 });
        self.free.extend((first..self.slots.len()).rev());
        Ok(())
    }

    /// Frees the quarter of the copies that were not used for longest, none of this step. False if there is none.
    fn evict(&mut self) -> bool {
        let mut idle: Vec<usize> = (0..self.slots.len()).filter(|&slot| self.slots[slot].step < self.step).collect();
        idle.sort_unstable_by_key(|&slot| self.slots[slot].step);
        idle.truncate((idle.len() / 4).max(1));
        for &slot in &idle {
            self.slots[slot].stamp = NO_STAMP;
        }
        self.free.extend(&idle);
        self.evictions += 1;
        !idle.is_empty()
    }
}
