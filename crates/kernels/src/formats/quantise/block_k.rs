//! Blocks of 256 weights: the searches' results in the formats' bit layouts.

use super::{DoesNotFit, affine, f16_bytes, scaled};

/// 4-bit codes.
pub fn q4_k(x: &[f32; 256]) -> Result<[u8; 144], DoesNotFit> {
    let found = affine::search::<15>(x)?;
    let mut block = [0; 144];
    block[..2].copy_from_slice(&f16_bytes(found.d)?);
    block[2..4].copy_from_slice(&f16_bytes(found.dmin)?);
    block[4..16].copy_from_slice(&six_bit_pairs(&found.scales, &found.mins));
    low_nibbles(&found.codes, &mut block[16..]);
    Ok(block)
}

/// 5-bit codes: the fifth bit of weight `32 j + k` is bit `j` of byte `k`.
pub fn q5_k(x: &[f32; 256]) -> Result<[u8; 176], DoesNotFit> {
    let found = affine::search::<31>(x)?;
    let mut block = [0; 176];
    block[..2].copy_from_slice(&f16_bytes(found.d)?);
    block[2..4].copy_from_slice(&f16_bytes(found.dmin)?);
    block[4..16].copy_from_slice(&six_bit_pairs(&found.scales, &found.mins));
    for (k, code) in found.codes.iter().enumerate() {
        block[16 + k % 32] |= code >> 4 << (k / 32);
    }
    low_nibbles(&found.codes, &mut block[48..]);
    Ok(block)
}

/// 6-bit codes: low nibbles, then pairs of high bits, then 8-bit scales, then `d`. Each half of the block is separate.
pub fn q6_k(x: &[f32; 256]) -> Result<[u8; 210], DoesNotFit> {
    let found = scaled::search(x)?;
    let mut block = [0; 210];
    for (k, code) in found.codes.iter().enumerate() {
        let (half, quarter, i) = (k / 128, k % 128 / 32, k % 32);
        let code = (code + 32).cast_unsigned();
        block[half * 64 + quarter % 2 * 32 + i] |= (code & 15) << (quarter / 2 * 4);
        block[128 + half * 32 + i] |= code >> 4 << (quarter * 2);
    }
    for (byte, scale) in block[192..208].iter_mut().zip(found.scales) {
        *byte = scale.cast_unsigned();
    }
    block[208..].copy_from_slice(&f16_bytes(found.d)?);
    Ok(block)
}

/// 8 six-bit scales and mins in 12 bytes: the first four of each plain, the upper bits of the others above them.
fn six_bit_pairs(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    std::array::from_fn(|byte| match byte {
        0..4 => scales[byte] | scales[byte + 4] >> 4 << 6,
        4..8 => mins[byte - 4] | mins[byte] >> 4 << 6,
        _ => scales[byte - 4] & 15 | (mins[byte - 4] & 15) << 4,
    })
}

/// Each 32 bytes hold the low nibbles of one sub-block of 32 and, above them, those of the next.
fn low_nibbles(codes: &[u8; 256], bytes: &mut [u8]) {
    for (at, byte) in bytes.iter_mut().enumerate() {
        let first = at / 32 * 64 + at % 32;
        *byte = codes[first] & 15 | (codes[first + 32] & 15) << 4;
    }
}
