//! The definition of a product, written as rules 1 to 4b of `docs/numerics.md` are: row by row from the bytes of the
//! file, one rounding per written operation. Everything else in this crate returns these bits. Slow by design.

use crate::formats::{Block32, KBlock, WeightClass, WeightType};
use crate::matrix::MatrixError;

/// Bits per activation code and activations per scale: the parameters of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantisation {
    /// 8 or 10.
    pub bits: u32,
    /// 32, 128 or 256.
    pub group: usize,
}

impl Quantisation {
    /// Default for weights with integer sub-scales.
    pub const INT8X256: Self = Self { bits: 8, group: 256 };
    /// Default for weights with float scales.
    pub const INT8X32: Self = Self { bits: 8, group: 32 };

    /// The largest code, `2^(bits - 1) - 1`.
    pub fn largest_code(self) -> i32 {
        (1 << (self.bits - 1)) - 1
    }

    /// `LIM` of rule 1.
    pub fn limit(self) -> i32 {
        ((1 << 24) - 1) / self.largest_code()
    }
}

/// A vector after rule 2.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantisedVector {
    /// Values per scale.
    pub group: usize,
    /// One code per value.
    pub codes: Vec<i32>,
    /// One scale per group.
    pub scales: Vec<f32>,
}

/// Rule 2, or `None` if `x` holds a NaN or an infinity.
pub fn quantise(x: &[f32], quantisation: Quantisation) -> Option<QuantisedVector> {
    let Quantisation { group, .. } = quantisation;
    if x.iter().any(|value| value.is_nan() || value.is_infinite()) {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "at most 511")]
    let largest_code = quantisation.largest_code() as f32;
    let (mut codes, mut scales) = (Vec::with_capacity(x.len()), Vec::new());
    for values in x.chunks(group) {
        let mut largest = 0.0f32;
        for value in values {
            largest = largest.max(value.abs());
        }
        if largest < 2f32.powi(-100) {
            codes.extend(values.iter().map(|_| 0));
            scales.push(0.0);
            continue;
        }
        let inverse = largest_code / largest;
        for value in values {
            let rounded = (value * inverse).round_ties_even().clamp(-largest_code, largest_code);
            #[expect(clippy::cast_possible_truncation, reason = "an integer of at most 511")]
            codes.push(rounded as i32);
        }
        scales.push(largest / largest_code);
    }
    Some(QuantisedVector { group, codes, scales })
}

/// Form of a `Q4_K` or `Q5_K` tensor's weights under rule 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntegerForm {
    /// `w' = 2^e sc q - M`.
    Exponent(u32),
    /// Class GEN.
    General,
}

/// Rule 1 for all of `raw`, rows of `cols` weights: the form of the whole tensor.
pub fn integer_form(ty: WeightType, cols: usize, raw: &[u8], quantisation: Quantisation) -> IntegerForm {
    let row_bytes = cols / ty.block_len() * ty.block_bytes();
    let blocks: Vec<KBlock> = raw
        .chunks_exact(row_bytes)
        .flat_map(|row| (0..cols / 256).map(|index| KBlock::decode(ty, row, index)).collect::<Vec<_>>())
        .collect();
    if blocks.iter().any(|block| block.d == 0.0 && block.dmin != 0.0) {
        return IntegerForm::General;
    }
    let half_steps_fit = blocks.iter().all(|block| {
        integer_weights(block, 1).is_some_and(|weights| {
            let sums_fit = weights
                .chunks(quantisation.group)
                .all(|group| group.iter().map(|weight| weight.abs()).sum::<i64>() <= i64::from(quantisation.limit()));
            sums_fit && weights.iter().all(|weight| weight.abs() <= 2047)
        })
    });
    let whole_steps_fit = || {
        blocks.iter().all(|block| {
            integer_weights(block, 0).is_some_and(|weights| weights.iter().all(|weight| weight.abs() <= 32767))
        })
    };
    match half_steps_fit {
        true => IntegerForm::Exponent(1),
        false if whole_steps_fit() => IntegerForm::Exponent(0),
        false => IntegerForm::General,
    }
}

/// `M_j` of rule 1, or `None` beyond +-32767.
fn integer_min(block: &KBlock, j: usize, exponent: u32) -> Option<i64> {
    let ratio = if block.d == 0.0 { 0.0 } else { block.dmin / block.d };
    let product = ratio * f32::from(block.mins[2 * j]);
    let scaled = product * if exponent == 1 { 2.0 } else { 1.0 };
    let rounded = scaled.round_ties_even();
    #[expect(clippy::cast_possible_truncation, reason = "an integer of at most 32767")]
    (rounded.abs() <= 32767.0).then_some(rounded as i64)
}

/// The 256 `w'` of a block with mins, or `None` if some `M_j` is beyond +-32767.
fn integer_weights(block: &KBlock, exponent: u32) -> Option<Vec<i64>> {
    let mut weights = Vec::with_capacity(256);
    for j in 0..8 {
        let min = integer_min(block, j, exponent)?;
        let scale = i64::from(block.scales[2 * j]) << exponent;
        weights.extend(block.codes[32 * j..][..32].iter().map(|&code| scale * i64::from(code) - min));
    }
    Some(weights)
}

/// Rule 3 and class GEN: one row of a type with integer sub-scales times `x`.
pub fn dot_integer_scales(ty: WeightType, row: &[u8], form: IntegerForm, x: &QuantisedVector) -> f32 {
    let exponent = match form {
        IntegerForm::General => return dot_general(ty, row, x),
        IntegerForm::Exponent(exponent) => exponent,
    };
    let mut acc = 0.0f32;
    for (g, codes) in x.codes.chunks(x.group).enumerate() {
        let first = g * x.group;
        let block = KBlock::decode(ty, row, first / 256);
        let has_mins = matches!(ty, WeightType::Q4_K | WeightType::Q5_K);
        // The form says that no M is beyond its range.
        let weights: Vec<i64> = match has_mins {
            true => integer_weights(&block, exponent).unwrap_or_default(),
            false => (0..256).map(|k| i64::from(block.scales[k / 16]) * i64::from(block.codes[k])).collect(),
        };
        let weights = &weights[first % 256..][..codes.len()];
        let sum: i64 = weights.iter().zip(codes).map(|(weight, &code)| weight * i64::from(code)).sum();
        let d = if has_mins && exponent == 1 { block.d * 0.5 } else { block.d };
        acc = (d * x.scales[g]).mul_add(to_f32(sum), acc);
    }
    acc
}

/// Class GEN: one float chain for scales and one for mins.
fn dot_general(ty: WeightType, row: &[u8], x: &QuantisedVector) -> f32 {
    let (mut scales, mut mins) = (0.0f32, 0.0f32);
    for (g, codes) in x.codes.chunks(x.group).enumerate() {
        let first = g * x.group;
        let block = KBlock::decode(ty, row, first / 256);
        let (mut scaled, mut offset) = (0i64, 0i64);
        for (i, &code) in codes.iter().enumerate() {
            let k = first % 256 + i;
            scaled += i64::from(block.scales[k / 16]) * i64::from(block.codes[k]) * i64::from(code);
            offset += i64::from(block.mins[k / 16]) * i64::from(code);
        }
        scales = (block.d * x.scales[g]).mul_add(to_f32(scaled), scales);
        mins = (block.dmin * x.scales[g]).mul_add(to_f32(offset), mins);
    }
    scales - mins
}

/// Rule 4: one row of a type with float scales times `x`.
pub fn dot_float_scales(ty: WeightType, row: &[u8], x: &QuantisedVector) -> f32 {
    let run = if ty == WeightType::NVFP4 { 16 } else { 32 };
    let has_mins = matches!(ty, WeightType::Q4_1 | WeightType::Q5_1);
    let mut acc = 0.0f32;
    for (g, codes) in x.codes.chunks(x.group).enumerate() {
        let mut group_sum = 0.0f32;
        for (i, codes) in codes.chunks(run).enumerate() {
            let first = g * x.group + i * run;
            let block = Block32::decode(ty, row, first / 32);
            let weights = &block.codes[first % 32..][..codes.len()];
            let product: i64 =
                weights.iter().zip(codes).map(|(&weight, &code)| i64::from(weight) * i64::from(code)).sum();
            group_sum = block.scales[first % 32 / 16].mul_add(to_f32(product), group_sum);
            if has_mins {
                let sum: i64 = codes.iter().map(|&code| i64::from(code)).sum();
                group_sum = block.min.mul_add(to_f32(sum), group_sum);
            }
        }
        acc = x.scales[g].mul_add(group_sum, acc);
    }
    acc
}

/// Rule 4b: one row of floats times `x`.
pub fn dot_floats(ty: WeightType, row: &[u8], x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 32];
    for (k, value) in x.iter().enumerate() {
        lanes[k % 32] = float_weight(ty, row, k).mul_add(*value, lanes[k % 32]);
    }
    for half in [16, 8, 4, 2, 1] {
        for l in 0..half {
            lanes[l] += lanes[l + half];
        }
    }
    lanes[0]
}

/// Weight `k` of a row of floats, widened exactly.
fn float_weight(ty: WeightType, row: &[u8], k: usize) -> f32 {
    match ty {
        WeightType::F32 => f32::from_le_bytes([row[4 * k], row[4 * k + 1], row[4 * k + 2], row[4 * k + 3]]),
        WeightType::F16 => half::f16::from_le_bytes([row[2 * k], row[2 * k + 1]]).to_f32(),
        WeightType::BF16 => half::bf16::from_le_bytes([row[2 * k], row[2 * k + 1]]).to_f32(),
        other => panic!("{other} is no float type"),
    }
}

/// `f(I)`: an int32 rounded once. Rules 1 and 2 keep every sum within int32.
#[expect(clippy::cast_precision_loss, reason = "the one rounding of the rule")]
fn to_f32(sum: i64) -> f32 {
    sum as f32
}

/// The product of all rows of `raw`, a tensor of `cols` columns, with `x`, by the rules of its type; `None` if `x` holds
/// a NaN or an infinity. `quantisation` has no effect on float types.
///
/// # Errors
/// If `raw` is not whole rows of whole blocks.
pub fn multiply(
    ty: WeightType,
    cols: usize,
    raw: &[u8],
    x: &[f32],
    quantisation: Quantisation,
) -> Result<Option<Vec<f32>>, MatrixError> {
    let row_bytes = ty.row_bytes(cols).filter(|&bytes| bytes > 0).ok_or(MatrixError::Columns { ty, cols })?;
    if !raw.len().is_multiple_of(row_bytes) || x.len() != cols {
        return Err(MatrixError::Bytes { expected: raw.len().next_multiple_of(row_bytes), got: raw.len() });
    }
    let Some(quantised) = quantise(x, quantisation) else { return Ok(None) };
    let rows = raw.chunks_exact(row_bytes);
    Ok(Some(match ty.class() {
        WeightClass::IntegerScales => {
            let form = match ty {
                WeightType::Q4_K | WeightType::Q5_K => integer_form(ty, cols, raw, quantisation),
                _ => IntegerForm::Exponent(0),
            };
            rows.map(|row| dot_integer_scales(ty, row, form, &quantised)).collect()
        }
        WeightClass::FloatScales => rows.map(|row| dot_float_scales(ty, row, &quantised)).collect(),
        WeightClass::Float => rows.map(|row| dot_floats(ty, row, x)).collect(),
    }))
}
