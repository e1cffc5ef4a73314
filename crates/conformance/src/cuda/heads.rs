//! Placing of head vectors, against the CPU's row operations.

use muser_cuda::queue::heads::{DeviceRope, HeadRows, HeadVectors};
use muser_cuda::queue::quantise::DeviceNorm;
use muser_kernels::cpu::Kernels;
use muser_kernels::rope::{RopeStyle, RopeTable};
use muser_kernels::rows::{hadamard, inverse_block};

use super::world::{CudaError, World};
use muser_kernels::samples::activation_row;

const EPS: f32 = 1e-6;
const POSITIONS: usize = 300;

pub(super) fn run(world: &mut World) -> Result<(), CudaError> {
    let mut rng = fastrand::Rng::with_seed(2);
    for head_dim in (32..=256).step_by(32) {
        for variant in 0..16 {
            case(world, head_dim, variant, &mut rng)?;
        }
    }
    Ok(())
}

/// One kind of vectors: what is done to it, and its values before.
struct Kind {
    heads: usize,
    normed: bool,
    rotates: bool,
    hadamard: Option<f32>,
    values: Vec<f32>,
}

fn case(world: &mut World, head_dim: usize, variant: usize, rng: &mut fastrand::Rng) -> Result<(), CudaError> {
    let (rows, style) = ([1, 3, 130][rng.usize(..3)], [RopeStyle::Norm, RopeStyle::Neox][variant % 2]);
    let rotated = if variant & 2 == 0 { head_dim } else { 2 * rng.usize(1..=head_dim / 2) };
    let factors: Option<Vec<f32>> = (variant & 4 != 0).then(|| (0..rotated / 2).map(|_| 1.0 + rng.f32()).collect());
    let table = RopeTable::new(10_000.0, rotated, POSITIONS, factors.as_deref())?;
    let positions: Vec<u32> = (0..rows).map(|_| rng.u32(..300)).collect();
    let weight = activation_row(head_dim, rng);
    let q8 = variant & 8 != 0;
    let kinds: Vec<Kind> =
        [(rng.usize(1..40), 1.0), (rng.usize(1..9), inverse_block(head_dim)), (rng.usize(1..9), 1.0)]
            .into_iter()
            .enumerate()
            .map(|(kind, (heads, factor))| Kind {
                heads,
                normed: kind < 2 && rng.bool(),
                rotates: kind < 2,
                hadamard: q8.then_some(factor),
                values: (0..rows).flat_map(|_| activation_row(heads * head_dim, rng)).collect(),
            })
            .collect();

    let kernels = Kernels::scalar().rows;
    let (angles, device_positions) = (world.upload(table.values())?, world.upload(&positions)?);
    let device_weight = world.upload(&weight)?;
    let mut buffers = Vec::new();
    for kind in &kinds {
        buffers.push(world.upload(&kind.values)?);
    }
    let rope = DeviceRope { angles: &angles, pairs: rotated / 2, style };
    let spec = HeadRows { rows, head_dim, positions: &device_positions, rope: Some(rope) };
    let mut parts = buffers.iter_mut().zip(&kinds).map(|(x, kind)| HeadVectors {
        x,
        heads: kind.heads,
        norm: kind.normed.then_some(DeviceNorm { weight: &device_weight, eps: EPS }),
        rotates: kind.rotates,
        hadamard: kind.hadamard,
    });
    let parts = std::array::from_fn::<_, 3, _>(|_| parts.next().expect("three kinds"));
    world.queue.place_heads(&spec, parts);
    for (kind, buffer) in kinds.iter().zip(&buffers) {
        let mut expected = kind.values.clone();
        for (row, &position) in expected.chunks_exact_mut(kind.heads * head_dim).zip(&positions) {
            for head in row.chunks_exact_mut(head_dim) {
                if kind.normed {
                    (kernels.rms_norm_in_place)(head, Some(&weight), EPS);
                }
                if kind.rotates {
                    (kernels.rope)(head, table.row(position as usize), style);
                }
                if let Some(factor) = kind.hadamard {
                    hadamard(head, factor);
                }
            }
        }
        let got = world.download(buffer, expected.len())?;
        let what = format!("place d{head_dim} variant {variant} rotated {rotated} normed {}", kind.normed);
        world.compare(&what, kind.heads * head_dim, &expected, &got);
    }
    Ok(())
}
