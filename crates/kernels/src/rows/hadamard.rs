//! The Hadamard transform of head vectors in 8-bit caches (rule 8b of `docs/numerics.md`).
//!
//! A head vector has a few large elements, and one scale for all of them wastes most codes of the others. The transform
//! spreads every element over all, which evens out their sizes. Applied to queries and keys alike it changes no dot product
//! beyond rounding; applied to values, it is taken back on the heads' outputs, being its own inverse up to a factor. (As in
//! QuIP#, Tseng et al. 2024, and QuaRot, Ashkboos et al. 2024.) What it gains is in `bench/records/muser-truth.json`.
//!
//! Only additions and subtractions of f32 in a fixed order, so one portable function serves every instruction set.

/// Transforms `x` in place and multiplies it by `factor`. `x` is cut into blocks of the largest power of two that divides
/// its length; each is transformed by stages of distance 1, 2, 4, ...
///
/// With a factor of 1 on queries and outputs and of [`inverse_block`] on keys and values, everything keeps its size.
pub fn hadamard(x: &mut [f32], factor: f32) {
    let block = block_len(x.len());
    let mut distance = 1;
    while distance < block {
        for pair in x.chunks_exact_mut(2 * distance) {
            let (low, high) = pair.split_at_mut(distance);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        distance *= 2;
    }
    x.iter_mut().for_each(|x| *x *= factor);
}

/// One over the length of the blocks in which a vector of `len` elements is transformed: a power of two, so that multiplying
/// by it is exact.
pub fn inverse_block(len: usize) -> f32 {
    1.0 / block_len(len) as f32
}

fn block_len(len: usize) -> usize {
    1 << len.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Element `i` is the sum of all elements, negative where `i & k` has an odd number of ones (Sylvester's matrix).
    fn by_definition(x: &[f32]) -> Vec<f32> {
        let sign = |i: usize, k: usize| if (i & k).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        (0..x.len()).map(|i| x.iter().enumerate().map(|(k, x)| sign(i, k) * x).sum()).collect()
    }

    #[test]
    fn integers_are_transformed_as_sylvester_s_matrix_says() {
        for len in [1, 2, 32, 64, 128, 256] {
            let mut rng = fastrand::Rng::with_seed(7);
            let x: Vec<f32> = (0..len).map(|_| f32::from(rng.i16(-1000..1000))).collect();
            let mut transformed = x.clone();
            hadamard(&mut transformed, 1.0);
            assert_eq!(transformed, by_definition(&x));
            hadamard(&mut transformed, inverse_block(len));
            assert_eq!(transformed, x, "twice is the identity");
        }
    }

    #[test]
    fn a_head_that_is_no_power_of_two_is_transformed_in_blocks() {
        let mut rng = fastrand::Rng::with_seed(8);
        let x: Vec<f32> = (0..96).map(|_| f32::from(rng.i8(..))).collect();
        let mut transformed = x.clone();
        hadamard(&mut transformed, 1.0);
        let blocks: Vec<f32> = x.chunks(32).flat_map(by_definition).collect();
        assert_eq!(transformed, blocks);
        assert_eq!(inverse_block(96), 1.0 / 32.0);
    }

    #[test]
    fn stages_run_from_neighbours_to_halves() {
        // 1 is lost beside 2^24, but not in (1 + 1): the result tells which elements meet first.
        let big = 16_777_216.0;
        let mut x = [1.0, 1.0, big, 0.0];
        hadamard(&mut x, 1.0);
        assert_eq!(x, [big + 2.0, big, 2.0 - big, -big]);
    }

    #[test]
    fn what_is_not_finite_stays_visible() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = [0.5; 64];
            x[17] = bad;
            hadamard(&mut x, 1.0);
            assert!(x.iter().all(|x| !x.is_finite()));
        }
    }
}
