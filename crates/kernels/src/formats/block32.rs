//! Blocks with one float scale per 32 (or 16) weights.

use super::{E2M1_DOUBLED, IQ4_CODEBOOK, WeightType, f16_at};

/// 32 weights: weight `k` is `scales[k / 16] * codes[k] + min`.
///
/// Both scales are equal except in `NVFP4`, whose 64-weight block decodes to two of these.
#[derive(Clone, Debug, PartialEq)]
pub struct Block32 {
    /// One scale per 16 weights, exact.
    pub scales: [f32; 2],
    /// Added to every weight; zero for types without one.
    pub min: f32,
    /// Integer codes after the type's offset or codebook.
    pub codes: [i8; 32],
}

impl Block32 {
    /// Decodes the `index`-th group of 32 weights of `row`, a row of type `ty` as stored in the file.
    ///
    /// # Panics
    /// If `ty` has no float block scales or `row` ends before the group.
    pub fn decode(ty: WeightType, row: &[u8], index: usize) -> Self {
        if ty == WeightType::NVFP4 {
            return decode_nvfp4(&row[index / 2 * 36..][..36], index % 2);
        }
        let bytes = &row[index * ty.block_bytes()..][..ty.block_bytes()];
        let (scale, min, codes) = match ty {
            WeightType::Q8_0 => (f16_at(bytes, 0), 0.0, std::array::from_fn(|k| bytes[2 + k].cast_signed())),
            WeightType::Q4_0 => (f16_at(bytes, 0), 0.0, nibbles(&bytes[2..], |q| q.cast_signed() - 8)),
            WeightType::Q4_1 => (f16_at(bytes, 0), f16_at(bytes, 2), nibbles(&bytes[4..], u8::cast_signed)),
            WeightType::Q5_0 => (f16_at(bytes, 0), 0.0, five_bits(&bytes[2..], 16)),
            WeightType::Q5_1 => (f16_at(bytes, 0), f16_at(bytes, 2), five_bits(&bytes[4..], 0)),
            WeightType::IQ4_NL => (f16_at(bytes, 0), 0.0, nibbles(&bytes[2..], |q| IQ4_CODEBOOK[usize::from(q)])),
            WeightType::MXFP4 => (e8m0_halved(bytes[0]), 0.0, nibbles(&bytes[1..], |q| E2M1_DOUBLED[usize::from(q)])),
            other => panic!("{other} has no float block scales"),
        };
        Self { scales: [scale; 2], min, codes }
    }
}

/// 16 bytes to 32 codes: low nibbles first, then high nibbles.
fn nibbles(bytes: &[u8], value: impl Fn(u8) -> i8) -> [i8; 32] {
    std::array::from_fn(|k| if k < 16 { value(bytes[k] & 15) } else { value(bytes[k - 16] >> 4) })
}

/// 4 bytes of fifth bits, then 16 bytes of nibbles; `offset` is subtracted.
fn five_bits(bytes: &[u8], offset: i8) -> [i8; 32] {
    let high = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let low: [i8; 32] = nibbles(&bytes[4..], u8::cast_signed);
    std::array::from_fn(|k| (low[k] | if high >> k & 1 == 1 { 16 } else { 0 }) - offset)
}

/// `2^(e - 128)`: an E8M0 scale, halved because the codes are doubled. 255 (NaN) stays NaN, so that loading refuses it.
fn e8m0_halved(e: u8) -> f32 {
    match e {
        255 => f32::NAN,
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits(u32::from(e - 1) << 23),
    }
}

/// Half of a UE4M3 scale (bias 7, no infinities, no sign), halved because the codes are doubled.
///
/// 0x7f is the format's NaN. A set high bit means nothing in an unsigned format, and existing readers disagree on it
/// (some ignore it, some negate). Both become NaN, so that loading refuses them.
fn ue4m3_halved(e: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(e >> 3), u32::from(e & 7));
    match e {
        0x7f.. => f32::NAN,
        0..8 => f32::from(e) / 1024.0,
        _ => f32::from_bits((exponent + 119) << 23 | mantissa << 20),
    }
}

/// `NVFP4`: 4 UE4M3 scales, then four 8-byte runs of 16 codes; byte `j` of a run holds codes `j` and `j + 8`.
fn decode_nvfp4(bytes: &[u8], half: usize) -> Block32 {
    let codes = std::array::from_fn(|k| {
        let byte = bytes[4 + half * 16 + k / 16 * 8 + k % 8];
        E2M1_DOUBLED[usize::from(if k % 16 < 8 { byte & 15 } else { byte >> 4 })]
    });
    Block32 { scales: [ue4m3_halved(bytes[half * 2]), ue4m3_halved(bytes[half * 2 + 1])], min: 0.0, codes }
}
