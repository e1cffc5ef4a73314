//! Embedding, residual sums and logits, against the CPU's.

use muser_cuda::queue::quantise::DeviceNorm;
use muser_cuda::queue::rows::{DeviceEmbeddingTable, LogitsRows, LogitsScale};
use muser_cuda::queue::{FINE, Failures};
use muser_kernels::cpu::Kernels;
use muser_kernels::formats::{WeightType, dequantise_row};

use super::world::{CudaError, World};
use muser_kernels::samples::{Flavour, activation_row, raw_tensor};

const EPS: f32 = 1e-5;

pub(super) fn run(world: &mut World) -> Result<(), CudaError> {
    let mut rng = fastrand::Rng::with_seed(1);
    for ty in WeightType::ALL {
        for flavour in Flavour::ALL {
            embed(world, ty, flavour, &mut rng)?;
        }
    }
    for (rows, cols) in [(1, 6656), (37, 512), (5, 576), (130, 96), (3, 7)] {
        residual(world, rows, cols, &mut rng)?;
    }
    for (rows, vocab) in [(1, 202_048), (32, 4096), (5, 1000), (2, 3)] {
        logits(world, rows, vocab, &mut rng)?;
    }
    Ok(())
}

/// Rows of an embedding table, with and without a norm.
fn embed(world: &mut World, ty: WeightType, flavour: Flavour, rng: &mut fastrand::Rng) -> Result<(), CudaError> {
    let (vocab, cols, rows) = (19, [512, 768, 6656][rng.usize(..3)], 23);
    let row_bytes = ty.row_bytes(cols).expect("whole blocks");
    let raw = raw_tensor(ty, vocab, cols, flavour, rng);
    let tokens: Vec<u32> = (0..rows).map(|_| rng.u32(..19)).collect();
    let (table, device_tokens) = (world.upload(&raw)?, world.upload(&tokens)?);
    for norm in [None, Some(EPS)] {
        let mut expected = vec![0.0; rows * cols];
        for (&token, row) in tokens.iter().zip(expected.chunks_exact_mut(cols)) {
            dequantise_row(ty, &raw[token as usize * row_bytes..][..row_bytes], row);
            if let Some(eps) = norm {
                (Kernels::scalar().rows.rms_norm_in_place)(row, None, eps);
            }
        }
        let mut out = world.room(rows * cols)?;
        let table = DeviceEmbeddingTable { bytes: &table, weight_type: ty, cols };
        world.queue.embed(&device_tokens, rows, &table, norm, &mut out);
        let got = world.download(&out, rows * cols)?;
        world.compare(&format_args!("embed {ty} {flavour:?} norm {norm:?}"), cols, &expected, &got);
    }
    Ok(())
}

fn residual(world: &mut World, rows: usize, cols: usize, rng: &mut fastrand::Rng) -> Result<(), CudaError> {
    let kernels = Kernels::scalar().rows;
    let values = |rng: &mut fastrand::Rng| (0..rows).flat_map(|_| activation_row(cols, rng)).collect::<Vec<f32>>();
    let (start, mut y, weight) = (values(rng), values(rng), activation_row(cols, rng));
    y[0] = f32::INFINITY;
    for normed in [false, true] {
        let mut expected = start.clone();
        for (h, y) in expected.chunks_exact_mut(cols).zip(y.chunks_exact(cols)) {
            let mut term = y.to_vec();
            if normed {
                (kernels.rms_norm_in_place)(&mut term, Some(&weight), EPS);
            }
            (kernels.add)(h, &term);
        }
        let (mut hidden, device_y, device_weight) = (world.upload(&start)?, world.upload(&y)?, world.upload(&weight)?);
        let post_norm = normed.then_some(DeviceNorm { weight: &device_weight, eps: EPS });
        world.queue.add_residual(&mut hidden, &device_y, (rows, cols), post_norm);
        let got = world.download(&hidden, rows * cols)?;
        world.compare(&format_args!("residual {rows} x {cols} normed {normed}"), cols, &expected, &got);
    }
    Ok(())
}

/// Logits of picked rows; one of several is not finite.
fn logits(world: &mut World, rows: usize, vocab: usize, rng: &mut fastrand::Rng) -> Result<(), CudaError> {
    for scale in [None, Some(0.196_116_14)] {
        for soft_cap in [None, Some(20.0), Some(1e-30)] {
            let mut start: Vec<f32> = (0..rows).flat_map(|_| activation_row(vocab, rng)).collect();
            let bad = (rows > 1).then(|| rng.usize(..rows));
            if let Some(bad) = bad {
                start[bad * vocab + rng.usize(..vocab)] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][rng.usize(..3)];
            }
            let mut expected = start.clone();
            let mut status = vec![FINE; 2 * rows];
            let step_rows: Vec<u32> =
                (0..rows).map(|row| u32::try_from(2 * rows - 1 - 2 * row).expect("few")).collect();
            for (z, &row) in expected.chunks_exact_mut(vocab).zip(&step_rows) {
                (Kernels::scalar().rows.scale_soft_cap)(z, scale, soft_cap);
                if !(Kernels::scalar().rows.all_finite)(z) {
                    status[row as usize] = 52;
                }
            }
            let (mut device, picked) = (world.upload(&start)?, world.upload(&step_rows)?);
            let mut device_status = world.room(2 * rows)?;
            let mut failures = Failures { status: &mut device_status, place: 52 };
            let spec = LogitsRows { rows, vocab, step_rows: Some(&picked) };
            world.queue.finish_logits(&mut device, &spec, &LogitsScale { scale, soft_cap }, &mut failures);
            let what = format!("logits {rows} x {vocab} scale {scale:?} cap {soft_cap:?}");
            let got = world.download(&device, rows * vocab)?;
            world.compare(&what, vocab, &expected, &got);
            let found = world.download(&device_status, 2 * rows)?;
            world.compare(&format_args!("{what} status"), 1, &status, &found);
        }
    }
    Ok(())
}
