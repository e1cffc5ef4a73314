//! Blocks of 32 weights. All but `IQ4_NL` follow the formats' published rules: the extreme weight sets the scale, the
//! rest are rounded.

use super::{DoesNotFit, f16_bytes, scaled};

/// `d = max|x| / 127`, codes rounded to nearest with ties away from zero.
pub fn q8_0(x: &[f32; 32]) -> Result<[u8; 34], DoesNotFit> {
    let d = x.iter().fold(0.0, |max: f32, v| max.max(v.abs())) / 127.0;
    let inverse = inverse_or_zero(d);
    let mut block = [0; 34];
    block[..2].copy_from_slice(&f16_bytes(d)?);
    for (code, v) in block[2..].iter_mut().zip(x) {
        *code = round_half_away(v * inverse).cast_unsigned();
    }
    Ok(block)
}

/// The weight of greatest magnitude becomes code -8; 4-bit codes.
pub fn q4_0(x: &[f32; 32]) -> Result<[u8; 18], DoesNotFit> {
    let (d, codes) = symmetric::<8>(x);
    let mut block = [0; 18];
    block[..2].copy_from_slice(&f16_bytes(d)?);
    pack_nibbles(&codes, &mut block[2..]);
    Ok(block)
}

/// As [`q4_0`] with -16 and 5-bit codes.
pub fn q5_0(x: &[f32; 32]) -> Result<[u8; 22], DoesNotFit> {
    let (d, codes) = symmetric::<16>(x);
    let mut block = [0; 22];
    block[..2].copy_from_slice(&f16_bytes(d)?);
    block[2..6].copy_from_slice(&fifth_bits(&codes));
    pack_nibbles(&codes, &mut block[6..]);
    Ok(block)
}

/// The least weight becomes code 0, the greatest 15.
pub fn q4_1(x: &[f32; 32]) -> Result<[u8; 20], DoesNotFit> {
    let (d, min, codes) = affine::<15>(x);
    let mut block = [0; 20];
    block[..2].copy_from_slice(&f16_bytes(d)?);
    block[2..4].copy_from_slice(&f16_bytes(min)?);
    pack_nibbles(&codes, &mut block[4..]);
    Ok(block)
}

/// The least weight becomes code 0, the greatest 31.
pub fn q5_1(x: &[f32; 32]) -> Result<[u8; 24], DoesNotFit> {
    let (d, min, codes) = affine::<31>(x);
    let mut block = [0; 24];
    block[..2].copy_from_slice(&f16_bytes(d)?);
    block[2..4].copy_from_slice(&f16_bytes(min)?);
    block[4..8].copy_from_slice(&fifth_bits(&codes));
    pack_nibbles(&codes, &mut block[8..]);
    Ok(block)
}

/// 4-bit indices into a codebook.
pub fn iq4_nl(x: &[f32; 32]) -> Result<[u8; 18], DoesNotFit> {
    let (d, indices) = scaled::search_codebook(x)?;
    let mut block = [0; 18];
    block[..2].copy_from_slice(&f16_bytes(d)?);
    pack_nibbles(&indices, &mut block[2..]);
    Ok(block)
}

/// Scale and codes offset by `HALF`: the first weight of greatest magnitude takes code 0, that is `-HALF`.
fn symmetric<const HALF: u8>(x: &[f32; 32]) -> (f32, [u8; 32]) {
    let extreme = x.iter().fold(0.0, |extreme: f32, &v| if v.abs() > extreme.abs() { v } else { extreme });
    let d = extreme / -f32::from(HALF);
    let inverse = inverse_or_zero(d);
    (d, x.map(|v| floor_to(v * inverse + (f32::from(HALF) + 0.5), 2 * HALF - 1)))
}

/// Scale, min and codes of 0..=`STEPS`.
fn affine<const STEPS: u8>(x: &[f32; 32]) -> (f32, f32, [u8; 32]) {
    // Comparisons, because `f32::min` may return either zero of +0 and -0.
    let min = x.iter().fold(f32::INFINITY, |min, &v| if v < min { v } else { min });
    let max = x.iter().fold(f32::NEG_INFINITY, |max, &v| if v > max { v } else { max });
    let d = (max - min) / f32::from(STEPS);
    let inverse = inverse_or_zero(d);
    (d, min, x.map(|v| floor_to((v - min) * inverse + 0.5, STEPS)))
}

/// `1 / d`, or zero where that overflows: such a `d` is zero in f16, so every code stands for the same weight.
fn inverse_or_zero(d: f32) -> f32 {
    let inverse = 1.0 / d;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The integer part of `v`, within 0..=`most`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, and `most` caps it"
)]
fn floor_to(v: f32, most: u8) -> u8 {
    (v as u8).min(most)
}

/// The nearest integer, ties away from zero. `v + 0.5` would round up the float just below one half.
#[expect(clippy::cast_possible_truncation, reason = "|v| is at most 127, give or take a rounding")]
fn round_half_away(v: f32) -> i8 {
    let whole = v as i32;
    let rest = v - whole as f32;
    (whole + i32::from(rest >= 0.5) - i32::from(rest <= -0.5)) as i8
}

/// 32 codes to 16 bytes: low nibbles are the first 16 codes.
fn pack_nibbles(codes: &[u8; 32], bytes: &mut [u8]) {
    for (k, byte) in bytes.iter_mut().enumerate() {
        *byte = codes[k] & 15 | codes[k + 16] << 4;
    }
}

/// Bit 4 of code `k` as bit `k` of a little-endian word.
fn fifth_bits(codes: &[u8; 32]) -> [u8; 4] {
    codes.iter().enumerate().fold(0, |bits, (k, code)| bits | u32::from(code >> 4 & 1) << k).to_le_bytes()
}
