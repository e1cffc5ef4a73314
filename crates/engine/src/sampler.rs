//! Choosing the next token from logits.
//!
//! One implementation, on the CPU, in software floating point: the same seed gives the same text on every machine. The
//! random number of a position is a pure function of (seed, position), so it does not matter whether the tokens before it
//! were computed here, resumed or received, nor who else was served in between.

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by this before the softmax; 0 means greedy. Finite, not negative.
    pub temperature: f32,
    /// Seeds the random numbers; not used when greedy.
    pub seed: u64,
}

/// A sampling setting that cannot be used.
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// Negative, infinite or not a number.
    #[error("temperature {0} is not a finite number >= 0")]
    Temperature(f32),
}

/// Chooses tokens; keeps a workspace so that no token allocates.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    weights: Vec<f64>,
}

impl Sampler {
    /// A sampler for logits of `vocab` tokens.
    ///
    /// # Errors
    /// [`SamplingError`] when the settings are out of range.
    pub fn new(sampling: Sampling, vocab: usize) -> Result<Self, SamplingError> {
        if !(sampling.temperature.is_finite() && sampling.temperature >= 0.0) {
            return Err(SamplingError::Temperature(sampling.temperature));
        }
        Ok(Self { sampling, weights: Vec::with_capacity(vocab) })
    }

    /// The token that follows the one at `position`, given its `logits` (finite, one per token of the vocabulary).
    ///
    /// # Panics
    /// If `logits` is empty.
    pub fn choose(&mut self, logits: &[f32], position: u32) -> u32 {
        let (best, peak) = argmax(logits);
        if self.sampling.temperature == 0.0 {
            return best;
        }
        let temperature = f64::from(self.sampling.temperature);
        let mut total = 0.0;
        self.weights.clear();
        for &z in logits {
            total += libm::exp((f64::from(z) - f64::from(peak)) / temperature);
            self.weights.push(total); // Running sums: the draw below is a binary search.
        }
        let draw = unit_interval(self.sampling.seed, position) * total;
        let chosen = self.weights.partition_point(|&sum| sum <= draw);
        // Rounding can put the draw at the very end of the last sum.
        u32::try_from(chosen.min(logits.len() - 1)).unwrap_or(best)
    }
}

/// The highest logit and its token; the lowest token wins a tie.
fn argmax(logits: &[f32]) -> (u32, f32) {
    let mut best = (0, logits[0]);
    for (token, &z) in (0u32..).zip(logits) {
        if z > best.1 {
            best = (token, z);
        }
    }
    best
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

    fn sampler(temperature: f32, seed: u64) -> Sampler {
        Sampler::new(Sampling { temperature, seed }, 4).unwrap()
    }

    #[test]
    fn greedy_takes_the_highest_and_the_lowest_token_of_a_tie() {
        assert_eq!(sampler(0.0, 1).choose(&[0.5, 2.0, 2.0, -1.0], 9), 1);
        assert_eq!(sampler(0.0, 1).choose(&[-3.0], 0), 0);
    }

    #[test]
    fn temperature_zero_point_zero_one_is_nearly_greedy() {
        for position in 0..200 {
            assert_eq!(sampler(0.01, 7).choose(&[0.0, 1.0, 0.5, 0.2], position), 1);
        }
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let logits = [0.0, 1.0, 2.0, f32::from(-3i8)];
        let mut sampler = sampler(1.0, 42);
        let mut counts = [0u32; 4];
        for position in 0..20_000 {
            counts[sampler.choose(&logits, position) as usize] += 1;
        }
        let total: f64 = logits.iter().map(|&z| f64::from(z).exp()).sum();
        for (z, n) in logits.iter().zip(counts) {
            let (want, got) = (f64::from(*z).exp() / total, f64::from(n) / 20_000.0);
            assert!((want - got).abs() < 0.01, "{want} {got}");
        }
    }

    #[test]
    fn a_draw_depends_on_seed_and_position_only() {
        let logits: Vec<f32> = (0..100).map(|i| (i % 7) as f32 * 0.1).collect();
        let mut a = sampler(0.8, 5);
        let forward: Vec<u32> = (0..50).map(|p| a.choose(&logits, p)).collect();
        let mut b = sampler(0.8, 5);
        let backward: Vec<u32> = (0..50).rev().map(|p| b.choose(&logits, p)).collect();
        assert!(forward.iter().eq(backward.iter().rev()));
        let mut other = sampler(0.8, 6);
        assert_ne!(forward, (0..50).map(|p| other.choose(&logits, p)).collect::<Vec<_>>());
    }

    #[test]
    fn bad_temperatures_are_refused() {
        for t in [-0.1, f32::NAN, f32::INFINITY] {
            assert!(matches!(
                Sampler::new(Sampling { temperature: t, seed: 0 }, 4),
                Err(SamplingError::Temperature(_))
            ));
        }
    }
}
