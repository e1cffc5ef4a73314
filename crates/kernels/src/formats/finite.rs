//! The check of weights at load: a NaN or an infinity in a file is found before any arithmetic meets it.

use super::WeightType;

/// Index of the first block of `bytes`, stored as `ty`, whose scale or min is NaN, infinite or reserved.
///
/// Checked: every element of `F32`, `F16` and `BF16` (a block is one element); `d`, `dmin` or `m` of the others; the
/// scale byte of `MXFP4` (255 is NaN); the four of `NVFP4` (0x7f is NaN, a set high bit is reserved). Finite scales
/// still allow an infinite weight in one place: `MXFP4` scale bytes 253 and 254 with large codes pass f32's range.
/// Bytes after the last whole block are not checked.
pub fn first_non_finite(ty: WeightType, bytes: &[u8]) -> Option<usize> {
    match ty {
        WeightType::F32 => first(bytes, |e: &[u8; 4]| u32::from_le_bytes(*e) & 0x7f80_0000 == 0x7f80_0000),
        WeightType::F16 => first(bytes, |e: &[u8; 2]| bad_f16(*e)),
        WeightType::BF16 => first(bytes, |e: &[u8; 2]| u16::from_le_bytes(*e) & 0x7f80 == 0x7f80),
        WeightType::Q4_0 | WeightType::IQ4_NL => first(bytes, |b: &[u8; 18]| bad_f16([b[0], b[1]])),
        WeightType::Q5_0 => first(bytes, |b: &[u8; 22]| bad_f16([b[0], b[1]])),
        WeightType::Q8_0 => first(bytes, |b: &[u8; 34]| bad_f16([b[0], b[1]])),
        WeightType::IQ4_XS => first(bytes, |b: &[u8; 136]| bad_f16([b[0], b[1]])),
        WeightType::Q6_K => first(bytes, |b: &[u8; 210]| bad_f16([b[208], b[209]])),
        WeightType::Q4_1 => first(bytes, |b: &[u8; 20]| bad_f16([b[0], b[1]]) | bad_f16([b[2], b[3]])),
        WeightType::Q5_1 => first(bytes, |b: &[u8; 24]| bad_f16([b[0], b[1]]) | bad_f16([b[2], b[3]])),
        WeightType::Q4_K => first(bytes, |b: &[u8; 144]| bad_f16([b[0], b[1]]) | bad_f16([b[2], b[3]])),
        WeightType::Q5_K => first(bytes, |b: &[u8; 176]| bad_f16([b[0], b[1]]) | bad_f16([b[2], b[3]])),
        WeightType::MXFP4 => first(bytes, |b: &[u8; 17]| b[0] == 255),
        WeightType::NVFP4 => first(bytes, |b: &[u8; 36]| b[..4].iter().any(|&scale| scale >= 0x7f)),
    }
}

fn bad_f16(bytes: [u8; 2]) -> bool {
    u16::from_le_bytes(bytes) & 0x7c00 == 0x7c00
}

/// Index of the first `N`-byte block that `bad` holds for. Whole runs are tested without branches, because nearly
/// every tensor is clean.
fn first<const N: usize>(bytes: &[u8], bad: impl Fn(&[u8; N]) -> bool) -> Option<usize> {
    const RUN: usize = 256;
    let (blocks, _) = bytes.as_chunks::<N>();
    let run = blocks.chunks(RUN).position(|run| run.iter().fold(false, |any, block| any | bad(block)))?;
    blocks[run * RUN..].iter().position(bad).map(|within| run * RUN + within)
}
