//! One step of one layer over pages of its own, outside of any cache: for comparisons and measurements.

use std::ops::Range;

use muser_kernels::attention::{AttentionShape, KvLayout, PAGE_ROWS};

use super::{AttentionPlan, AttentionWorkspace, DeviceLayerPages, PlanLimits, StepSequence};
use crate::driver::{DeviceBuffer, DriverError};
use crate::queue::Queue;
use crate::queue::pages::PageCopy;

/// Form of the pages, and the rows of a step.
#[derive(Clone, Debug)]
pub struct StandaloneSpec<'a> {
    /// Heads.
    pub shape: AttentionShape,
    /// Storage of keys and values.
    pub layout: KvLayout,
    /// Positions that a query sees; `None` for all.
    pub window: Option<u32>,
    /// Positions of each sequence's rows, at least one each.
    pub positions: &'a [Range<usize>],
    /// Seed of the order in which pages lie in memory.
    pub seed: u64,
}

/// A planned step with its pages and scratch memory.
#[derive(Debug)]
pub struct StandaloneStep {
    plan: AttentionPlan,
    scratch: AttentionWorkspace,
    sequences: Vec<StepSequence>,
    /// Pages, a gap of 256 bytes after each.
    slab: DeviceBuffer<u8>,
    stride: usize,
    /// Place in the slab of each entry of the table.
    order: Vec<usize>,
    table: DeviceBuffer<u64>,
}

impl StandaloneStep {
    /// Makes pages for everything that the step's rows see, all bytes 0xff, and plans the step.
    ///
    /// # Errors
    /// The driver's refusal.
    ///
    /// # Panics
    /// If a sequence has no row, or the window is 0.
    pub fn new(queue: &mut Queue, spec: &StandaloneSpec<'_>) -> Result<Self, DriverError> {
        let (shape, layout) = (spec.shape, spec.layout);
        let rows_max = spec.positions.iter().map(Range::len).sum();
        let positions_max = spec.positions.iter().map(|positions| positions.end).sum();
        let limits = PlanLimits { rows_max, sequences_max: spec.positions.len(), positions_max };
        let context = queue.context().clone();
        let scratch = AttentionWorkspace::new(&context, shape, layout, limits)?;
        let mut plan = AttentionPlan::new(&context, shape, layout, spec.window, &scratch, limits)?;
        let (mut sequences, mut first_row, mut entries) = (Vec::new(), 0, 0);
        for positions in spec.positions {
            let (rows, position) = (positions.len(), positions.start);
            let mut sequence = StepSequence { first_row, rows, position, first_page: 0, table: entries };
            let visible = plan.visible_pages(&sequence);
            sequence.first_page = visible.start;
            (first_row, entries) = (first_row + rows, entries + visible.len());
            sequences.push(sequence);
        }
        plan.set(queue, &sequences)?;
        let stride = spec.layout.page_bytes(&spec.shape).next_multiple_of(256) + 256;
        let mut slab = DeviceBuffer::new(&context, entries * stride)?;
        queue.fill(&mut slab, 0xff);
        let order = shuffled(entries, spec.seed);
        let addresses: Vec<u64> = order.iter().map(|place| slab.address_at(place * stride)).collect();
        let mut table = DeviceBuffer::new(&context, entries)?;
        queue.stream().upload(&addresses, &mut table, 0)?;
        Ok(Self { plan, scratch, sequences, slab, stride, order, table })
    }

    /// The step's sequences, with the place of their pages in the table.
    pub fn sequences(&self) -> &[StepSequence] {
        &self.sequences
    }

    /// Pages in the table.
    pub fn pages(&self) -> usize {
        self.order.len()
    }

    /// The pages and the plan.
    pub fn layer(&self) -> DeviceLayerPages<'_> {
        // SAFETY: the table holds an address for every visible page of the plan's sequences, each of a place of its own in the
        // slab, at a multiple of 256 bytes. Slab and table live as long as the result; freeing device memory waits for what
        // was enqueued.
        unsafe { DeviceLayerPages::new(&self.plan, &self.table, 0) }
    }

    /// The pages and the plan, and the scratch memory for attention.
    pub fn layer_and_scratch(&mut self) -> (DeviceLayerPages<'_>, &mut AttentionWorkspace) {
        let Self { plan, scratch, table, .. } = self;
        // SAFETY: as in `layer`.
        (unsafe { DeviceLayerPages::new(plan, table, 0) }, scratch)
    }

    /// Fills pages `first..` of the table from canonical bytes.
    ///
    /// # Errors
    /// The error of this or of earlier work.
    ///
    /// # Panics
    /// If there are not so many pages, or one has the wrong length.
    pub fn fill(&mut self, queue: &mut Queue, first: usize, pages: &[Vec<u8>]) -> Result<(), DriverError> {
        let bytes = self.plan.layout().page_bytes(self.plan.shape());
        assert!(pages.iter().all(|page| page.len() == bytes), "pages of {bytes} bytes");
        let staging = uploaded(queue, &pages.concat())?;
        let list = self.copies(queue, &staging, first, &vec![PAGE_ROWS; pages.len()])?;
        // SAFETY: the device pages are places of this slab that do not overlap, the staging buffer holds as many canonical
        // pages, and both live until the wait below.
        unsafe { queue.unpack_pages(self.plan.shape(), self.plan.layout(), &list) };
        queue.sync()
    }

    /// The canonical bytes of pages `first..` of the table, of which `rows` rows each hold a position.
    ///
    /// # Errors
    /// The error of this or of earlier work.
    ///
    /// # Panics
    /// If there are not so many pages.
    pub fn canonical(&self, queue: &mut Queue, first: usize, rows: &[usize]) -> Result<Vec<u8>, DriverError> {
        let bytes = rows.len() * self.plan.layout().page_bytes(self.plan.shape());
        let mut staging = DeviceBuffer::new(queue.context(), bytes)?;
        queue.fill(&mut staging, 0xff);
        let list = self.copies(queue, &staging, first, rows)?;
        // SAFETY: as in `fill`; the canonical places do not overlap.
        unsafe { queue.pack_pages(self.plan.shape(), self.plan.layout(), &list) };
        queue.sync()?;
        let mut canonical = vec![0; bytes];
        queue.stream().download(&staging, 0, &mut canonical)?;
        Ok(canonical)
    }

    fn copies(
        &self,
        queue: &Queue,
        staging: &DeviceBuffer<u8>,
        first: usize,
        rows: &[usize],
    ) -> Result<DeviceBuffer<u64>, DriverError> {
        let bytes = self.plan.layout().page_bytes(self.plan.shape());
        let places = &self.order[first..first + rows.len()];
        let copy = |(number, (place, &rows)): (usize, (&usize, &usize))| PageCopy {
            device: self.slab.address_at(place * self.stride),
            canonical: staging.address_at(number * bytes),
            rows,
        };
        let copies: Vec<PageCopy> = places.iter().zip(rows).enumerate().map(copy).collect();
        uploaded(queue, &PageCopy::words(&copies))
    }
}

fn uploaded<T: crate::driver::Plain>(queue: &Queue, values: &[T]) -> Result<DeviceBuffer<T>, DriverError> {
    let mut buffer = DeviceBuffer::new(queue.context(), values.len())?;
    queue.stream().upload(values, &mut buffer, 0)?;
    Ok(buffer)
}

/// A permutation of `0..count` (Fisher and Yates, with splitmix64).
fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = seed;
    for last in (1..count).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let other = usize::try_from((z ^ z >> 31) % (last as u64 + 1)).expect("at most `last`");
        order.swap(last, other);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffled_order_has_every_place_once_and_depends_on_the_seed() {
        let (one, other) = (shuffled(100, 1), shuffled(100, 2));
        assert_ne!(one, other);
        let mut sorted = one;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..100));
        assert!(shuffled(0, 1).is_empty());
    }
}
