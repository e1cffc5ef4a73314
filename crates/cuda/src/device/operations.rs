//! The graph's operations on the GPU.

use muser_kernels::attention::AttentionShape;
use muser_kernels::cpu::{HeadTransform, LogitsBend, RowStatus};
use muser_kernels::rope::Rotation;
use muser_model::{
    Addend, Device, DeviceDescription, DeviceError, DeviceProduct, Form, KvLayer, Norm, Placement, SequenceInput,
};

use super::{Angles, CudaDevice, Table, device_error};
use crate::activations::{DeviceActivations, Forms};
use crate::driver::{DeviceBuffer, DriverError, PinnedBuffer};
use crate::matrix::DeviceMatrix;
use crate::queue::Failures;
use crate::queue::heads::{DeviceRope, HeadRows, HeadVectors};
use crate::queue::matmul::QueueProduct;
use crate::queue::quantise::{DeviceNorm, GateRows, NormRows, Residual};
use crate::queue::rows::{DeviceEmbeddingTable, LogitsRows, LogitsScale};

impl Form for CudaDevice {
    type Matrix = DeviceMatrix;
    type Vector = DeviceBuffer<f32>;
}

impl Device for CudaDevice {
    type Table = Table;
    type Rows = DeviceBuffer<f32>;
    type Activations = DeviceActivations;
    type Mixed = DeviceBuffer<f32>;
    type Needs = Forms;

    fn needs(matrix: &DeviceMatrix, rows: usize) -> Forms {
        matrix.forms(rows)
    }

    fn new_rows(&mut self, rows: usize, width: usize) -> Result<DeviceBuffer<f32>, DeviceError> {
        DeviceBuffer::new(self.queue.context(), rows * width).map_err(device_error)
    }

    fn new_activations(&mut self, rows: usize, cols: usize) -> Result<DeviceActivations, DeviceError> {
        DeviceActivations::new(self.queue.context(), rows, cols, Forms::ALL).map_err(device_error)
    }

    fn new_mixed(&mut self, shape: &AttentionShape, rows: usize) -> Result<DeviceBuffer<f32>, DeviceError> {
        self.new_rows(rows, shape.query_heads() * shape.head_dim())
    }

    fn begin_step(&mut self, positions: &[u32], batch: &[SequenceInput<'_>]) -> Result<(), DeviceError> {
        let begun = self.begin_rows(positions).and_then(|()| self.step.begin(&mut self.queue, batch));
        begun.map_err(device_error)
    }

    fn set_site(&mut self, site: u32) {
        self.site = site;
    }

    fn embed(&mut self, table: &Table, tokens: &[u32], norm_eps: Option<f32>, out: &mut DeviceBuffer<f32>) {
        let uploaded = self.queue.stream().upload(tokens, &mut self.indices, 0);
        self.queue.note(uploaded);
        let table = DeviceEmbeddingTable { bytes: &table.bytes, weight_type: table.ty, cols: table.cols };
        self.queue.embed(&self.indices, tokens.len(), &table, norm_eps, out);
    }

    fn norm_quantise(
        &mut self,
        hidden: &mut DeviceBuffer<f32>,
        addend: Option<Addend<'_, Self>>,
        norm: &Norm<DeviceBuffer<f32>>,
        needs: Forms,
        out: &mut DeviceActivations,
    ) {
        let rows = NormRows {
            rows: self.rows,
            cols: norm.width,
            indices: None,
            residual: addend
                .map(|Addend { rows, post_norm }| Residual { addend: rows, post_norm: post_norm.map(device_norm) }),
            norm: device_norm(norm),
            forms: needs,
        };
        let failures = &mut Failures { status: &mut self.status, place: self.site };
        self.queue.norm_quantise(out, hidden, &rows, failures);
    }

    fn norm_quantise_selected(
        &mut self,
        hidden: &mut DeviceBuffer<f32>,
        selected: &[usize],
        norm: &Norm<DeviceBuffer<f32>>,
        needs: Forms,
        out: &mut DeviceActivations,
    ) {
        let indices: Vec<u32> =
            selected.iter().map(|&row| u32::try_from(row).expect("a row of a step of at most 2^32")).collect();
        let uploaded = self.queue.stream().upload(&indices, &mut self.indices, 0);
        self.queue.note(uploaded);
        let rows = NormRows {
            rows: selected.len(),
            cols: norm.width,
            indices: Some(&self.indices),
            residual: None,
            norm: device_norm(norm),
            forms: needs,
        };
        let failures = &mut Failures { status: &mut self.status, place: self.site };
        self.queue.norm_quantise(out, hidden, &rows, failures);
    }

    fn matmul<const N: usize>(&mut self, activations: &DeviceActivations, products: [DeviceProduct<'_, Self>; N]) {
        let mut products =
            products.map(|product| QueueProduct { matrix: product.matrix, bias: product.bias, out: product.out });
        self.queue.matmul(activations, &mut products);
    }

    fn place_and_store(
        &mut self,
        layer: &KvLayer,
        heads: [&mut DeviceBuffer<f32>; 3],
        placements: &[Placement<'_, DeviceBuffer<f32>>; 3],
        _batch: &mut [SequenceInput<'_>],
    ) {
        let rotation = placements.iter().find_map(|placement| placement.rope);
        let rope = rotation.map(|Rotation { table, style }| {
            let Angles { table, angles, .. } = &self.rotations[table];
            DeviceRope { angles, pairs: table.pairs(), style }
        });
        let rows = HeadRows { rows: self.rows, head_dim: self.shape.head_dim(), positions: &self.positions, rope };
        let mut vectors = heads.into_iter().zip(placements).map(|(x, placement)| HeadVectors {
            x,
            heads: placement.width / placement.head_dim,
            norm: placement.norm.map(device_norm),
            rotates: placement.rope.is_some(),
            hadamard: placement.transform,
        });
        let vectors = std::array::from_fn(|_| vectors.next().expect("three kinds"));
        let (pages, row_bytes) = self.step.layer_and_rows_out(layer.index);
        let failures = &mut Failures { status: &mut self.status, place: self.site };
        self.queue.place_and_store(&rows, vectors, &pages, Some(row_bytes), failures);
        let sent = self.step.send_rows(&mut self.queue, layer.index, self.rows);
        self.queue.note(sent);
    }

    fn attend(
        &mut self,
        layer: &KvLayer,
        query: &DeviceBuffer<f32>,
        _batch: &[SequenceInput<'_>],
        out: &mut DeviceBuffer<f32>,
    ) {
        let (pages, scratch) = self.step.layer_and_scratch(layer.index);
        let failures = &mut Failures { status: &mut self.status, place: self.site };
        self.queue.attend(&pages, query, scratch, out, failures);
    }

    fn gate_quantise(
        &mut self,
        mixed: &DeviceBuffer<f32>,
        gate: Option<&DeviceBuffer<f32>>,
        transform: Option<HeadTransform>,
        needs: Forms,
        out: &mut DeviceActivations,
    ) {
        let rows = GateRows {
            rows: self.rows,
            cols: self.shape.query_heads() * self.shape.head_dim(),
            mixed,
            gate,
            spread_head_dim: transform.map(|transform| transform.head_dim),
            forms: needs,
        };
        self.queue.gate_quantise(out, &rows, &mut Failures { status: &mut self.status, place: self.site });
    }

    fn silu_mul_quantise(
        &mut self,
        gate: &DeviceBuffer<f32>,
        up: &DeviceBuffer<f32>,
        cols: usize,
        needs: Forms,
        out: &mut DeviceActivations,
    ) {
        let failures = &mut Failures { status: &mut self.status, place: self.site };
        self.queue.silu_mul_quantise(out, (gate, up), (self.rows, cols), needs, failures);
    }

    fn add_residual(&mut self, hidden: &mut DeviceBuffer<f32>, addend: Addend<'_, Self>, cols: usize) {
        self.queue.add_residual(hidden, addend.rows, (self.rows, cols), addend.post_norm.map(device_norm));
    }

    fn bend_logits(&mut self, logits: &mut DeviceBuffer<f32>, selected: &[usize], bend: &LogitsBend) {
        let &LogitsBend { vocab, scale, soft_cap } = bend;
        // The final norm, which selected the same rows, has uploaded their numbers.
        let rows = LogitsRows { rows: selected.len(), vocab, step_rows: Some(&self.indices) };
        let failures = &mut Failures { status: &mut self.status, place: self.site };
        self.queue.finish_logits(logits, &rows, &LogitsScale { scale, soft_cap }, failures);
    }

    fn logits<'a>(
        &'a mut self,
        logits: &'a DeviceBuffer<f32>,
        values: usize,
    ) -> Result<(&'a [f32], &'a [RowStatus]), DeviceError> {
        self.download_logits(logits, values).map_err(device_error)?;
        let host = self.logits_host.as_ref().map_or(&[][..], PinnedBuffer::as_slice);
        Ok((&host[..values], &self.status_host))
    }

    fn row_status(&mut self) -> Result<&[RowStatus], DeviceError> {
        self.download_status().map_err(device_error)?;
        Ok(&self.status_host)
    }

    fn read_rows(&mut self, rows: &DeviceBuffer<f32>, out: &mut [f32]) -> Result<(), DeviceError> {
        let read = self.queue.sync().and_then(|()| self.queue.stream().download(rows, 0, out));
        read.map_err(device_error)
    }

    fn write_rows(&mut self, values: &[f32], rows: &mut DeviceBuffer<f32>) -> Result<(), DeviceError> {
        self.queue.stream().upload(values, rows, 0).map_err(device_error)
    }

    fn store_pending(&mut self, batch: &mut [SequenceInput<'_>]) -> Result<(), DeviceError> {
        let failed = self.queue.failure();
        failed.map_or_else(|| self.step.receive(batch), Err).map_err(device_error)
    }

    fn describe(&self) -> DeviceDescription {
        DeviceDescription { name: "cuda", kernels: self.queue.context().name().to_owned(), threads: 1 }
    }
}

impl CudaDevice {
    fn download_logits(&mut self, logits: &DeviceBuffer<f32>, values: usize) -> Result<(), DriverError> {
        if self.logits_host.as_ref().is_none_or(|host| host.as_slice().len() < values) {
            self.logits_host = Some(PinnedBuffer::new(self.queue.context(), logits.len())?);
        }
        if let Some(host) = &mut self.logits_host {
            // SAFETY: the wait below comes before any read of the pinned values.
            unsafe { self.queue.stream().download_pinned(logits, 0..values, host)? };
        }
        self.download_status()
    }
}

fn device_norm(norm: &Norm<DeviceBuffer<f32>>) -> DeviceNorm<'_> {
    DeviceNorm { weight: &norm.weight, eps: norm.eps }
}
