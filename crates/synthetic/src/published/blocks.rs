//! Quantised blocks of normal deviates, made once and drawn from: a file of many gigabytes takes seconds.

use half::f16;
use muser_kernels::formats::{WeightType, quantise_row};

/// Blocks of each type that rows are drawn from: enough that no pattern shows, few enough for a cache.
const BLOCKS: usize = 4096;
/// Weights of a block.
const BLOCK: usize = 256;

/// Blocks of weights with standard deviation 1.
#[derive(Debug)]
pub(super) struct BlockPools {
    q4_k: Vec<u8>,
    q6_k: Vec<u8>,
}

impl BlockPools {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pool = |ty: WeightType| {
            let row: Vec<f32> = (0..BLOCKS * BLOCK).map(|_| normal(&mut random)).collect();
            let mut blocks = vec![0; ty.row_bytes(row.len()).expect("whole blocks")];
            quantise_row(ty, &row, &mut blocks).expect("finite values in a type that is written");
            blocks
        };
        Self { q4_k: pool(WeightType::Q4_K), q6_k: pool(WeightType::Q6_K) }
    }

    /// Fills a row with blocks whose weights have standard deviation `size`.
    pub(super) fn fill(&self, ty: WeightType, size: f32, random: &mut fastrand::Rng, out: &mut [u8]) {
        // Where the f16 scales of a block lie.
        let (pool, scales): (&[u8], &[usize]) = match ty {
            WeightType::Q4_K => (&self.q4_k, &[0, 2]),
            WeightType::Q6_K => (&self.q6_k, &[208]),
            other => unreachable!("no tensor of type {other} is planned"),
        };
        let bytes = ty.block_bytes();
        for block in out.chunks_exact_mut(bytes) {
            block.copy_from_slice(&pool[random.usize(..BLOCKS) * bytes..][..bytes]);
            for &at in scales {
                let scale = f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
                block[at..at + 2].copy_from_slice(&f16::from_f32(scale * size).to_le_bytes());
            }
        }
    }
}

/// A normal deviate: the sum of twelve uniform ones has standard deviation 1, and no tail beyond 6.
fn normal(random: &mut fastrand::Rng) -> f32 {
    (0..12).map(|_| random.f32()).sum::<f32>() - 6.0
}

#[cfg(test)]
mod tests {
    use muser_kernels::formats::dequantise_row;

    use super::*;

    #[test]
    fn rows_have_the_size_asked_for_and_finite_scales() {
        let pools = BlockPools::new(5);
        for ty in [WeightType::Q4_K, WeightType::Q6_K] {
            let mut row = vec![0; ty.row_bytes(40 * BLOCK).unwrap()];
            pools.fill(ty, 0.0123, &mut fastrand::Rng::with_seed(1), &mut row);
            let mut values = vec![0.0; 40 * BLOCK];
            dequantise_row(ty, &row, &mut values);
            let size = (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt();
            assert!((0.0117..0.0129).contains(&size), "{ty}: {size}");
        }
    }
}
