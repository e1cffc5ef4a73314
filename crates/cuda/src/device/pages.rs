//! Device copies of pages: found by the page's hint, believed by its stamp, dropped when room is needed (`slots`).
//!
//! A copy is written through: the device writes the rows of a step into its copy, and the same rows go to the host before the
//! step ends. So a copy may be dropped at any time between two steps, and every page can be read on the host.

use muser_kernels::attention::{AttentionShape, KvLayout};
use muser_kv::Page;

use super::CudaLimits;
use super::slots::{Found, NoSlot, PageKey, PageSlots};
use crate::driver::{Context, DeviceBuffer, DriverError, PinnedBuffer};
use crate::queue::Queue;
use crate::queue::pages::PageCopy;

/// Pages brought to the device in one piece.
const STAGED_MAX: usize = 256;

/// Bytes of device memory for canonical pages on their way.
pub(crate) fn staging_bytes(page_bytes: usize) -> usize {
    STAGED_MAX * page_bytes
}

/// Copies of pages of one shape and layout.
#[derive(Debug)]
pub(super) struct PageStore {
    shape: AttentionShape,
    layout: KvLayout,
    page_bytes: usize,
    slots_per_slab: usize,
    slabs: Vec<DeviceBuffer<u8>>,
    slots: PageSlots,
    staging: Staging,
}

/// Canonical bytes on their way to the device.
#[derive(Debug)]
struct Staging {
    host: PinnedBuffer<u8>,
    device: DeviceBuffer<u8>,
    copies: Vec<PageCopy>,
    /// Slot of each copy.
    slots: Vec<usize>,
}

impl PageStore {
    /// An empty store of at most `limits.page_bytes_max` bytes, but at least one slab.
    pub(super) fn new(
        context: &Context,
        shape: AttentionShape,
        layout: KvLayout,
        limits: CudaLimits,
    ) -> Result<Self, DriverError> {
        let page_bytes = layout.page_bytes(&shape);
        let slots_per_slab = (limits.page_slab_bytes / page_bytes).max(1);
        let staged = staging_bytes(page_bytes);
        Ok(Self {
            shape,
            layout,
            page_bytes,
            slots_per_slab,
            slabs: Vec::new(),
            slots: PageSlots::new(slots_per_slab, limits.page_bytes_max / (slots_per_slab * page_bytes)),
            staging: Staging {
                host: PinnedBuffer::new(context, staged)?,
                device: DeviceBuffer::new(context, staged)?,
                copies: Vec::with_capacity(STAGED_MAX),
                slots: Vec::with_capacity(STAGED_MAX),
            },
        })
    }

    /// Layout of the pages.
    pub(super) fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Begins a step: copies found from here on stay until the next one begins.
    pub(super) fn begin_step(&mut self) {
        self.slots.begin_step();
    }

    /// Slot of the device copy of `page`. Without a good copy one is made of the first `rows` rows; the others may hold
    /// anything. [`Self::flush`] must come before the copy is used. `mark_used` is called before a copy is dropped, and marks
    /// what the step uses without looking for it.
    pub(super) fn find(
        &mut self,
        queue: &mut Queue,
        page: &Page,
        rows: usize,
        mark_used: &mut dyn FnMut(&mut PageSlots),
    ) -> Result<usize, DriverError> {
        let bytes = self.slots_per_slab * self.page_bytes;
        let slabs = &mut self.slabs;
        let mut add_slab = || DeviceBuffer::new(queue.context(), bytes).map(|slab| slabs.push(slab));
        let found = self.slots.find(key_of(page), &mut add_slab, mark_used).map_err(|none| match none {
            NoSlot::Exhausted => {
                DriverError::OutOfMemory { place: "device memory for pages", bytes: self.page_bytes, free: 0 }
            }
            NoSlot::NoSlab(refused) => refused,
        })?;
        match found {
            Found::Copied(slot) => Ok(slot),
            Found::Taken(slot) => {
                let staged = if rows > 0 { self.stage(queue, slot, page.bytes()) } else { Ok(()) };
                staged.inspect_err(|_| self.slots.forget(slot))?;
                Ok(slot)
            }
        }
    }

    /// Records that `slot`, which this step found for `page`, has the page's present content.
    pub(super) fn has_written(&mut self, slot: usize, page: &Page) {
        self.slots.set_stamp(slot, page.stamp());
    }

    /// Drops every copy: after a failure their contents are unknown.
    pub(super) fn forget(&mut self) {
        self.slots.forget_all();
        self.staging.copies.clear();
        self.staging.slots.clear();
    }

    /// Drops the copies that were staged and not made: the step does not take place. The others are as good as before.
    pub(super) fn abandon_staged(&mut self) {
        self.staging.copies.clear();
        self.staging.slots.drain(..).for_each(|slot| self.slots.forget(slot));
    }

    /// Brings what was staged to the device, and waits until the staging room may be used again.
    pub(super) fn flush(&mut self, queue: &mut Queue) -> Result<(), DriverError> {
        let Staging { host, device, copies, slots } = &mut self.staging;
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
        unsafe { queue.unpack_pages(&self.shape, self.layout, &list) };
        queue.sync()?;
        copies.clear();
        slots.clear();
        Ok(())
    }

    fn stage(&mut self, queue: &mut Queue, slot: usize, bytes: &[u8]) -> Result<(), DriverError> {
        if self.staging.copies.len() == STAGED_MAX {
            self.flush(queue)?;
        }
        let device = self.address(slot);
        let Staging { host, device: staged, copies, slots } = &mut self.staging;
        let at = copies.len() * self.page_bytes;
        host.as_mut_slice()[at..at + self.page_bytes].copy_from_slice(bytes);
        copies.push(PageCopy { device, canonical: staged.address_at(at), rows: 64 });
        slots.push(slot);
        Ok(())
    }

    /// Device address of a slot.
    pub(super) fn address(&self, slot: usize) -> u64 {
        self.slabs[slot / self.slots_per_slab].address_at(slot % self.slots_per_slab * self.page_bytes)
    }
}

/// A page as its store sees it.
pub(super) fn key_of(page: &Page) -> PageKey<'_> {
    PageKey { stamp: page.stamp(), hint: page.hint() }
}
