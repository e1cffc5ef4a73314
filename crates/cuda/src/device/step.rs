//! The pages of a step: where the device keeps them, the plans of attention over them, and the way of new rows to the host.

use std::ops::Range;

use muser_kernels::attention::{AttentionShape, KvLayout, PAGE_ROWS};
use muser_kv::{LayerSpec, PageLayout};
use muser_model::SequenceInput;

use super::pages::{PageStore, key_of};
use super::slots::PageSlots;
use super::{CudaLimits, layout_of};
use crate::attention::{AttentionPlan, AttentionWorkspace, DeviceLayerPages, PlanLimits, StepSequence};
use crate::driver::{Context, CudaEvent, DeviceBuffer, DriverError, PinnedBuffer, Stream};
use crate::queue::Queue;
use crate::queue::heads::RowBytes;

/// Pages and plans of the current step.
#[derive(Debug)]
pub(super) struct StepState {
    shape: AttentionShape,
    limits: CudaLimits,
    plan_limits: PlanLimits,
    /// One for each layout that steps have had.
    stores: Vec<Store>,
    /// The store of the current step.
    store: usize,
    plans: Vec<Plan>,
    layers: Vec<LayerOfStep>,
    layout: KvLayout,
    table: PageTable,
    /// Slots known of each sequence of the step, in its order.
    known: Vec<KnownSequence>,
    /// Slots of the pages that are being looked for.
    found: Vec<usize>,
    /// Every copy that the step uses is marked, for the first time that one has to make way.
    is_marked: bool,
    rows_out: RowsOut,
    /// A step began and its rows did not all reach the host: no copy can be trusted.
    is_open: bool,
}

/// Pages of one layout, and the room that attention over them takes.
#[derive(Debug)]
struct Store {
    pages: PageStore,
    scratch: AttentionWorkspace,
}

/// The plan of the layers with one window, for caches of one layout.
#[derive(Debug)]
struct Plan {
    window: Option<u32>,
    layout: KvLayout,
    plan: AttentionPlan,
    sequences: Vec<StepSequence>,
}

/// One layer in the current step.
#[derive(Clone, Copy, Debug)]
struct LayerOfStep {
    plan: usize,
    /// First entry of its part of the page table.
    table_start: usize,
}

/// Slots of a sequence's pages in the last step that it was part of, which is the one before. All but the last page's hold as
/// long as its cache has the same lineage, so that a long sequence is not looked through for every token; a copy that makes way
/// in the meantime is not one of them.
#[derive(Debug)]
struct KnownSequence {
    lineage: u64,
    layers: Vec<KnownLayer>,
}

/// Slots of consecutive pages from absolute page `first` on.
#[derive(Debug, Default)]
struct KnownLayer {
    first: usize,
    slots: Vec<usize>,
}

/// Addresses of the step's pages, layer by layer.
#[derive(Debug)]
struct PageTable {
    entries: Vec<u64>,
    device: DeviceBuffer<u64>,
}

/// Canonical bytes of the step's new rows on their way to the host, `[layers][rows_max][row bytes]`.
#[derive(Debug)]
struct RowsOut {
    stream: Stream,
    device: DeviceBuffer<u8>,
    host: Vec<PinnedBuffer<u8>>,
    stored: Vec<CudaEvent>,
    arrived: Vec<CudaEvent>,
    /// Layers whose rows were stored in this step, in that order.
    layers: Vec<usize>,
    row_bytes: usize,
}

impl StepState {
    /// State for steps over layers of `shape`, of sequences of up to `positions_max` positions.
    pub(super) fn new(
        context: &Context,
        shape: AttentionShape,
        limits: CudaLimits,
        positions_max: usize,
    ) -> Result<Self, DriverError> {
        let rows_max = limits.rows_max;
        Ok(Self {
            shape,
            limits,
            plan_limits: PlanLimits { rows_max, sequences_max: rows_max, positions_max },
            stores: Vec::new(),
            store: 0,
            plans: Vec::new(),
            layers: Vec::new(),
            layout: KvLayout::Q8,
            known: Vec::new(),
            found: Vec::new(),
            is_marked: false,
            table: PageTable { entries: Vec::new(), device: DeviceBuffer::new(context, 0)? },
            rows_out: RowsOut::new(context)?,
            is_open: false,
        })
    }

    /// Finds or makes device copies of every page that the step's rows see, and plans its attention. After an error no step is
    /// under way, and the copies that were there before are as good as they were.
    pub(super) fn begin(&mut self, queue: &mut Queue, batch: &[SequenceInput<'_>]) -> Result<(), DriverError> {
        if self.is_open {
            self.stores.iter_mut().for_each(|store| store.pages.forget());
            self.known.clear();
            self.is_open = false;
        }
        self.layout = layout_of(batch);
        let Some(first) = batch.first() else { return Ok(()) };
        let layers = first.cache.spec().layers();
        self.rows_out.begin(queue.context(), first.cache.spec().layout(), [layers.len(), self.limits.rows_max])?;
        self.store = self.find_store(queue.context())?;
        let begun = self.find_all_pages(queue, layers, batch);
        if begun.is_err() {
            self.stores[self.store].pages.abandon_staged();
            self.known.clear();
        }
        self.is_open = begun.is_ok();
        begun
    }

    /// Makes the page table of the step, and brings it and every page that it names to the device.
    fn find_all_pages(
        &mut self,
        queue: &mut Queue,
        layers: &[LayerSpec],
        batch: &[SequenceInput<'_>],
    ) -> Result<(), DriverError> {
        self.stores[self.store].pages.begin_step();
        self.is_marked = false;
        self.plans.iter_mut().for_each(|plan| plan.sequences.clear());
        self.layers.clear();
        self.table.entries.clear();
        self.recall(batch, layers.len());
        for layer in layers {
            let plan = self.plan(queue, layer.window, batch)?;
            self.layers.push(LayerOfStep { plan, table_start: 0 });
        }
        for index in 0..layers.len() {
            self.layers[index].table_start = self.table.entries.len();
            for number in 0..batch.len() {
                self.find_pages(queue, index, number, batch)?;
            }
        }
        self.stores[self.store].pages.flush(queue)?;
        self.table.upload(queue)
    }

    /// Puts the sequences of the step in their places among the known ones, and forgets the others.
    fn recall(&mut self, batch: &[SequenceInput<'_>], layers: usize) {
        let mut before = std::mem::take(&mut self.known);
        self.known.extend(batch.iter().map(|input| {
            let lineage = input.cache.lineage();
            match before.iter().position(|known| known.lineage == lineage && known.layers.len() == layers) {
                Some(index) => before.swap_remove(index),
                None => KnownSequence { lineage, layers: (0..layers).map(|_| KnownLayer::default()).collect() },
            }
        }));
        // The last page may have had room: a step that extended the cache since wrote there, so its stamp is compared.
        for layer in self.known.iter_mut().flat_map(|known| &mut known.layers) {
            layer.slots.pop();
        }
    }

    /// Appends the addresses of the pages of layer `index` that sequence `number` sees to the page table.
    fn find_pages(
        &mut self,
        queue: &mut Queue,
        index: usize,
        number: usize,
        batch: &[SequenceInput<'_>],
    ) -> Result<(), DriverError> {
        let Self { plans, layers, known, found, is_marked, stores, store, table, .. } = self;
        let store = &mut stores[*store].pages;
        let (pages, rows) = (batch[number].cache.pages(index), batch[number].cache.rows());
        let layer = &known[number].layers[index];
        let visible = layers[index].visible_pages(plans, number);
        let mut mark_used = |slots: &mut PageSlots| {
            if !std::mem::replace(is_marked, true) {
                mark_step(slots, plans, layers, known, batch);
            }
        };
        found.clear();
        for page in visible.clone() {
            let slot = page.checked_sub(layer.first).and_then(|at| layer.slots.get(at)).copied();
            let slot = match slot {
                Some(slot) => slot,
                None => {
                    let held = &pages.as_slice()[page - pages.first_page()];
                    store.find(queue, held, rows.saturating_sub(page * PAGE_ROWS), &mut mark_used)?
                }
            };
            found.push(slot);
            table.entries.push(store.address(slot));
        }
        let layer = &mut known[number].layers[index];
        layer.first = visible.start;
        std::mem::swap(&mut layer.slots, found);
        Ok(())
    }

    /// Pages of layer `index` in this step, and the room for attention over them.
    pub(super) fn layer_and_scratch(&mut self, index: usize) -> (DeviceLayerPages<'_>, &mut AttentionWorkspace) {
        let Self { plans, layers, table, stores, store, .. } = self;
        let layer = layers[index];
        // SAFETY: `begin` has put the address of every visible page there. Slots and table stay as they are until the next
        // step begins, which waits for this one; a page with pending rows belongs to one cache.
        let pages = unsafe { DeviceLayerPages::new(&plans[layer.plan].plan, &table.device, layer.table_start) };
        (pages, &mut stores[*store].scratch)
    }

    /// Pages of layer `index`, and the place on the device for the canonical bytes of its new rows.
    pub(super) fn layer_and_rows_out(&mut self, index: usize) -> (DeviceLayerPages<'_>, RowBytes<'_>) {
        let start = self.rows_out_range(index, 0).start;
        let Self { plans, layers, table, rows_out, .. } = self;
        let layer = layers[index];
        // SAFETY: as in `layer_and_scratch`.
        let pages = unsafe { DeviceLayerPages::new(&plans[layer.plan].plan, &table.device, layer.table_start) };
        (pages, RowBytes { bytes: &mut rows_out.device, start })
    }

    /// Bytes of `rows` new rows of layer `index` on the device.
    fn rows_out_range(&self, index: usize, rows: usize) -> Range<usize> {
        let start = index * self.limits.rows_max * self.rows_out.row_bytes;
        start..start + rows * self.rows_out.row_bytes
    }

    /// Sends the rows of layer `index`, which the queue has been told to store, to the host, beside what the queue does next.
    pub(super) fn send_rows(&mut self, queue: &mut Queue, index: usize, rows: usize) -> Result<(), DriverError> {
        let range = self.rows_out_range(index, rows);
        let RowsOut { stream, device, host, stored, arrived, layers, .. } = &mut self.rows_out;
        stored[index].record(queue.stream())?;
        stream.wait(&stored[index])?;
        // SAFETY: `receive` reads the pinned bytes after waiting for the event behind this copy, and before the next step.
        unsafe { stream.download_pinned(device, range, &mut host[index])? };
        arrived[index].record(stream)?;
        layers.push(index);
        Ok(())
    }

    /// Writes the rows that were sent into their pages, layer by layer as they arrive.
    pub(super) fn receive(&mut self, batch: &mut [SequenceInput<'_>]) -> Result<(), DriverError> {
        let Some(first) = batch.first() else { return Ok(()) };
        let layout = first.cache.spec().layout();
        let store = &mut self.stores[self.store].pages;
        for index in std::mem::take(&mut self.rows_out.layers) {
            self.rows_out.arrived[index].synchronize()?;
            let mut rows = self.rows_out.host[index].as_slice().chunks_exact(layout.row_bytes());
            for (input, known) in batch.iter_mut().zip(&self.known) {
                let known = &known.layers[index];
                let positions = input.cache.rows()..input.cache.rows() + input.tokens.len();
                for (page, bytes) in input.cache.pending_pages_mut(index) {
                    let first = positions.start.max(page * PAGE_ROWS);
                    let end = positions.end.min((page + 1) * PAGE_ROWS);
                    for (position, row) in (first..end).zip(&mut rows) {
                        layout.write_row(bytes, position % PAGE_ROWS, row);
                    }
                }
                let pages = input.cache.pages(index);
                for page in input.cache.pending_pages() {
                    store.has_written(known.slots[page - known.first], &pages.as_slice()[page - pages.first_page()]);
                }
            }
        }
        self.is_open = false;
        Ok(())
    }

    /// The store of the step's layout, made where there is none yet.
    fn find_store(&mut self, context: &Context) -> Result<usize, DriverError> {
        let (shape, layout) = (self.shape, self.layout);
        match self.stores.iter().position(|store| store.pages.layout() == layout) {
            Some(known) => Ok(known),
            None => {
                let scratch = AttentionWorkspace::new(context, shape, layout, self.plan_limits)?;
                let pages = PageStore::new(context, shape, layout, self.limits)?;
                self.stores.push(Store { pages, scratch });
                Ok(self.stores.len() - 1)
            }
        }
    }

    /// The plan of layers with `window`, set to the step's rows.
    fn plan(
        &mut self,
        queue: &mut Queue,
        window: Option<u32>,
        batch: &[SequenceInput<'_>],
    ) -> Result<usize, DriverError> {
        let (shape, layout) = (self.shape, self.layout);
        let known = self.plans.iter().position(|plan| (plan.window, plan.layout) == (window, layout));
        let index = match known {
            Some(index) => index,
            None => {
                let (scratch, limits) = (&self.stores[self.store].scratch, self.plan_limits);
                let plan = AttentionPlan::new(queue.context(), shape, layout, window, scratch, limits)?;
                self.plans.push(Plan { window, layout, plan, sequences: Vec::new() });
                self.plans.len() - 1
            }
        };
        let Plan { plan, sequences, .. } = &mut self.plans[index];
        if sequences.is_empty() {
            let mut table = 0;
            for input in batch {
                let (first_row, rows, position) = (input.first_row(), input.tokens.len(), input.cache.rows());
                let mut sequence = StepSequence { first_row, rows, position, first_page: 0, table };
                let visible = plan.visible_pages(&sequence);
                sequence.first_page = visible.start;
                table += visible.len();
                sequences.push(sequence);
            }
            plan.set(queue, sequences)?;
        }
        Ok(index)
    }
}

impl LayerOfStep {
    /// Absolute indices of the pages that the rows of sequence `number` see.
    fn visible_pages(&self, plans: &[Plan], number: usize) -> Range<usize> {
        let Plan { plan, sequences, .. } = &plans[self.plan];
        plan.visible_pages(&sequences[number])
    }
}

/// Marks the slots that are known for the sequences of a step, and those of its other pages that have a copy.
fn mark_step(
    slots: &mut PageSlots,
    plans: &[Plan],
    layers: &[LayerOfStep],
    known: &[KnownSequence],
    batch: &[SequenceInput<'_>],
) {
    known.iter().flat_map(|known| &known.layers).flat_map(|layer| &layer.slots).for_each(|slot| slots.mark(*slot));
    for (index, layer) in layers.iter().enumerate() {
        for (number, input) in batch.iter().enumerate() {
            let pages = input.cache.pages(index);
            for page in layer.visible_pages(plans, number) {
                slots.mark_page(key_of(&pages.as_slice()[page - pages.first_page()]));
            }
        }
    }
}

impl PageTable {
    /// Brings the entries to the device; the step before has ended.
    fn upload(&mut self, queue: &mut Queue) -> Result<(), DriverError> {
        if self.device.len() < self.entries.len() {
            self.device = DeviceBuffer::new(queue.context(), self.entries.len().next_power_of_two())?;
        }
        queue.stream().upload(&self.entries, &mut self.device, 0)
    }
}

impl RowsOut {
    fn new(context: &Context) -> Result<Self, DriverError> {
        Ok(Self {
            stream: Stream::new(context)?,
            device: DeviceBuffer::new(context, 0)?,
            host: Vec::new(),
            stored: Vec::new(),
            arrived: Vec::new(),
            layers: Vec::new(),
            row_bytes: 0,
        })
    }

    /// Makes room for the rows of every layer of a cache with this layout.
    fn begin(
        &mut self,
        context: &Context,
        layout: PageLayout,
        [layers, rows_max]: [usize; 2],
    ) -> Result<(), DriverError> {
        self.layers.clear();
        if self.row_bytes != layout.row_bytes() || self.host.len() != layers {
            let bytes = rows_max * layout.row_bytes();
            self.device = DeviceBuffer::new(context, layers * bytes)?;
            self.host = (0..layers).map(|_| PinnedBuffer::new(context, bytes)).collect::<Result<_, _>>()?;
            self.stored = (0..layers).map(|_| CudaEvent::new(context)).collect::<Result<_, _>>()?;
            self.arrived = (0..layers).map(|_| CudaEvent::new(context)).collect::<Result<_, _>>()?;
            self.row_bytes = layout.row_bytes();
        }
        Ok(())
    }
}
