//! Rule 1 of `docs/numerics.md`: what a tensor's scales and codes allow, found before it is packed.

use super::MatrixError;
use crate::formats::{KBlock, WeightType, first_non_finite};

/// The largest `sum |w'|` of a group whose product with 8-bit activations stays below 2^24.
const LIMIT: i32 = ((1 << 24) - 1) / 127;

/// Form of a tensor's integer weights. A tensor takes the last form that any of its blocks needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Mins in half steps: `w' = 2 sc q - M`; `e = 1`. Also the form of types without integer mins, where `e` is unused.
    HalfSteps,
    /// Mins in whole steps: `w' = sc q - M`; `e = 0`.
    WholeSteps,
    /// Mins in a float chain of their own: class GEN.
    General,
}

impl Form {
    /// The exponent `e`.
    pub(crate) fn exponent(self) -> u32 {
        u32::from(self == Self::HalfSteps)
    }
}

/// Form needed by the rows of a tensor scanned so far. Scans of different rows may run in parallel and are then merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    pub(super) form: Form,
}

impl Scan {
    /// Looks at `raw`: whole rows of `cols` weights as stored in the file. `first_row` is the number of the first, for
    /// the error.
    ///
    /// # Errors
    /// If `raw` is not whole rows of whole blocks, or a scale or a float weight is NaN or infinite.
    pub fn of(ty: WeightType, cols: usize, first_row: usize, raw: &[u8]) -> Result<Self, MatrixError> {
        let row_bytes = ty.row_bytes(cols).filter(|&bytes| bytes > 0).ok_or(MatrixError::Columns { ty, cols })?;
        if !raw.len().is_multiple_of(row_bytes) {
            return Err(MatrixError::Bytes { expected: raw.len().next_multiple_of(row_bytes), got: raw.len() });
        }
        let blocks = cols / ty.block_len();
        let mut form = Form::HalfSteps;
        for (index, row) in raw.chunks_exact(row_bytes).enumerate() {
            if let Some(block) = first_non_finite(ty, row) {
                return Err(MatrixError::NonFinite { ty, row: first_row + index, block });
            }
            if matches!(ty, WeightType::Q4_K | WeightType::Q5_K) {
                form = (0..blocks).map(|block| form_of(&KBlock::decode(ty, row, block))).fold(form, Form::max);
            }
        }
        Ok(Self { form })
    }

    /// Form needed by the rows scanned so far.
    pub fn form(self) -> Form {
        self.form
    }

    /// Form needed by the rows of both scans together.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self { form: self.form.max(other.form) }
    }
}

/// `rho` of a block with mins; zero where there is nothing to divide.
pub(super) fn min_ratio(block: &KBlock) -> f32 {
    if block.dmin == 0.0 { 0.0 } else { block.dmin / block.d }
}

/// `M`: a sub-min in units of `d * 2^-exponent`. Exact as a float; may be beyond any integer type.
pub(super) fn integer_min(ratio: f32, min: u8, exponent: u32) -> f32 {
    let steps = if exponent == 1 { 2.0 } else { 1.0 };
    (ratio * f32::from(min) * steps).round_ties_even()
}

/// The form that one block needs.
fn form_of(block: &KBlock) -> Form {
    if block.d == 0.0 && block.dmin != 0.0 {
        return Form::General;
    }
    let ratio = min_ratio(block);
    if half_steps_fit(block, ratio) {
        Form::HalfSteps
    } else if whole_steps_fit(block, ratio) {
        Form::WholeSteps
    } else {
        Form::General
    }
}

/// True if `e = 1` keeps every `|w'|` within 2047 and their sum within the limit.
fn half_steps_fit(block: &KBlock, ratio: f32) -> bool {
    let mut sum = 0;
    for (j, codes) in block.codes.as_chunks::<32>().0.iter().enumerate() {
        let min = integer_min(ratio, block.mins[2 * j], 1);
        // `2 sc q` is at most 2 * 63 * 31, so beyond this no code brings `|w'|` down to 2047.
        if min.abs() > 6000.0 {
            return false;
        }
        #[expect(clippy::cast_possible_truncation, reason = "an integer of at most 6000")]
        let min = min as i16;
        let scale = 2 * i16::from(block.scales[2 * j]);
        let (mut sub_sum, mut largest) = (0, 0);
        for &code in codes {
            let weight = (scale * i16::from(code) - min).abs();
            sub_sum += i32::from(weight);
            largest = largest.max(weight);
        }
        sum += sub_sum;
        if largest > 2047 {
            return false;
        }
    }
    sum <= LIMIT
}

/// True if `e = 0` keeps every `|w'|` and every `|M|` within 32767.
fn whole_steps_fit(block: &KBlock, ratio: f32) -> bool {
    block.codes.as_chunks::<32>().0.iter().enumerate().all(|(j, codes)| {
        let min = integer_min(ratio, block.mins[2 * j], 0);
        if min.abs() > 32767.0 {
            return false;
        }
        #[expect(clippy::cast_possible_truncation, reason = "an integer of at most 32767")]
        let min = min as i32;
        codes.iter().all(|&code| (i32::from(block.scales[2 * j]) * i32::from(code) - min).abs() <= 32767)
    })
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    /// A `Q4_K` block whose sub-blocks have the given scales and mins; all codes are `code` but the first.
    fn block(d: f32, dmin: f32, sub: [(u8, u8); 8], (first, code): (u8, u8)) -> Vec<u8> {
        let mut bytes = vec![code | code << 4; 144];
        bytes[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
        bytes[2..4].copy_from_slice(&f16::from_f32(dmin).to_le_bytes());
        for j in 0..4 {
            bytes[4 + j] = sub[j].0 | sub[j + 4].0 >> 4 << 6;
            bytes[8 + j] = sub[j].1 | sub[j + 4].1 >> 4 << 6;
            bytes[12 + j] = sub[j + 4].0 & 15 | (sub[j + 4].1 & 15) << 4;
        }
        bytes[16] = first | code << 4;
        bytes
    }

    fn form(block: &[u8]) -> Form {
        Scan::of(WeightType::Q4_K, 256, 0, block).unwrap().form
    }

    #[test]
    fn half_steps_end_where_the_sum_of_a_block_passes_the_limit() {
        assert_eq!(LIMIT, 132_104);
        // M = 16 m, so 258 m together are 4,128 steps of 32 weights: 132,096. Sub-block 0 holds 2 sc q more.
        let mins = [0, 63, 63, 63, 63, 6, 0, 0];
        let with_first = |scale: u8, first: u8| {
            let sub = std::array::from_fn(|j| (if j == 0 { scale } else { 0 }, mins[j]));
            form(&block(1.0, 8.0, sub, (first, 0)))
        };
        assert_eq!(with_first(1, 4), Form::HalfSteps);
        assert_eq!(with_first(1, 5), Form::WholeSteps);
    }

    #[test]
    fn half_steps_end_where_a_weight_passes_2047() {
        let sub = [(0, 1), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)];
        assert_eq!(form(&block(1.0, 1023.5, sub, (0, 0))), Form::HalfSteps);
        assert_eq!(form(&block(1.0, 1024.0, sub, (0, 0))), Form::WholeSteps);
        assert_eq!(form(&block(-1.0, 1023.5, sub, (0, 0))), Form::HalfSteps);
        assert_eq!(form(&block(-1.0, 1024.0, sub, (0, 0))), Form::WholeSteps);
    }

    #[test]
    fn a_min_beyond_2047_keeps_half_steps_where_the_codes_outweigh_it() {
        let sub = [(63, 1), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)];
        // w' = 2 * 63 * 15 - 3000, and one of 3000 - 2 * 63 * 7 = 2118 is too much.
        assert_eq!(form(&block(1.0, 1500.0, sub, (15, 15))), Form::HalfSteps);
        assert_eq!(form(&block(1.0, 1500.0, sub, (7, 15))), Form::WholeSteps);
    }

    #[test]
    fn whole_steps_end_where_a_weight_or_a_min_passes_32767() {
        // M = dmin / d is 32752, the largest f16 below 32768, and 32768; doubled both are beyond half steps.
        let sub = |scale| [(scale, 1), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)];
        let at = |dmin: f32, scale: u8| form(&block(2f32.powi(-10), dmin, sub(scale), (15, 0)));
        assert_eq!(at(32752.0 / 1024.0, 0), Form::WholeSteps);
        assert_eq!(at(32768.0 / 1024.0, 0), Form::General);
        // A weight of 15 brings |w'| back under the limit, but not the min.
        assert_eq!(at(32768.0 / 1024.0, 63), Form::General);
        // With the sign turned the weight passes the limit first.
        assert_eq!(at(-32752.0 / 1024.0, 1), Form::WholeSteps);
        assert_eq!(at(-32752.0 / 1024.0, 2), Form::General);
    }

    #[test]
    fn a_min_without_a_scale_needs_the_general_form() {
        let sub = [(1, 1); 8];
        assert_eq!(form(&block(0.0, 0.5, sub, (1, 1))), Form::General);
        assert_eq!(form(&block(-0.0, 0.5, sub, (1, 1))), Form::General);
        assert_eq!(form(&block(0.0, 0.0, sub, (1, 1))), Form::HalfSteps);
        assert_eq!(form(&block(0.0, -0.0, sub, (1, 1))), Form::HalfSteps);
    }
}
