//! The graph's operations, recorded: operands are copied or shared, and read when the operation executes.

use std::sync::Arc;

use muser_kernels::activations::{Activations, FormatSet};
use muser_kernels::attention::AttentionShape;
use muser_kernels::cpu::{
    AttentionLayer, AttentionOutput, HeadPlacement, HeadTransform, LogitsBend, Product, RowNorm, RowStatus,
    SequenceRows, WritablePage,
};
use muser_kernels::matrix::Matrix;
use muser_kernels::rope::Rotation;
use muser_model::{
    Addend, Device, DeviceDescription, DeviceError, DeviceProduct, KvLayer, Norm, Placement, SequenceInput,
};

use super::buffer::{Buffer, Content, lock};
use super::{DeferredCpu, Machine, SequencePages, Table};

/// f32 rows.
type Rows = Buffer<Vec<f32>>;

/// A norm as recorded operations hold it.
#[derive(Clone)]
struct SharedNorm {
    weight: Arc<[f32]>,
    eps: f32,
}

impl SharedNorm {
    fn of(norm: &Norm<Arc<[f32]>>) -> Self {
        Self { weight: Arc::clone(&norm.weight), eps: norm.eps }
    }

    fn row_norm(&self) -> RowNorm<'_> {
        RowNorm { weight: &self.weight, eps: self.eps }
    }
}

/// An addend as recorded operations hold it.
struct SharedAddend {
    rows: Content<Vec<f32>>,
    post_norm: Option<SharedNorm>,
}

impl SharedAddend {
    fn add(&self, machine: &mut Machine, hidden: &mut [f32], cols: usize) {
        let norm = self.post_norm.as_ref().map(SharedNorm::row_norm);
        machine.cpu.add_residual(hidden, &lock(&self.rows), cols, norm);
    }
}

/// A placement as recorded operations hold it.
struct SharedPlacement {
    width: usize,
    head_dim: usize,
    norm: Option<SharedNorm>,
    rope: Option<Rotation>,
    transform: Option<f32>,
}

impl SharedPlacement {
    fn of(placement: &Placement<'_, Arc<[f32]>>) -> Self {
        let &Placement { width, head_dim, norm, rope, transform } = placement;
        Self { width, head_dim, norm: norm.map(SharedNorm::of), rope, transform }
    }

    fn place(&self, machine: &mut Machine, x: &mut [f32]) {
        let &Self { width, head_dim, ref norm, rope, transform } = self;
        let norm = norm.as_ref().map(SharedNorm::row_norm);
        if norm.is_some() || rope.is_some() || transform.is_some() {
            machine.cpu.place_heads(x, &HeadPlacement { width, head_dim, norm, rope, transform });
        }
    }
}

/// A product as recorded operations hold it.
struct SharedProduct {
    matrix: Matrix,
    bias: Option<Arc<[f32]>>,
    out: Content<Vec<f32>>,
}

impl DeferredCpu {
    fn shared_addend(&mut self, addend: Addend<'_, Self>, by: &'static str) -> Option<SharedAddend> {
        let rows = addend.rows.read(self.step, by);
        Some(SharedAddend { rows: self.used(rows)?, post_norm: addend.post_norm.map(SharedNorm::of) })
    }

    /// Records `operation` on two buffers; nothing if the graph misuses one of them.
    fn record_on<A: Send + 'static, B: Send + 'static>(
        &mut self,
        contents: (Option<Content<A>>, Option<Content<B>>),
        operation: impl FnOnce(&mut Machine, &mut A, &mut B) + Send + 'static,
    ) {
        if let (Some(first), Some(second)) = contents {
            self.record(move |machine| operation(machine, &mut lock(&first), &mut lock(&second)));
        }
    }
}

impl Device for DeferredCpu {
    type Table = Table;
    type Rows = Rows;
    type Activations = Buffer<Activations>;
    type Mixed = Buffer<AttentionOutput>;
    type Needs = FormatSet;

    fn needs(matrix: &Matrix, _rows: usize) -> FormatSet {
        FormatSet::EMPTY.with(matrix.activation())
    }

    fn new_rows(&mut self, rows: usize, width: usize) -> Result<Rows, DeviceError> {
        Ok(Buffer::new(vec![f32::NAN; rows * width]))
    }

    fn new_activations(&mut self, rows: usize, cols: usize) -> Result<Buffer<Activations>, DeviceError> {
        Ok(Buffer::new(Activations::new(rows, cols)))
    }

    fn new_mixed(&mut self, shape: &AttentionShape, rows: usize) -> Result<Buffer<AttentionOutput>, DeviceError> {
        Ok(Buffer::new(AttentionOutput::new(shape, rows)))
    }

    fn begin_step(&mut self, positions: &[u32], batch: &[SequenceInput<'_>]) -> Result<(), DeviceError> {
        if self.is_open {
            self.pages.forget();
        }
        (self.is_open, self.site) = (true, 0);
        self.step += 1;
        self.stored.clear();
        let positions = positions.to_vec();
        self.record(move |machine| machine.cpu.begin_step(&positions));
        self.find_pages(batch);
        Ok(())
    }

    fn set_site(&mut self, site: u32) {
        self.site = site;
    }

    fn embed(&mut self, table: &Table, tokens: &[u32], norm_eps: Option<f32>, out: &mut Rows) {
        let out = out.write(self.step, "embed");
        let Some(out) = self.used(out) else { return };
        let (table, tokens) = (table.clone(), tokens.to_vec());
        self.record(move |machine| machine.cpu.embed(&table, &tokens, norm_eps, &mut lock(&out)));
    }

    fn norm_quantise(
        &mut self,
        hidden: &mut Rows,
        addend: Option<Addend<'_, Self>>,
        norm: &Norm<Arc<[f32]>>,
        needs: FormatSet,
        out: &mut Buffer<Activations>,
    ) {
        const NAME: &str = "norm_quantise";
        let is_changed = addend.is_some();
        let addend = addend.and_then(|addend| self.shared_addend(addend, NAME));
        let hidden = if is_changed { hidden.update(self.step, NAME) } else { hidden.read(self.step, NAME) };
        let contents = (self.used(hidden), self.used(out.write(self.step, NAME)));
        let (norm, width) = (SharedNorm::of(norm), norm.width);
        self.record_on(contents, move |machine, hidden, out| {
            if let Some(addend) = addend {
                addend.add(machine, hidden, width);
            }
            machine.cpu.norm_quantise(hidden, norm.row_norm(), needs, out);
        });
    }

    fn norm_quantise_selected(
        &mut self,
        hidden: &mut Rows,
        selected: &[usize],
        norm: &Norm<Arc<[f32]>>,
        needs: FormatSet,
        out: &mut Buffer<Activations>,
    ) {
        const NAME: &str = "norm_quantise_selected";
        let contents = (self.used(hidden.read(self.step, NAME)), self.used(out.write(self.step, NAME)));
        let (norm, selected) = (SharedNorm::of(norm), selected.to_vec());
        self.record_on(contents, move |machine, hidden: &mut Vec<f32>, out| {
            machine.cpu.norm_quantise_selected(hidden, &selected, norm.row_norm(), needs, out);
        });
    }

    fn matmul<const N: usize>(&mut self, activations: &Buffer<Activations>, products: [DeviceProduct<'_, Self>; N]) {
        let activations = self.used(activations.read(self.step, "matmul"));
        let shared = products.map(|DeviceProduct { matrix, bias, out }| {
            let out = self.used(out.write(self.step, "matmul"))?;
            Some(SharedProduct { matrix: matrix.clone(), bias: bias.cloned(), out })
        });
        let Some(activations) = activations.filter(|_| shared.iter().all(Option::is_some)) else { return };
        self.record(move |machine| {
            let shared = shared.map(|product| product.expect("all of them are there"));
            let mut outs = shared.each_ref().map(|product| lock(&product.out));
            let mut pairs = shared.iter().zip(&mut outs);
            let products: [Product<'_>; N] = std::array::from_fn(|_| {
                let (product, out) = pairs.next().expect("as many outputs as products");
                Product { matrix: &product.matrix, bias: product.bias.as_deref(), out }
            });
            machine.cpu.matmul(&lock(&activations), products);
        });
    }

    fn place_and_store(
        &mut self,
        layer: &KvLayer,
        heads: [&mut Rows; 3],
        placements: &[Placement<'_, Arc<[f32]>>; 3],
        _batch: &mut [SequenceInput<'_>],
    ) {
        const NAME: &str = "place_and_store";
        let [query, key, value] = heads;
        let query = self.used(query.update(self.step, NAME));
        let (key, value) = (self.used(key.consume(self.step, NAME)), self.used(value.consume(self.step, NAME)));
        let (Some(query), Some(key), Some(value)) = (query, key, value) else { return };
        let placements = placements.each_ref().map(SharedPlacement::of);
        let (attention, pages) = (attention_layer(layer), Arc::clone(&self.layers[layer.index]));
        self.stored.push(layer.index);
        self.record(move |machine| {
            let (mut query, mut key, mut value) = (lock(&query), lock(&key), lock(&value));
            for (placement, x) in placements.iter().zip([&mut *query, &mut *key, &mut *value]) {
                placement.place(machine, x);
            }
            machine.store(&attention, &pages, &key, &value);
            // Unspecified from here on.
            key.fill(f32::NAN);
            value.fill(f32::NAN);
        });
    }

    fn attend(
        &mut self,
        layer: &KvLayer,
        query: &Rows,
        _batch: &[SequenceInput<'_>],
        out: &mut Buffer<AttentionOutput>,
    ) {
        let contents = (self.used(query.read(self.step, "attend")), self.used(out.write(self.step, "attend")));
        let (attention, pages) = (attention_layer(layer), Arc::clone(&self.layers[layer.index]));
        self.record_on(contents, move |machine, query: &mut Vec<f32>, out| {
            machine.attend(&attention, &pages, query, out);
        });
    }

    fn gate_quantise(
        &mut self,
        mixed: &Buffer<AttentionOutput>,
        gate: Option<&Rows>,
        transform: Option<HeadTransform>,
        needs: FormatSet,
        out: &mut Buffer<Activations>,
    ) {
        const NAME: &str = "gate_quantise";
        let gate = gate.map(|gate| self.used(gate.read(self.step, NAME)));
        let contents = (self.used(mixed.read(self.step, NAME)), self.used(out.write(self.step, NAME)));
        let gate = match gate {
            None => None,
            Some(Some(gate)) => Some(gate),
            Some(None) => return,
        };
        self.record_on(contents, move |machine, mixed: &mut AttentionOutput, out| {
            let gate = gate.as_ref().map(lock);
            machine.cpu.gate_quantise(mixed, gate.as_ref().map(|gate| gate.as_slice()), transform, needs, out);
        });
    }

    fn silu_mul_quantise(
        &mut self,
        gate: &Rows,
        up: &Rows,
        cols: usize,
        needs: FormatSet,
        out: &mut Buffer<Activations>,
    ) {
        const NAME: &str = "silu_mul_quantise";
        let gate = self.used(gate.read(self.step, NAME));
        let contents = (self.used(up.read(self.step, NAME)), self.used(out.write(self.step, NAME)));
        let Some(gate) = gate else { return };
        self.record_on(contents, move |machine, up: &mut Vec<f32>, out| {
            machine.cpu.silu_mul_quantise(&lock(&gate), up, cols, needs, out);
        });
    }

    fn add_residual(&mut self, hidden: &mut Rows, addend: Addend<'_, Self>, cols: usize) {
        let addend = self.shared_addend(addend, "add_residual");
        let hidden = self.used(hidden.update(self.step, "add_residual"));
        let (Some(hidden), Some(addend)) = (hidden, addend) else { return };
        self.record(move |machine| addend.add(machine, &mut lock(&hidden), cols));
    }

    fn bend_logits(&mut self, logits: &mut Rows, selected: &[usize], bend: &LogitsBend) {
        let logits = self.used(logits.update(self.step, "bend_logits"));
        let Some(logits) = logits else { return };
        let (selected, bend) = (selected.to_vec(), *bend);
        self.record(move |machine| machine.cpu.bend_logits(&mut lock(&logits), &selected, &bend));
    }

    fn logits<'a>(&'a mut self, logits: &'a Rows, values: usize) -> Result<(&'a [f32], &'a [RowStatus]), DeviceError> {
        let content = self.used(logits.read(self.step, "logits"));
        self.wait()?;
        self.logits.clear();
        if let Some(content) = content {
            self.logits.extend_from_slice(&lock(&content)[..values]);
        }
        Ok((&self.logits, self.machine.cpu.row_status()))
    }

    fn row_status(&mut self) -> Result<&[RowStatus], DeviceError> {
        self.wait()?;
        Ok(self.machine.cpu.row_status())
    }

    fn read_rows(&mut self, rows: &Rows, out: &mut [f32]) -> Result<(), DeviceError> {
        let content = self.used(rows.read(self.step, "read_rows"));
        self.wait()?;
        if let Some(content) = content {
            out.copy_from_slice(&lock(&content)[..out.len()]);
        }
        Ok(())
    }

    fn write_rows(&mut self, values: &[f32], rows: &mut Rows) -> Result<(), DeviceError> {
        let content = self.used(rows.write(self.step, "write_rows"));
        let values = values.to_vec();
        if let Some(content) = content {
            self.record(move |_| lock(&content)[..values.len()].copy_from_slice(&values));
        }
        Ok(())
    }

    fn store_pending(&mut self, batch: &mut [SequenceInput<'_>]) -> Result<(), DeviceError> {
        self.wait()?;
        self.write_back(batch);
        Ok(())
    }

    fn describe(&self) -> DeviceDescription {
        let kernels = format!("{}, deferred", self.machine.cpu.kernels().name());
        DeviceDescription { name: "cpu", kernels, threads: self.machine.cpu.threads() }
    }
}

impl Machine {
    /// Writes the step's keys and values into the copies of their pages.
    fn store(&mut self, layer: &AttentionLayer, sequences: &[SequencePages], keys: &[f32], values: &[f32]) {
        let mut slots = Vec::new();
        for sequence in sequences {
            slots.extend(sequence.written_pages().map(|page| sequence.slot(page)));
        }
        let mut taken: Vec<Box<[u8]>> = slots.iter().map(|&slot| std::mem::take(&mut self.copies[slot])).collect();
        let mut pages = Vec::with_capacity(taken.len());
        let mut copies = taken.iter_mut();
        for sequence in sequences {
            for (page, bytes) in sequence.written_pages().zip(&mut copies) {
                let rows = sequence.rows_of(page);
                let position = page * muser_kv::PAGE_ROWS + rows.start;
                let first_row = sequence.first_row + position - sequence.position;
                pages.push(WritablePage { first_row, position, rows: rows.len(), bytes });
            }
        }
        self.cpu.store_kv(layer, (keys, values), pages.into_iter());
        slots.into_iter().zip(taken).for_each(|(slot, copy)| self.copies[slot] = copy);
    }

    /// Attends over the copies.
    fn attend(
        &mut self,
        layer: &AttentionLayer,
        sequences: &[SequencePages],
        query: &[f32],
        out: &mut AttentionOutput,
    ) {
        let Self { cpu, copies } = self;
        let of_sequence = |sequence: &SequencePages| sequence.slots.iter().map(|&slot| &*copies[slot]).collect();
        let pages: Vec<Vec<&[u8]>> = sequences.iter().map(of_sequence).collect();
        let rows_of = |number: usize| {
            let sequence = sequences.get(number)?;
            let &SequencePages { first_row, rows, first_page, .. } = sequence;
            Some(SequenceRows { first_row, rows, first_page, pages: &pages[number] })
        };
        cpu.attend(layer, query, rows_of, out);
    }
}

fn attention_layer(layer: &KvLayer) -> AttentionLayer {
    AttentionLayer { shape: layer.shape, layout: layer.layout, window: layer.window }
}
