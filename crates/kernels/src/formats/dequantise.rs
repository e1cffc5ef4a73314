//! Stored weights as f32 values: what an embedding row is, and what a quantised file means.

use super::{Block32, KBlock, WeightClass, WeightType};

/// Writes the weights of `row`, a whole number of blocks of type `ty` as stored in the file, to `out`.
///
/// Every written operation rounds once (`docs/numerics.md`, rule 6): integer scales give
/// `RN(RN(RN(d * scale) * code) - RN(dmin * min))`, float scales `RN(scale * code)` and, for `Q4_1` and `Q5_1`,
/// `RN(that + min)`; plain floats are widened exactly. The products happen to be exact: an f16 scale, an integer scale
/// and a code have at most 24 significant bits together.
///
/// # Panics
/// If `row` does not hold exactly `out.len()` weights.
pub fn dequantise_row(ty: WeightType, row: &[u8], out: &mut [f32]) {
    assert_eq!(ty.row_bytes(out.len()), Some(row.len()), "{} weights of {ty} in {} bytes", out.len(), row.len());
    match ty.class() {
        WeightClass::IntegerScales => integer_scales(ty, row, out),
        WeightClass::FloatScales => float_scales(ty, row, out),
        WeightClass::Float => floats(ty, row, out),
    }
}

fn integer_scales(ty: WeightType, row: &[u8], out: &mut [f32]) {
    for (index, values) in out.as_chunks_mut::<256>().0.iter_mut().enumerate() {
        let block = KBlock::decode(ty, row, index);
        for (j, (values, codes)) in
            values.as_chunks_mut::<16>().0.iter_mut().zip(block.codes.as_chunks::<16>().0).enumerate()
        {
            let scale = block.d * f32::from(block.scales[j]);
            let min = block.dmin * f32::from(block.mins[j]);
            for (value, &code) in values.iter_mut().zip(codes) {
                *value = scale * f32::from(code) - min;
            }
        }
    }
}

fn float_scales(ty: WeightType, row: &[u8], out: &mut [f32]) {
    let has_min = matches!(ty, WeightType::Q4_1 | WeightType::Q5_1);
    for (index, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let block = Block32::decode(ty, row, index);
        for (k, (value, &code)) in values.iter_mut().zip(&block.codes).enumerate() {
            *value = block.scales[k / 16] * f32::from(code);
        }
        // Adding a zero min would turn a weight of -0 into +0, so types without one skip it.
        if has_min {
            values.iter_mut().for_each(|value| *value += block.min);
        }
    }
}

fn floats(ty: WeightType, row: &[u8], out: &mut [f32]) {
    if ty == WeightType::F32 {
        for (value, &bytes) in out.iter_mut().zip(row.as_chunks().0) {
            *value = f32::from_le_bytes(bytes);
        }
        return;
    }
    let widen: fn([u8; 2]) -> f32 = match ty {
        WeightType::F16 => |bytes| half::f16::from_le_bytes(bytes).to_f32(),
        _ => |bytes| half::bf16::from_le_bytes(bytes).to_f32(),
    };
    for (value, &bytes) in out.iter_mut().zip(row.as_chunks().0) {
        *value = widen(bytes);
    }
}
