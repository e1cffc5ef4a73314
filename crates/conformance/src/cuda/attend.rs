//! Storing keys and values and attending over them, against the CPU's attention.

use std::ops::Range;

use muser_cuda::DeviceBuffer;
use muser_cuda::attention::{StandaloneSpec, StandaloneStep};
use muser_cuda::queue::heads::{DeviceRope, HeadRows, HeadVectors, RowBytes};
use muser_cuda::queue::quantise::DeviceNorm;
use muser_cuda::queue::{FINE, Failures};
use muser_kernels::attention::{
    AttentionJob, AttentionScratch as CpuScratch, AttentionShape, KvLayout, PAGE_ROWS, PageField,
};
use muser_kernels::cpu::Kernels;
use muser_kernels::rope::{RopeStyle, RopeTable};
use muser_kernels::rows::inverse_block;

use super::world::{CudaError, World};
use crate::operations::sequence::{PageForm, Sequence, VectorKind, head_vector};

const PLACE: u32 = 3;
/// Rows compared per case; the CPU takes long for more.
const SAMPLED_ROWS: usize = 48;

/// Query heads, key-value heads, head size: all sizes, and the ratios 1, 2, 3, 4, 8, 16.
const SHAPES: [(usize, usize, usize); 10] = [
    (32, 2, 128),
    (9, 3, 64),
    (4, 2, 128),
    (8, 8, 32),
    (8, 1, 96),
    (8, 2, 160),
    (16, 4, 256),
    (6, 2, 192),
    (5, 5, 224),
    (32, 4, 128),
];

/// `(position, rows)` of each sequence of a step.
const STEPS: [&[(usize, usize)]; 8] = [
    &[(0, 200)],
    &[(37, 100), (64, 64)],
    &[(500, 33), (130, 1), (0, 1)],
    &[(1023, 130)],
    &[(2100, 1), (70, 1), (300, 37), (0, 5), (4000, 1), (63, 1)],
    &[(4000, 80)],
    &[(3000, 1), (1, 2)],
    &[(8190, 3), (2047, 1)],
];
const WINDOWS: [Option<u32>; 4] = [None, Some(32), Some(100), Some(2048)];

/// Damage done to a case, so that some rows fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    None,
    /// A query is not finite.
    Query,
    /// A scale or an element of a stored row is not finite, negative or huge.
    Page,
}

pub(super) fn run(world: &mut World) -> Result<(), CudaError> {
    let mut rng = fastrand::Rng::with_seed(3);
    let contents = [VectorKind::Plain, VectorKind::Mixed, VectorKind::ZeroPages, VectorKind::OneLargeValue];
    let mut number = 0;
    for (heads, kv_heads, head_dim) in SHAPES {
        let shape = AttentionShape::new(heads, kv_heads, head_dim)?;
        for layout in [KvLayout::Q8, KvLayout::F16] {
            for window in WINDOWS {
                for damage in [Damage::None, Damage::None, Damage::Query, Damage::Page] {
                    let step = STEPS[number % STEPS.len()];
                    let content = contents[number / 3 % contents.len()];
                    Case { form: PageForm { shape, layout }, window, step, content, damage }.run(world, &mut rng)?;
                    number += 1;
                }
                number += 3;
            }
        }
    }
    let shape = AttentionShape::new(32, 2, 128)?;
    for (step, window) in [
        (&[(20_000, 512)][..], None),
        (&[(20_480, 96), (9000, 1)], Some(2048)),
        (&[(21_000, 1)], None),
        (&[(5000, 1), (12_000, 1), (63, 1), (8000, 17)], None),
        (&[(10_000, 300)], Some(100)),
        (&[(1984, 2048)], None),
    ] {
        let form = PageForm { shape, layout: KvLayout::Q8 };
        Case { form, window, step, content: VectorKind::Mixed, damage: Damage::None }.run(world, &mut rng)?;
    }
    // Damage under many rows, often enough that every kind of it meets a key scale.
    for number in 0..24 {
        let (form, window) = (PageForm { shape, layout: KvLayout::Q8 }, WINDOWS[number % 2 * 3]);
        let (step, content) = (&[(500, 33)][..], VectorKind::Mixed);
        Case { form, window, step, content, damage: Damage::Page }.run(world, &mut rng)?;
    }
    // Whole tiles of several segments in the general kernels.
    for (head_dim, layout) in [(64, KvLayout::Q8), (256, KvLayout::Q8), (128, KvLayout::F16), (32, KvLayout::F16)] {
        let form = PageForm { shape: AttentionShape::new(32, 2, head_dim)?, layout };
        for window in [None, Some(2048)] {
            let (step, content) = (&[(2500, 150)][..], VectorKind::Mixed);
            Case { form, window, step, content, damage: Damage::None }.run(world, &mut rng)?;
        }
    }
    Ok(())
}

/// One step.
struct Case {
    form: PageForm,
    window: Option<u32>,
    step: &'static [(usize, usize)],
    content: VectorKind,
    damage: Damage,
}

/// The step's operands on the host.
struct Operands {
    sequences: Vec<Sequence>,
    /// `[rows, query_heads * head_dim]`
    queries: Vec<f32>,
    /// `[rows, kv_heads * head_dim]`
    keys: Vec<f32>,
    values: Vec<f32>,
    /// `(sequence, position)` of each row.
    rows: Vec<(usize, usize)>,
}

/// Outputs and status of the sampled rows, by the CPU.
struct Expected {
    sampled: Vec<usize>,
    outputs: Vec<Option<Vec<f32>>>,
}

impl Case {
    fn run(&self, world: &mut World, rng: &mut fastrand::Rng) -> Result<(), CudaError> {
        let mut operands = self.operands(rng);
        let mut device = Device::new(world, self, &operands, rng)?;
        self.check_place_and_store(world, &operands, &device)?;
        let mut status = device.store(world, self, &operands)?;
        self.check_store(world, &operands, &device, &status)?;
        self.damage(world, &mut operands, &mut device, rng)?;
        let expected = self.expected(&operands, rng);
        device.attend(world, &operands, &mut status)?;
        self.compare(world, &operands, &expected, &device, &status)?;
        device.repeat(world, self, &operands, &mut status)
    }

    fn operands(&self, rng: &mut fastrand::Rng) -> Operands {
        let shape = self.form.shape;
        let (mut sequences, mut rows) = (Vec::new(), Vec::new());
        let (mut keys, mut values, mut queries) = (Vec::new(), Vec::new(), Vec::new());
        for (number, &(position, count)) in self.step.iter().enumerate() {
            let hidden = self.window.map_or(0, |window| (position + 1).saturating_sub(window as usize));
            let sequence = Sequence::random(self.form, self.content, position + count, hidden, rng);
            for position in position..position + count {
                rows.push((number, position));
                keys.extend(&sequence.keys[position]);
                values.extend(&sequence.values[position]);
            }
            sequences.push(sequence);
        }
        for _ in 0..rows.len() * shape.query_heads() {
            queries.extend(head_vector(self.content, KvLayout::Q8, shape.head_dim(), rng));
        }
        Operands { sequences, queries, keys, values, rows }
    }

    /// Placing and storing in one launch, against the two operations one after the other.
    fn check_place_and_store(&self, world: &mut World, operands: &Operands, device: &Device) -> Result<(), CudaError> {
        let (PageForm { shape, layout }, rows) = (self.form, operands.rows.len());
        let table = RopeTable::new(10_000.0, shape.head_dim(), 64, None)?;
        let angles = world.upload(table.values())?;
        let positions: Vec<u32> =
            operands.rows.iter().map(|&(_, position)| u32::try_from(position % 64).expect("small")).collect();
        let (positions, weight) = (world.upload(&positions)?, world.upload(&operands.queries[..shape.head_dim()])?);
        let rope = Some(DeviceRope { angles: &angles, pairs: shape.head_dim() / 2, style: RopeStyle::Neox });
        let spec = HeadRows { rows, head_dim: shape.head_dim(), positions: &positions, rope };
        let row_bytes = layout.page_bytes(&shape) / PAGE_ROWS;
        let mut results = Vec::new();
        // Together first: the pages' rows are junk before.
        for fused in [true, false] {
            let mut buffers =
                [world.upload(&operands.queries)?, world.upload(&operands.keys)?, world.upload(&operands.values)?];
            let (mut bytes, mut status) = (world.room(rows * row_bytes)?, world.room(rows)?);
            let [q, k, v] = &mut buffers;
            let kind = |x, heads, normed: bool, rotates, hadamard| HeadVectors {
                x,
                heads,
                norm: normed.then_some(DeviceNorm { weight: &weight, eps: 1e-6 }),
                rotates,
                hadamard: (layout == KvLayout::Q8).then_some(hadamard),
            };
            let small = inverse_block(shape.head_dim());
            let kinds = [
                kind(q, shape.query_heads(), true, true, 1.0),
                kind(k, shape.kv_heads(), true, true, small),
                kind(v, shape.kv_heads(), false, false, small),
            ];
            let layer = device.step.layer();
            let to = Some(RowBytes { bytes: &mut bytes, start: 0 });
            let mut failures = Failures { status: &mut status, place: PLACE };
            if fused {
                world.queue.place_and_store(&spec, kinds, &layer, to, &mut failures);
            } else {
                world.queue.place_heads(&spec, kinds);
                let [_, k, v] = &buffers;
                world.queue.store_kv(&layer, (k, v), to, &mut failures);
            }
            let stored = world.download(&bytes, bytes.len())?;
            let queries = world.download(&buffers[0], operands.queries.len())?;
            let table_pages = device.step.canonical(&mut world.queue, 0, &vec![PAGE_ROWS; device.step.pages()])?;
            results.push((queries, [stored, table_pages].concat(), world.download(&status, rows)?));
        }
        let [(q1, bytes1, status1), (q0, bytes0, status0)] = &results[..] else { return Ok(()) };
        world.compare(&format_args!("{self} placed queries"), shape.head_dim(), q0, q1);
        world.compare(&format_args!("{self} placed and stored"), row_bytes, bytes0, bytes1);
        world.compare(&format_args!("{self} status of both"), 1, status0, status1);
        Ok(())
    }

    /// The pages after storing the step's rows, as canonical bytes.
    fn check_store(
        &self,
        world: &mut World,
        operands: &Operands,
        device: &Device,
        status: &DeviceBuffer<u32>,
    ) -> Result<(), CudaError> {
        let found = world.download(status, operands.rows.len())?;
        world.compare(&format_args!("{self} status of storing"), 1, &vec![FINE; found.len()], &found);
        for ((sequence, place), &(position, rows)) in
            operands.sequences.iter().zip(device.step.sequences()).zip(self.step)
        {
            let end = position + rows;
            let rows_of = |page: usize| (end - page * PAGE_ROWS).min(PAGE_ROWS);
            let pages = place.first_page..end.div_ceil(PAGE_ROWS);
            let expected: Vec<u8> =
                pages.clone().flat_map(|page| sequence.rows_of_page(self.form, page, rows_of(page), 0)).collect();
            let rows: Vec<usize> = pages.map(rows_of).collect();
            let got = device.step.canonical(&mut world.queue, place.table, &rows)?;
            let width = self.form.layout.page_bytes(&self.form.shape);
            world.compare(&format_args!("{self} pages"), width, &expected, &got);
        }
        Ok(())
    }

    /// Damages operands on both sides.
    fn damage(
        &self,
        world: &mut World,
        operands: &mut Operands,
        device: &mut Device,
        rng: &mut fastrand::Rng,
    ) -> Result<(), CudaError> {
        let head_dim = self.form.shape.head_dim();
        match self.damage {
            Damage::None => {}
            Damage::Query => {
                for _ in 0..2 {
                    let at = rng.usize(..operands.queries.len());
                    operands.queries[at] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38][rng.usize(..4)];
                }
            }
            Damage::Page => {
                let number = rng.usize(..operands.sequences.len());
                let (place, (position, rows)) = (device.step.sequences()[number], self.step[number]);
                // A row that the sequence's last row sees if the window lets it.
                let damaged = (position + rows - 1).saturating_sub(rng.usize(..40));
                let page = &mut operands.sequences[number].pages[damaged / PAGE_ROWS];
                let head_bytes = page.len() / self.form.shape.kv_heads();
                let head = rng.usize(..self.form.shape.kv_heads()) * head_bytes;
                let (row, side) = (damaged % PAGE_ROWS, rng.usize(..2));
                if self.form.layout == KvLayout::Q8 {
                    let field = [PageField::KeyScales, PageField::ValueScales][side];
                    let at = head + KvLayout::Q8.field(head_dim, field).start + row * 4;
                    let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1e-3, -0.0, 3e38, 1e33];
                    page[at..at + 4].copy_from_slice(&values[rng.usize(..values.len())].to_le_bytes());
                } else {
                    let field = [PageField::Keys, PageField::Values][side];
                    let at = head
                        + KvLayout::F16.field(head_dim, field).start
                        + 2 * (row * head_dim + rng.usize(..head_dim));
                    let bits: u16 = [0x7e00, 0x7c00, 0xfc00][rng.usize(..3)];
                    page[at..at + 2].copy_from_slice(&bits.to_le_bytes());
                }
                let page = page.clone();
                let entry = place.table + damaged / PAGE_ROWS - place.first_page;
                device.step.fill(&mut world.queue, entry, &[page])?;
            }
        }
        Ok(())
    }

    /// Attends sampled rows on the CPU, each row alone, on all threads.
    fn expected(&self, operands: &Operands, rng: &mut fastrand::Rng) -> Expected {
        let rows = operands.rows.len();
        let mut sampled: Vec<usize> = (0..rows).collect();
        if rows > SAMPLED_ROWS {
            rng.shuffle(&mut sampled);
            sampled.truncate(SAMPLED_ROWS - 2);
            sampled.extend([0, rows - 1]);
            sampled.sort_unstable();
            sampled.dedup();
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut outputs: Vec<Option<Vec<f32>>> = vec![None; sampled.len()];
        let share = sampled.len().div_ceil(threads);
        std::thread::scope(|scope| {
            for (rows, outputs) in sampled.chunks(share).zip(outputs.chunks_mut(share)) {
                scope.spawn(move || {
                    for (&row, output) in rows.iter().zip(outputs) {
                        *output = self.attend_row(operands, row);
                    }
                });
            }
        });
        Expected { sampled, outputs }
    }

    /// `None` if the row fails.
    fn attend_row(&self, operands: &Operands, row: usize) -> Option<Vec<f32>> {
        let PageForm { shape, layout } = self.form;
        let (sequence, position) = operands.rows[row];
        let pages = &operands.sequences[sequence].pages;
        let page = |index: usize| pages.get(index).map(Vec::as_slice);
        let (columns, group_columns) =
            (shape.query_heads() * shape.head_dim(), shape.heads_per_kv() * shape.head_dim());
        let positions = [u32::try_from(position).expect("small")];
        let mut scratch = CpuScratch::new(&shape, 1);
        let mut output = vec![0.0; columns];
        for (kv_head, out) in output.chunks_exact_mut(group_columns).enumerate() {
            let job = AttentionJob {
                shape,
                layout,
                kv_head,
                window: self.window,
                page: &page,
                queries: &operands.queries[row * columns..][..columns],
                positions: &positions,
            };
            (Kernels::detected().attention.attend)(&job, &mut scratch, out).ok()?;
        }
        Some(output)
    }

    /// Rows that fail must be reported, and their outputs finite; the others must have the CPU's bits and no report.
    fn compare(
        &self,
        world: &mut World,
        operands: &Operands,
        expected: &Expected,
        device: &Device,
        status: &DeviceBuffer<u32>,
    ) -> Result<(), CudaError> {
        let columns = self.form.shape.query_heads() * self.form.shape.head_dim();
        let got = world.download(&device.out, operands.rows.len() * columns)?;
        let found = world.download(status, operands.rows.len())?;
        let (mut want_rows, mut got_rows, mut want_status, mut got_status) = (vec![], vec![], vec![], vec![]);
        for (&row, output) in expected.sampled.iter().zip(&expected.outputs) {
            let got = &got[row * columns..][..columns];
            want_status.push(if output.is_some() { FINE } else { PLACE });
            got_status.push(found[row]);
            match output {
                Some(output) => {
                    want_rows.extend(output);
                    got_rows.extend(got);
                }
                None => {
                    want_rows.extend(vec![0.0; columns]);
                    got_rows.extend(got.iter().map(|x| if x.is_finite() { 0.0 } else { *x }));
                }
            }
        }
        world.compare(&format_args!("{self}: rows {:?}", expected.sampled), columns, &want_rows, &got_rows);
        world.compare(&format_args!("{self} status: rows {:?}", expected.sampled), 1, &want_status, &got_status);
        Ok(())
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PageForm { shape, layout } = self.form;
        let (heads, kv_heads, head_dim) = (shape.query_heads(), shape.kv_heads(), shape.head_dim());
        write!(f, "attend {heads}/{kv_heads} x {head_dim} {layout:?} window {:?} {:?}", self.window, self.step)?;
        write!(f, " {:?} damage {:?}", self.content, self.damage)
    }
}

/// The step's operands on the device.
struct Device {
    step: StandaloneStep,
    out: DeviceBuffer<f32>,
}

impl Device {
    fn new(world: &mut World, case: &Case, operands: &Operands, rng: &mut fastrand::Rng) -> Result<Self, CudaError> {
        let PageForm { shape, layout } = case.form;
        let positions: Vec<Range<usize>> =
            case.step.iter().map(|&(position, rows)| position..position + rows).collect();
        let spec = StandaloneSpec { shape, layout, window: case.window, positions: &positions, seed: rng.u64(..) };
        let mut step = StandaloneStep::new(&mut world.queue, &spec)?;
        // Everything before the step's rows is brought in; the rows themselves are stored by the device.
        for (place, (host, &(position, _))) in
            step.sequences().to_vec().into_iter().zip(operands.sequences.iter().zip(case.step))
        {
            let whole = place.first_page..position.div_ceil(PAGE_ROWS).max(place.first_page);
            if !whole.is_empty() {
                let rows_of = |page: usize| (position - page * PAGE_ROWS).min(PAGE_ROWS);
                let before: Vec<_> =
                    whole.map(|page| host.rows_of_page(case.form, page, rows_of(page), 0xff)).collect();
                step.fill(&mut world.queue, place.table, &before)?;
            }
        }
        let out = world.room(operands.queries.len())?;
        Ok(Self { step, out })
    }

    /// Stores the step's rows; returns the status of the step.
    fn store(&self, world: &mut World, case: &Case, operands: &Operands) -> Result<DeviceBuffer<u32>, CudaError> {
        let PageForm { shape, layout } = case.form;
        let (keys, values) = (world.upload(&operands.keys)?, world.upload(&operands.values)?);
        let mut status = world.room(operands.rows.len())?;
        let row_bytes = layout.page_bytes(&shape) / PAGE_ROWS;
        let mut bytes = world.room(8 + operands.rows.len() * row_bytes)?;
        let rows = RowBytes { bytes: &mut bytes, start: 8 };
        let mut failures = Failures { status: &mut status, place: PLACE };
        world.queue.store_kv(&self.step.layer(), (&keys, &values), Some(rows), &mut failures);
        let got = world.download(&bytes, bytes.len())?.split_off(8);
        let expected = operands
            .rows
            .iter()
            .flat_map(|&(sequence, position)| operands.sequences[sequence].row_bytes(layout, &shape, position));
        world.compare(&format_args!("{case}: bytes of stored rows"), row_bytes, &expected.collect::<Vec<u8>>(), &got);
        Ok(status)
    }

    fn attend(
        &mut self,
        world: &mut World,
        operands: &Operands,
        status: &mut DeviceBuffer<u32>,
    ) -> Result<(), CudaError> {
        let queries = world.upload(&operands.queries)?;
        self.step.layer_and_scratch().1.poison(&mut world.queue);
        self.enqueue(world, &queries, status);
        Ok(world.queue.sync()?)
    }

    fn enqueue(&mut self, world: &mut World, queries: &DeviceBuffer<f32>, status: &mut DeviceBuffer<u32>) {
        let (layer, scratch) = self.step.layer_and_scratch();
        world.queue.attend(&layer, queries, scratch, &mut self.out, &mut Failures { status, place: PLACE });
    }

    /// The same again and again, with other kernels between and everything poisoned: no output may change.
    fn repeat(
        &mut self,
        world: &mut World,
        case: &Case,
        operands: &Operands,
        status: &mut DeviceBuffer<u32>,
    ) -> Result<(), CudaError> {
        let queries = world.upload(&operands.queries)?;
        let mut other = world.upload(&operands.queries)?;
        let mut first = world.room(self.out.len())?;
        std::mem::swap(&mut first, &mut self.out);
        let head_dim = case.form.shape.head_dim();
        for _ in 0..world.repeats {
            world.queue.fill(&mut self.out, 0xff);
            self.step.layer_and_scratch().1.poison(&mut world.queue);
            world.queue.add_residual(&mut other, &queries, (operands.queries.len() / head_dim, head_dim), None);
            self.enqueue(world, &queries, status);
            world.compare_on_device(&format!("{case} repeated"), &first, &self.out);
        }
        Ok(world.end_repeats()?)
    }
}
