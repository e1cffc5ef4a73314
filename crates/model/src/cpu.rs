//! The CPU as a device of the graph: it executes every operation at once, on buffers of the host.

use std::num::NonZeroUsize;
use std::sync::Arc;

use muser_kernels::activations::{Activations, FormatSet};
use muser_kernels::arena::{ArenaPlan, ArenaRange};
use muser_kernels::attention::AttentionShape;
use muser_kernels::cpu::{
    AttentionLayer, AttentionOutput, Cpu, HeadPlacement, HeadTransform, LogitsBend, Product, RowNorm, RowStatus,
    SequenceRows, WritablePage,
};
use muser_kernels::embedding::EmbeddingTable;
use muser_kernels::matrix::{Matrix, MatrixPlan};
use muser_kernels::pool::Pool;
use muser_kv::{PAGE_ROWS, Page};

use crate::device::{
    Addend, Device, DeviceDescription, DeviceError, DeviceProduct, KvLayer, Placement, Prepare, PreparedWeights,
    RawMatrix,
};
use crate::layer::{Form, Norm};
use crate::load::LoadError;
use crate::step::SequenceInput;

impl Form for Cpu {
    type Matrix = Matrix;
    type Vector = Vec<f32>;
}

impl Device for Cpu {
    type Table = EmbeddingTable;
    type Rows = Vec<f32>;
    type Activations = Activations;
    type Mixed = AttentionOutput;
    type Needs = FormatSet;

    fn needs(matrix: &Matrix, _rows: usize) -> FormatSet {
        FormatSet::EMPTY.with(matrix.activation())
    }

    fn new_rows(&mut self, rows: usize, width: usize) -> Result<Vec<f32>, DeviceError> {
        Ok(vec![0.0; rows * width])
    }

    fn new_activations(&mut self, rows: usize, cols: usize) -> Result<Activations, DeviceError> {
        Ok(Activations::new(rows, cols))
    }

    fn new_mixed(&mut self, shape: &AttentionShape, rows: usize) -> Result<AttentionOutput, DeviceError> {
        Ok(AttentionOutput::new(shape, rows))
    }

    fn begin_step(&mut self, positions: &[u32], _batch: &[SequenceInput<'_>]) -> Result<(), DeviceError> {
        Cpu::begin_step(self, positions);
        Ok(())
    }

    fn set_site(&mut self, site: u32) {
        Cpu::set_site(self, site);
    }

    fn embed(&mut self, table: &EmbeddingTable, tokens: &[u32], norm_eps: Option<f32>, out: &mut Vec<f32>) {
        Cpu::embed(self, table, tokens, norm_eps, out);
    }

    fn norm_quantise(
        &mut self,
        hidden: &mut Vec<f32>,
        addend: Option<Addend<'_, Self>>,
        norm: &Norm,
        needs: FormatSet,
        out: &mut Activations,
    ) {
        if let Some(addend) = addend {
            Device::add_residual(self, hidden, addend, norm.width);
        }
        Cpu::norm_quantise(self, hidden, row_norm(norm), needs, out);
    }

    fn norm_quantise_selected(
        &mut self,
        hidden: &mut Vec<f32>,
        selected: &[usize],
        norm: &Norm,
        needs: FormatSet,
        out: &mut Activations,
    ) {
        Cpu::norm_quantise_selected(self, hidden, selected, row_norm(norm), needs, out);
    }

    fn matmul<const N: usize>(&mut self, activations: &Activations, products: [DeviceProduct<'_, Self>; N]) {
        Cpu::matmul(self, activations, products.map(product));
    }

    fn place_and_store(
        &mut self,
        layer: &KvLayer,
        heads: [&mut Vec<f32>; 3],
        placements: &[Placement<'_, Vec<f32>>; 3],
        batch: &mut [SequenceInput<'_>],
    ) {
        let [query, key, value] = heads;
        for (x, placement) in [&mut *query, &mut *key, &mut *value].into_iter().zip(placements) {
            let &Placement { width, head_dim, norm, rope, transform } = placement;
            if norm.is_some() || rope.is_some() || transform.is_some() {
                Cpu::place_heads(
                    self,
                    x,
                    &HeadPlacement { width, head_dim, norm: norm.map(row_norm), rope, transform },
                );
            }
        }
        Cpu::store_kv(self, &attention_layer(layer), (key, value), writable_pages(batch, layer.index));
    }

    fn attend(&mut self, layer: &KvLayer, query: &Vec<f32>, batch: &[SequenceInput<'_>], out: &mut AttentionOutput) {
        Cpu::attend(self, &attention_layer(layer), query, |number| sequence_rows(batch, layer.index, number), out);
    }

    fn gate_quantise(
        &mut self,
        mixed: &AttentionOutput,
        gate: Option<&Vec<f32>>,
        transform: Option<HeadTransform>,
        needs: FormatSet,
        out: &mut Activations,
    ) {
        Cpu::gate_quantise(self, mixed, gate.map(Vec::as_slice), transform, needs, out);
    }

    fn silu_mul_quantise(
        &mut self,
        gate: &Vec<f32>,
        up: &Vec<f32>,
        cols: usize,
        needs: FormatSet,
        out: &mut Activations,
    ) {
        Cpu::silu_mul_quantise(self, gate, up, cols, needs, out);
    }

    fn add_residual(&mut self, hidden: &mut Vec<f32>, addend: Addend<'_, Self>, cols: usize) {
        Cpu::add_residual(self, hidden, addend.rows, cols, addend.post_norm.map(row_norm));
    }

    fn bend_logits(&mut self, logits: &mut Vec<f32>, selected: &[usize], bend: &LogitsBend) {
        Cpu::bend_logits(self, logits, selected, bend);
    }

    fn logits<'a>(
        &'a mut self,
        logits: &'a Vec<f32>,
        values: usize,
    ) -> Result<(&'a [f32], &'a [RowStatus]), DeviceError> {
        Ok((&logits[..values], Cpu::row_status(self)))
    }

    fn row_status(&mut self) -> Result<&[RowStatus], DeviceError> {
        Ok(Cpu::row_status(self))
    }

    fn read_rows(&mut self, rows: &Vec<f32>, out: &mut [f32]) -> Result<(), DeviceError> {
        out.copy_from_slice(&rows[..out.len()]);
        Ok(())
    }

    fn write_rows(&mut self, values: &[f32], rows: &mut Vec<f32>) -> Result<(), DeviceError> {
        rows[..values.len()].copy_from_slice(values);
        Ok(())
    }

    /// Pages are written in place, so there is nothing to wait for.
    fn store_pending(&mut self, _batch: &mut [SequenceInput<'_>]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn describe(&self) -> DeviceDescription {
        DeviceDescription { name: "cpu", kernels: self.kernels().name().to_owned(), threads: self.threads() }
    }
}

/// Packs a model's matrices for the CPU's kernels, and copies its embedding table beside them.
#[derive(Clone, Copy, Debug)]
pub struct PrepareForCpu {
    /// Threads that pack.
    pub threads: NonZeroUsize,
}

impl Prepare for PrepareForCpu {
    type Device = Cpu;

    /// Reports each tensor as soon as its raw bytes are packed, so that the caller can give them up and a model's memory is
    /// not paid twice.
    fn prepare(
        &mut self,
        table: &RawMatrix<'_>,
        matrices: &[RawMatrix<'_>],
        progress: &mut dyn FnMut(&str),
    ) -> Result<PreparedWeights<Cpu>, LoadError> {
        let Planned { arena, table_range, ranges } = Planned::new(table, matrices, progress)?;
        let bytes = arena.bytes();
        let mut pool = Pool::new(self.threads)?;
        let mut builder = arena.allocate()?;
        let mut slices = builder.slices_mut().into_iter();
        if let Some(out) = slices.next() {
            pool.for_each_chunk(out, COPY_BYTES, |_, chunk, out| {
                out.copy_from_slice(&table.bytes[chunk * COPY_BYTES..][..out.len()]);
            });
            progress(&table.name);
        }
        for ((raw, (plan, _)), out) in matrices.iter().zip(&ranges).zip(slices) {
            pool.for_each_chunk(out, plan.panel_bytes(), |_, panel, out| plan.fill_panel(raw.bytes, panel, out));
            progress(&raw.name);
        }
        let arena = builder.freeze();
        let packed = |(raw, (plan, range)): (&RawMatrix<'_>, (MatrixPlan, ArenaRange))| {
            let matrix = Matrix::new(plan, Arc::clone(&arena), range);
            raw.scale.map_or(matrix.clone(), |scale| matrix.with_scale(scale))
        };
        let matrices = matrices.iter().zip(ranges).map(packed).collect();
        let table = EmbeddingTable::new(table.ty, [table.rows, table.cols], Arc::clone(&arena), table_range);
        Ok(PreparedWeights { table, matrices, bytes })
    }

    fn vector(&mut self, values: Vec<f32>) -> Result<Vec<f32>, LoadError> {
        Ok(values)
    }
}

/// Bytes of the embedding table that a thread copies in one piece.
const COPY_BYTES: usize = 1 << 20;

/// Ranges of an arena for the embedding table and the matrices.
pub(crate) struct Planned {
    pub(crate) arena: ArenaPlan,
    table_range: ArenaRange,
    ranges: Vec<(MatrixPlan, ArenaRange)>,
}

impl Planned {
    /// Looks at every matrix once: its packed size depends on its values.
    pub(crate) fn new(
        table: &RawMatrix<'_>,
        matrices: &[RawMatrix<'_>],
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self, LoadError> {
        let mut arena = ArenaPlan::new();
        let table_range = arena.add(table.bytes.len());
        let mut ranges = Vec::with_capacity(matrices.len());
        for raw in matrices {
            let plan = MatrixPlan::new(raw.ty, raw.rows, raw.cols, raw.bytes)
                .map_err(|reason| LoadError::Matrix { name: raw.name.clone(), reason })?;
            let range = arena.add(plan.bytes());
            ranges.push((plan, range));
            progress(&raw.name);
        }
        Ok(Self { arena, table_range, ranges })
    }
}

fn product<'a>(product: DeviceProduct<'a, Cpu>) -> Product<'a> {
    Product { matrix: product.matrix, bias: product.bias.map(Vec::as_slice), out: product.out }
}

fn row_norm(norm: &Norm) -> RowNorm<'_> {
    RowNorm { weight: &norm.weight, eps: norm.eps }
}

fn attention_layer(layer: &KvLayer) -> AttentionLayer {
    AttentionLayer { shape: layer.shape, layout: layer.layout, window: layer.window }
}

/// The rows of sequence `number` of the step, and its pages of `layer`.
fn sequence_rows<'a>(batch: &'a [SequenceInput<'_>], layer: usize, number: usize) -> Option<SequenceRows<'a, Page>> {
    let input = batch.get(number)?;
    let pages = input.cache.pages(layer);
    Some(SequenceRows {
        first_row: input.first_row(),
        rows: input.tokens.len(),
        first_page: pages.first_page(),
        pages: pages.as_slice(),
    })
}

/// The pages of `layer` that the step's rows are written into.
fn writable_pages<'a>(batch: &'a mut [SequenceInput<'_>], layer: usize) -> impl Iterator<Item = WritablePage<'a>> {
    let mut end = 0;
    batch.iter_mut().flat_map(move |input| {
        let (start, first_row) = (input.cache.rows(), end);
        end += input.tokens.len();
        let stop = start + input.tokens.len();
        input.cache.pending_pages_mut(layer).map(move |(page, bytes)| {
            let position = (page * PAGE_ROWS).max(start);
            let rows = ((page + 1) * PAGE_ROWS).min(stop) - position;
            WritablePage { first_row: first_row + position - start, position, rows, bytes }
        })
    })
}
