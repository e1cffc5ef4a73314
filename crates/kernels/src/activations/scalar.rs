//! Rule 2 in portable code.

use super::{ActivationFormat, ActivationRow, FormatSet, LARGEST_CODE, SMALLEST_MAXIMUM};

/// Quantises `x` to every format of `needs`; `false` if it holds a NaN or an infinity, and `row` then holds zeros.
///
/// # Panics
/// If `x` and `row` differ in length.
pub(crate) fn quantise_row(x: &[f32], needs: FormatSet, row: &mut ActivationRow) -> bool {
    assert_eq!(x.len(), row.cols, "values and row differ in length");
    if x.iter().any(|value| !value.is_finite()) {
        row.clear();
        return false;
    }
    if needs.contains(ActivationFormat::Int8x256) {
        for (values, group) in x.chunks(256).zip(&mut row.int8x256) {
            group.scale = quantise(values, &mut group.codes, &mut group.sums16);
            group.sums32 = std::array::from_fn(|j| group.sums16[2 * j] + group.sums16[2 * j + 1]);
        }
    }
    if needs.contains(ActivationFormat::Int8x32) {
        for (values, group) in x.chunks(32).zip(&mut row.int8x32) {
            group.scale = quantise(values, &mut group.codes, &mut group.sums16);
            group.sum = f32::from(group.sums16[0] + group.sums16[1]);
        }
    }
    if needs.contains(ActivationFormat::Float) {
        row.floats[..x.len()].copy_from_slice(x);
    }
    true
}

/// Writes the codes of `values`, zeros after them, and the sum of each 16 codes; returns the scale.
fn quantise(values: &[f32], codes: &mut [i8], sums16: &mut [i16]) -> f32 {
    let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    codes.fill(0);
    sums16.fill(0);
    if largest < SMALLEST_MAXIMUM {
        return 0.0;
    }
    quantise_values(values, LARGEST_CODE / largest, codes, sums16);
    largest / LARGEST_CODE
}

/// Writes the codes of `values` and adds them to the sums, which were zero.
pub(crate) fn quantise_values(values: &[f32], inverse: f32, codes: &mut [i8], sums16: &mut [i16]) {
    for (k, value) in values.iter().enumerate() {
        let rounded = (value * inverse).round_ties_even().clamp(-LARGEST_CODE, LARGEST_CODE);
        #[expect(clippy::cast_possible_truncation, reason = "an integer within -127..=127")]
        let rounded = rounded as i8;
        codes[k] = rounded;
        sums16[k / 16] += i16::from(rounded);
    }
}
