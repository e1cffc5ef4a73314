//! Rule 2 in portable code.

use super::{ActivationFormat, ActivationRow, FormatSet, LARGEST_CODE, QuantisedRow, SMALLEST_MAXIMUM};

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
        quantise::<256>(x, &mut row.int8x256);
    }
    if needs.contains(ActivationFormat::Int8x32) {
        quantise::<32>(x, &mut row.int8x32);
    }
    if needs.contains(ActivationFormat::Float) {
        row.floats[..x.len()].copy_from_slice(x);
    }
    true
}

/// Groups of `GROUP` values; the padding after a short last group is zero.
fn quantise<const GROUP: usize>(x: &[f32], row: &mut QuantisedRow) {
    for (group, values) in x.chunks(GROUP).enumerate() {
        let codes = &mut row.codes[group * GROUP..][..GROUP];
        row.scales[group] = quantise_group(values, codes);
    }
    sum_codes(x.len().div_ceil(GROUP) * GROUP, row);
}

/// Writes the codes of `values` and zeros after them, and returns the scale.
fn quantise_group(values: &[f32], codes: &mut [i8]) -> f32 {
    let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    codes.fill(0);
    if largest < SMALLEST_MAXIMUM {
        return 0.0;
    }
    quantise_values(values, LARGEST_CODE / largest, codes);
    largest / LARGEST_CODE
}

/// Writes the codes of `values`; `codes` may go on after them.
pub(super) fn quantise_values(values: &[f32], inverse: f32, codes: &mut [i8]) {
    for (code, value) in codes.iter_mut().zip(values) {
        let rounded = (value * inverse).round_ties_even().clamp(-LARGEST_CODE, LARGEST_CODE);
        #[expect(clippy::cast_possible_truncation, reason = "an integer within -127..=127")]
        let rounded = rounded as i8;
        *code = rounded;
    }
}

/// The sums that belong to the first `padded` codes.
fn sum_codes(padded: usize, row: &mut QuantisedRow) {
    for (sum, codes) in row.sums16.iter_mut().zip(row.codes[..padded].chunks(16)) {
        *sum = codes.iter().map(|&code| i16::from(code)).sum();
    }
    for (block, pair) in row.sums16[..padded / 16].chunks(2).enumerate() {
        row.sums32[block] = pair.iter().sum();
        row.float_sums32[block] = f32::from(row.sums32[block]);
    }
}
