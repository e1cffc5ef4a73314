//! Blocks of 256 weights with integer sub-scales.

use super::{IQ4_CODEBOOK, WeightType, f16_at};

/// 256 weights: weight `k` is `d * scales[k / 16] * codes[k] - dmin * mins[k / 16]`.
///
/// Types whose sub-blocks hold 32 weights repeat each sub-scale and sub-min twice.
#[derive(Clone, Debug, PartialEq)]
pub struct KBlock {
    /// Scale of the block's sub-scales, exact.
    pub d: f32,
    /// Scale of the block's sub-mins; zero for types without mins.
    pub dmin: f32,
    /// Integer sub-scale of each 16 weights: 0..=63, or signed for `Q6_K` and `IQ4_XS`.
    pub scales: [i8; 16],
    /// Integer sub-min of each 16 weights, 0..=63.
    pub mins: [u8; 16],
    /// Integer codes after the type's offset or codebook.
    pub codes: [i8; 256],
}

impl KBlock {
    /// Decodes the `index`-th block of `row`, a row of type `ty` as stored in the file.
    ///
    /// # Panics
    /// If `ty` has no integer sub-scales or `row` ends before the block.
    pub fn decode(ty: WeightType, row: &[u8], index: usize) -> Self {
        let bytes = &row[index * ty.block_bytes()..][..ty.block_bytes()];
        match ty {
            WeightType::Q4_K => decode_q4_k(bytes),
            WeightType::Q5_K => decode_q5_k(bytes),
            WeightType::Q6_K => decode_q6_k(bytes),
            WeightType::IQ4_XS => decode_iq4_xs(bytes),
            other => panic!("{other} has no integer sub-scales"),
        }
    }
}

/// d, dmin, 12 bytes of scales and mins, 128 bytes of nibbles: each 32 bytes hold two sub-blocks, low nibbles first.
fn decode_q4_k(bytes: &[u8]) -> KBlock {
    let (scales, mins) = six_bit_pairs(&bytes[4..16]);
    let codes = nibbles_of_pairs(&bytes[16..144]);
    KBlock { d: f16_at(bytes, 0), dmin: f16_at(bytes, 2), scales, mins, codes }
}

/// As `Q4_K`, with 32 bytes of fifth bits before the nibbles: bit `j` of byte `k` belongs to weight `32 j + k`.
fn decode_q5_k(bytes: &[u8]) -> KBlock {
    let (scales, mins) = six_bit_pairs(&bytes[4..16]);
    let mut codes = nibbles_of_pairs(&bytes[48..176]);
    for (j, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (code, high) in codes.iter_mut().zip(&bytes[16..48]) {
            *code |= (high >> j & 1).cast_signed() << 4;
        }
    }
    KBlock { d: f16_at(bytes, 0), dmin: f16_at(bytes, 2), scales, mins, codes }
}

/// 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, d. Each half of the block takes 64 + 32 bytes.
fn decode_q6_k(bytes: &[u8]) -> KBlock {
    let mut codes = [0; 256];
    for (block, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (half, quarter) = (block / 4, block % 4);
        let low_bytes = &bytes[half * 64 + quarter % 2 * 32..][..32];
        let high_bytes = &bytes[128 + half * 32..][..32];
        for (code, (low, high)) in codes.iter_mut().zip(low_bytes.iter().zip(high_bytes)) {
            let low = low >> (quarter / 2 * 4) & 15;
            *code = (low | (high >> (quarter * 2) & 3) << 4).cast_signed() - 32;
        }
    }
    let scales = std::array::from_fn(|j| bytes[192 + j].cast_signed());
    KBlock { d: f16_at(bytes, 208), dmin: 0.0, scales, mins: [0; 16], codes }
}

/// d, 16 high bit pairs of scales, 4 bytes of their low nibbles, 8 runs of 16 bytes: low nibbles first, then high.
fn decode_iq4_xs(bytes: &[u8]) -> KBlock {
    let high = u16::from_le_bytes([bytes[2], bytes[3]]);
    let scales = std::array::from_fn(|j| {
        let sub = j / 2;
        let low = bytes[4 + sub / 2] >> (sub % 2 * 4) & 15;
        let pair =
            if high >> (sub * 2) & 1 == 1 { 16 } else { 0 } + if high >> (sub * 2 + 1) & 1 == 1 { 32 } else { 0 };
        (low.cast_signed() | pair) - 32
    });
    let mut codes = [0; 256];
    for (codes, bytes) in codes.as_chunks_mut::<32>().0.iter_mut().zip(bytes[8..136].as_chunks::<16>().0) {
        let (low, high) = codes.split_at_mut(16);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
            *low = IQ4_CODEBOOK[usize::from(byte & 15)];
            *high = IQ4_CODEBOOK[usize::from(byte >> 4)];
        }
    }
    KBlock { d: f16_at(bytes, 0), dmin: 0.0, scales, mins: [0; 16], codes }
}

/// 128 bytes to 256 codes: each 32 bytes hold 32 codes in their low nibbles and the next 32 in their high nibbles.
fn nibbles_of_pairs(bytes: &[u8]) -> [i8; 256] {
    let mut codes = [0; 256];
    for (codes, bytes) in codes.as_chunks_mut::<64>().0.iter_mut().zip(bytes.as_chunks::<32>().0) {
        let (low, high) = codes.split_at_mut(32);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
            *low = (byte & 15).cast_signed();
            *high = (byte >> 4).cast_signed();
        }
    }
    codes
}

/// The 8 six-bit scales and 8 six-bit mins packed into 12 bytes, each repeated for both halves of its 32 weights.
fn six_bit_pairs(bytes: &[u8]) -> ([i8; 16], [u8; 16]) {
    let sub = |j: usize| {
        if j < 4 {
            (bytes[j] & 63, bytes[j + 4] & 63)
        } else {
            (bytes[j + 4] & 15 | bytes[j - 4] >> 6 << 4, bytes[j + 4] >> 4 | bytes[j] >> 6 << 4)
        }
    };
    (std::array::from_fn(|j| sub(j / 2).0.cast_signed()), std::array::from_fn(|j| sub(j / 2).1))
}
