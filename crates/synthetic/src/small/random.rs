//! Random numbers that are the same everywhere.

/// The splitmix64 generator (Steele, Lea and Flood 2014), seeded per tensor.
pub(super) struct Random(u64);

impl Random {
    /// A generator for the tensor `name` of a model with `seed`. Another name gives unrelated numbers, so that a tensor
    /// does not depend on which others the model has.
    pub(super) fn for_tensor(seed: u64, name: &str) -> Self {
        // FNV-1a, 64 bits.
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        Self(seed ^ name.bytes().fold(0xcbf2_9ce4_8422_2325, hash))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A uniform multiple of 2^-23 in [-1, 1).
    pub(super) fn signed_unit(&mut self) -> f32 {
        let top = u32::try_from(self.next() >> 40).expect("24 bits are left");
        // Exact: an integer of at most 24 bits, a division by a power of two, and a difference that fits 24 bits.
        top as f32 / 8_388_608.0 - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        let mut random = Random(1_234_567);
        let first = [random.next(), random.next(), random.next()];
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn units_fill_their_range_evenly() {
        let mut random = Random::for_tensor(1, "x");
        let units: Vec<f32> = (0..100_000).map(|_| random.signed_unit()).collect();
        assert!(units.iter().all(|unit| (-1.0..1.0).contains(unit)));
        let mean = units.iter().sum::<f32>() / 100_000.0;
        let square = units.iter().map(|unit| unit * unit).sum::<f32>() / 100_000.0;
        assert!(mean.abs() < 0.01 && (square - 1.0 / 3.0).abs() < 0.01, "{mean} {square}");
    }
}
