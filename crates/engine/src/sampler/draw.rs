//! The draw: one random number per position, a pure function of seed and position.

use super::candidates::{Candidate, peak};

/// A token drawn with the probabilities of the softmax over `candidates`, of which there is at least one.
pub(super) fn choose(candidates: &mut [Candidate], seed: u64, position: u32) -> u32 {
    // In the order of tokens, so that a stage that drops nothing changes nothing.
    candidates.sort_unstable_by_key(|candidate| candidate.token);
    let peak = peak(candidates);
    let mut total = 0.0;
    for candidate in &mut *candidates {
        total += libm::exp(candidate.logit - peak);
        candidate.weight = total; // Running sums: the draw below is a binary search.
    }
    let draw = unit_interval(seed, position) * total;
    let chosen = candidates.partition_point(|candidate| candidate.weight <= draw);
    // Rounding can put the draw at the very end of the last sum.
    candidates[chosen.min(candidates.len() - 1)].token
}

/// A number in [0, 1) that depends on nothing but its arguments (SplitMix64, Steele et al. 2014, with a counter).
fn unit_interval(seed: u64, position: u32) -> f64 {
    let mut x = seed.wrapping_add(0x9E37_79B9_7F4A_7C15u64.wrapping_mul(u64::from(position) + 1));
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^= x >> 31;
    (x >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of a seed is a promise: these numbers may never change. Those of seed 0 are the first outputs of SplitMix64.
    #[test]
    fn random_numbers_are_the_same_on_every_machine_and_in_every_version() {
        let golden: [(u64, u32, u64); 4] = [
            (0, 0, 0x001C_4415_072F_63B9),
            (0, 1, 0x000D_CF13_CD54_372C),
            (1, 0, 0x0012_2145_BD91_204B),
            (u64::MAX, u32::MAX, 0x001A_787F_8585_BD02),
        ];
        for (seed, position, bits) in golden {
            assert_eq!(unit_interval(seed, position) * (1u64 << 53) as f64, bits as f64, "{seed} {position}");
        }
    }
}
