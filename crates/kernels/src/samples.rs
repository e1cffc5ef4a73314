//! Random tensors of every weight type as stored in a file, and random activations, both with the corner cases that
//! break careless arithmetic: operands for comparing an implementation with the scalar references.

use crate::formats::WeightType;
use half::{bf16, f16};

/// Corner case that a tensor's scales and codes are drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Scales and codes as of a trained model.
    Ordinary,
    /// Some scales are zero of either sign, with and without a min, and some are the smallest subnormal.
    ZeroScales,
    /// Scales of both signs and all sizes; mins far larger or smaller than them.
    WildScales,
    /// All codes and sub-scales at the ends of their range.
    ExtremeCodes,
    /// Sub-scales and mins that bring `|w'|` and its sums near their limits.
    NearLimits,
}

impl Flavour {
    /// Every flavour.
    pub const ALL: [Self; 5] =
        [Self::Ordinary, Self::ZeroScales, Self::WildScales, Self::ExtremeCodes, Self::NearLimits];
}

/// `rows` rows of `cols` weights of type `ty`.
pub fn raw_tensor(ty: WeightType, rows: usize, cols: usize, flavour: Flavour, rng: &mut fastrand::Rng) -> Vec<u8> {
    let blocks = rows * cols / ty.block_len();
    let mut raw = Vec::with_capacity(blocks * ty.block_bytes());
    for _ in 0..blocks {
        let at = raw.len();
        raw.extend((0..ty.block_bytes()).map(|_| rng.u8(..)));
        fill_block(ty, &mut raw[at..], flavour, rng);
    }
    raw
}

fn fill_block(ty: WeightType, block: &mut [u8], flavour: Flavour, rng: &mut fastrand::Rng) {
    if flavour == Flavour::ExtremeCodes {
        let choices = [0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0];
        let byte = choices[rng.usize(..choices.len())];
        block.fill(byte);
    }
    let d = scale(flavour, rng);
    match ty {
        WeightType::F32 => block.copy_from_slice(&(plain(flavour, rng)).to_le_bytes()),
        WeightType::F16 => put_half(block, 0, f16::from_f32(plain(flavour, rng).clamp(-60000.0, 60000.0))),
        WeightType::BF16 => block.copy_from_slice(&bf16::from_f32(plain(flavour, rng)).to_le_bytes()),
        WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0 | WeightType::IQ4_NL | WeightType::IQ4_XS => {
            put_half(block, 0, d);
        }
        WeightType::Q6_K => put_half(block, 208, d),
        WeightType::Q4_1 | WeightType::Q5_1 => {
            put_half(block, 0, d);
            put_half(block, 2, scale(flavour, rng));
        }
        WeightType::Q4_K | WeightType::Q5_K => fill_block_with_integer_mins(block, d, flavour, rng),
        WeightType::MXFP4 => {
            block[0] = match flavour {
                Flavour::Ordinary => rng.u8(115..125),
                Flavour::ZeroScales => rng.u8(0..3),
                _ => rng.u8(0..255),
            }
        }
        WeightType::NVFP4 => {
            for byte in &mut block[..4] {
                *byte = if flavour == Flavour::ZeroScales { rng.u8(0..9) } else { rng.u8(0..0x7f) };
            }
        }
    }
}

/// `d`, `dmin` and the packed sub-scales of `Q4_K` and `Q5_K`.
fn fill_block_with_integer_mins(block: &mut [u8], d: f16, flavour: Flavour, rng: &mut fastrand::Rng) {
    put_half(block, 0, d);
    let ratio = match flavour {
        Flavour::Ordinary => 2.0 + 3.0 * rng.f32(),
        // Around the ratio where the largest |w'| is 2047 or 32767, or the sum of a block meets its limit.
        Flavour::NearLimits => [7.5, 7.5, 7.5, 16.2, 520.0][rng.usize(..5)] * (1.0 + 0.02 * (rng.f32() - 0.5)),
        _ => return put_half(block, 2, scale(flavour, rng)),
    };
    put_half(block, 2, f16::from_f32(d.to_f32() * ratio));
    if flavour == Flavour::NearLimits && rng.bool() {
        // All sub-scales and sub-mins at 63.
        block[4..16].fill(0xff);
    }
}

/// A scale of a block; finite.
fn scale(flavour: Flavour, rng: &mut fastrand::Rng) -> f16 {
    let value = f16::from_f32(0.001 + 0.05 * rng.f32());
    match flavour {
        Flavour::Ordinary | Flavour::NearLimits => value,
        Flavour::ExtremeCodes => {
            if rng.bool() {
                value
            } else {
                -value
            }
        }
        Flavour::ZeroScales => match rng.u8(..5) {
            0 => f16::ZERO,
            1 => f16::NEG_ZERO,
            2 => f16::from_bits(1),
            _ => value,
        },
        Flavour::WildScales => {
            let bits = rng.u16(..);
            if bits & 0x7c00 == 0x7c00 { f16::MAX } else { f16::from_bits(bits) }
        }
    }
}

/// A float weight; finite.
fn plain(flavour: Flavour, rng: &mut fastrand::Rng) -> f32 {
    match flavour {
        Flavour::Ordinary | Flavour::NearLimits => rng.f32() - 0.5,
        Flavour::ZeroScales => [0.0, -0.0, f32::from_bits(1), -f32::from_bits(3)][rng.usize(..4)],
        Flavour::ExtremeCodes => [60000.0, -60000.0, 1.0][rng.usize(..3)],
        Flavour::WildScales => {
            let value = f32::from_bits(rng.u32(..));
            if value.is_finite() && value.abs() < 1e30 { value } else { 1.5 }
        }
    }
}

fn put_half(block: &mut [u8], at: usize, value: f16) {
    block[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Non-finite values of a block of `ty`: the byte offset of each, and its bytes.
pub fn non_finite_values(ty: WeightType) -> Vec<(usize, Vec<u8>)> {
    let halves = [f16::INFINITY, f16::NEG_INFINITY, f16::NAN].map(|value| value.to_le_bytes().to_vec());
    let at_each = |places: &[usize]| {
        places.iter().flat_map(|&at| halves.iter().map(move |bytes| (at, bytes.clone()))).collect::<Vec<_>>()
    };
    match ty {
        WeightType::F32 => [f32::INFINITY, f32::NEG_INFINITY, f32::NAN].map(|x| (0, x.to_le_bytes().to_vec())).into(),
        WeightType::BF16 => {
            [bf16::INFINITY, bf16::NEG_INFINITY, bf16::NAN].map(|x| (0, x.to_le_bytes().to_vec())).into()
        }
        WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4_K | WeightType::Q5_K => at_each(&[0, 2]),
        WeightType::Q6_K => at_each(&[208]),
        WeightType::MXFP4 => vec![(0, vec![255])],
        WeightType::NVFP4 => (0..4).flat_map(|at| [(at, vec![0x7f]), (at, vec![0xff])]).collect(),
        _ => at_each(&[0]),
    }
}

/// A row of `cols` finite activations, made of stretches of different kinds.
pub fn activation_row(cols: usize, rng: &mut fastrand::Rng) -> Vec<f32> {
    let mut row = Vec::with_capacity(cols);
    let stretch = [32, 256, 40][rng.usize(..3)];
    while row.len() < cols {
        let kind = rng.u8(..12);
        let size = f32::from_bits((rng.u32(100..140)) << 23);
        for _ in 0..stretch.min(cols - row.len()) {
            let uniform = 2.0 * rng.f32() - 1.0;
            row.push(match kind {
                0 => [0.0, -0.0][rng.usize(..2)],
                1 => size,
                2 => -size,
                3 => [size, -size][rng.usize(..2)],
                // Around 2^-100, below which a group is zero.
                4 => uniform * f32::from_bits((127 - 100) << 23),
                5 => f32::from_bits((127 - 100) << 23) * [1.0, -1.0, 0.5][rng.usize(..3)],
                6 => f32::from_bits(rng.u32(..1 << 23)),
                // Half steps: ties of the rounding.
                7 => (uniform * 254.0).round_ties_even() * 0.5 * size,
                8 => uniform * 3e38,
                9 => {
                    if rng.u8(..32) == 0 {
                        1000.0 * size
                    } else {
                        uniform * size
                    }
                }
                _ => uniform * size,
            });
        }
    }
    row
}
