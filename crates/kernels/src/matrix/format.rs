//! Panel layout of each weight type: the constants that packing and every kernel are written over.
//!
//! A *panel* is 16 output rows side by side. It is a sequence of *units*, one per 256 columns for types with integer
//! sub-scales and one per 32 columns for types with float scales:
//!
//! | part        | integer sub-scales                                             | float scales                       |
//! |-------------|----------------------------------------------------------------|------------------------------------|
//! | scales      | d, f16 `[16 rows]`                                             | f16 or bf16 `[32 / SUB][16 rows]`  |
//! | sub-scales  | i8 `[pair of sub-blocks][16 rows][2]`, times 2^e               |                                    |
//! | mins        | `-M`, i16 `[pair of 32-blocks][16 rows][2]`                    | f16 `[16 rows]`                    |
//! | codes       | per 32 columns: `LINES` lines of 64 bytes                      | the same                           |
//!
//! A line holds 4 bytes of each row. *Quad* `c` of a block is its columns `4c .. 4c + 4`.
//! * Bytes: line `c` holds quad `c`.
//! * Nibbles: line `c` (of 4) holds quad `c` in the low and quad `c + 4` in the high halves of its bytes.
//! * One high bit: a fifth line, whose byte has bit 4 of quad `c` at bit `c`.
//! * Two high bits: two more lines; bits 4 and 5 of quad `c` at bits `2 (c mod 4)` and above of line `4 + c / 4`.
//!
//! Little-endian; no padding; every part starts at a multiple of 32 bytes. What is stored is never negative: a code is
//! `stored - OFFSET`, or `table[stored] - OFFSET` for types with a codebook.

#![expect(non_camel_case_types, reason = "the formats' own names")]
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "portable code needs fewer of the constants"))]

use crate::formats::{E2M1_DOUBLED, IQ4_CODEBOOK, WeightType};

/// Output rows side by side in a panel: one SIMD lane is one output row.
pub const PANEL_ROWS: usize = 16;
/// Bytes of a line: 4 of each row.
pub(crate) const LINE: usize = 4 * PANEL_ROWS;
/// Bytes of one f16 per row.
pub(crate) const HALVES: usize = 2 * PANEL_ROWS;

/// Distribution of a block's codes over lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// Two codes per byte.
    Nibbles,
    /// Two codes per byte and a line of fifth bits.
    NibblesAndBit,
    /// Two codes per byte and two lines of bit pairs.
    NibblesAndPair,
    /// One code per byte.
    Bytes,
}

/// The constants of one packed weight type. All rule on columns within a row; none on rows.
pub(crate) trait Format: 'static {
    /// The type as stored in the file.
    const TYPE: WeightType;
    /// Storage of the codes.
    const STORAGE: Storage;
    /// Subtracted from a stored value (after the table) to get the code: stored values are never negative.
    const OFFSET: i16 = 0;
    /// The largest stored value (after the table): bounds how many products an i16 can add up.
    const LARGEST: i32;
    /// Maps nibbles to stored values.
    const TABLE: Option<[u8; 16]> = None;
    /// Weights per sub-scale or float scale: 16 or 32.
    const SUB: usize = 32;
    /// True for types with mins.
    const MINS: bool = false;
    /// True for a d per 256 columns with integer sub-scales, false for float scales.
    const INTEGER_SCALES: bool;
    /// True if 16-bit scales are bf16, false if they are f16.
    const BRAIN_FLOATS: bool = false;

    /// Blocks of 32 columns per unit.
    const BLOCKS: usize = if Self::INTEGER_SCALES { 8 } else { 1 };
    /// Lines per block.
    const LINES: usize = match Self::STORAGE {
        Storage::Nibbles => 4,
        Storage::NibblesAndBit => 5,
        Storage::NibblesAndPair => 6,
        Storage::Bytes => 8,
    };
    /// First byte of the sub-scales in a unit.
    const SUB_SCALES_AT: usize = HALVES;
    /// First byte of the mins in a unit.
    const MINS_AT: usize =
        if Self::INTEGER_SCALES { HALVES + 256 / Self::SUB * PANEL_ROWS } else { 32 / Self::SUB * HALVES };
    /// First byte of the codes in a unit.
    const CODES_AT: usize = Self::MINS_AT
        + match (Self::MINS, Self::INTEGER_SCALES) {
            (false, _) => 0,
            (true, true) => 8 * HALVES,
            (true, false) => HALVES,
        };
    /// Bytes of the codes of a block.
    const BLOCK_BYTES: usize = Self::LINES * LINE;
    /// Bytes of a unit.
    const UNIT_BYTES: usize = Self::CODES_AT + Self::BLOCKS * Self::BLOCK_BYTES;
    /// Columns of a unit.
    const UNIT_COLS: usize = 32 * Self::BLOCKS;
    /// Quads times 8-bit activations that an i16 can add up, each being two products; zero if none.
    const CHAIN: usize = match Self::LARGEST {
        ..=15 => 8,
        16..=31 => 4,
        32..=63 => 2,
        _ => 0,
    };
}

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident { $($constant:ident = $value:expr),* $(,)? })*) => {$(
        $(#[$doc])*
        pub(crate) struct $name;

        impl Format for $name {
            const TYPE: WeightType = WeightType::$name;
            $(formats!(@ $constant $value);)*
        }
    )*};
    (@ STORAGE $value:expr) => { const STORAGE: Storage = $value; };
    (@ OFFSET $value:expr) => { const OFFSET: i16 = $value; };
    (@ LARGEST $value:expr) => { const LARGEST: i32 = $value; };
    (@ TABLE $value:expr) => { const TABLE: Option<[u8; 16]> = Some($value); };
    (@ SUB $value:expr) => { const SUB: usize = $value; };
    (@ MINS $value:expr) => { const MINS: bool = $value; };
    (@ INTEGER_SCALES $value:expr) => { const INTEGER_SCALES: bool = $value; };
    (@ BRAIN_FLOATS $value:expr) => { const BRAIN_FLOATS: bool = $value; };
}

formats! {
    /// Unsigned nibbles, sub-scales and mins per 32.
    Q4_K { STORAGE = Storage::Nibbles, LARGEST = 15, MINS = true, INTEGER_SCALES = true }
    /// As `Q4_K` with a fifth bit.
    Q5_K { STORAGE = Storage::NibblesAndBit, LARGEST = 31, MINS = true, INTEGER_SCALES = true }
    /// Six bits, signed sub-scales per 16.
    Q6_K { STORAGE = Storage::NibblesAndPair, LARGEST = 63, OFFSET = 32, SUB = 16, INTEGER_SCALES = true }
    /// Nibbles into the codebook, stored 128 higher, signed sub-scales per 32.
    IQ4_XS { STORAGE = Storage::Nibbles, LARGEST = 241, TABLE = CODEBOOK_RAISED, OFFSET = 128, INTEGER_SCALES = true }
    /// Nibbles with offset 8.
    Q4_0 { STORAGE = Storage::Nibbles, LARGEST = 15, OFFSET = 8, INTEGER_SCALES = false }
    /// Nibbles with a float min.
    Q4_1 { STORAGE = Storage::Nibbles, LARGEST = 15, MINS = true, INTEGER_SCALES = false }
    /// Five bits with offset 16.
    Q5_0 { STORAGE = Storage::NibblesAndBit, LARGEST = 31, OFFSET = 16, INTEGER_SCALES = false }
    /// Five bits with a float min.
    Q5_1 { STORAGE = Storage::NibblesAndBit, LARGEST = 31, MINS = true, INTEGER_SCALES = false }
    /// Bytes, stored 128 higher.
    Q8_0 { STORAGE = Storage::Bytes, LARGEST = 255, OFFSET = 128, INTEGER_SCALES = false }
    /// Nibbles into the codebook, stored 128 higher.
    IQ4_NL { STORAGE = Storage::Nibbles, LARGEST = 241, TABLE = CODEBOOK_RAISED, OFFSET = 128, INTEGER_SCALES = false }
    /// Nibbles into doubled E2M1 values, stored 12 higher.
    MXFP4 {
        STORAGE = Storage::Nibbles,
        LARGEST = 24,
        TABLE = E2M1_RAISED,
        OFFSET = 12,
        INTEGER_SCALES = false,
        BRAIN_FLOATS = true,
    }
    /// As `MXFP4`, one scale per 16.
    NVFP4 {
        STORAGE = Storage::Nibbles,
        LARGEST = 24,
        TABLE = E2M1_RAISED,
        OFFSET = 12,
        SUB = 16,
        INTEGER_SCALES = false,
    }
}

/// The doubled E2M1 values, 12 higher.
const E2M1_RAISED: [u8; 16] = raised(E2M1_DOUBLED, 12);
/// The codebook, 128 higher.
const CODEBOOK_RAISED: [u8; 16] = raised(IQ4_CODEBOOK, 128);

/// `table` with `by` added, which makes every value positive.
const fn raised(table: [i8; 16], by: u8) -> [u8; 16] {
    let mut raised = [0; 16];
    let mut at = 0;
    while at < 16 {
        raised[at] = table[at].cast_unsigned().wrapping_add(by);
        at += 1;
    }
    raised
}

/// A part of a panel of `F` with its codes expanded to one per byte, after the table: what many tokens are multiplied
/// with. Everything else is laid out as in `F`.
pub(crate) struct Expanded<F>(std::marker::PhantomData<F>);

impl<F: Format> Format for Expanded<F> {
    const TYPE: WeightType = F::TYPE;
    const STORAGE: Storage = Storage::Bytes;
    const OFFSET: i16 = F::OFFSET;
    const LARGEST: i32 = F::LARGEST;
    const SUB: usize = F::SUB;
    const MINS: bool = F::MINS;
    const INTEGER_SCALES: bool = F::INTEGER_SCALES;
    const BRAIN_FLOATS: bool = F::BRAIN_FLOATS;
}

/// Evaluates `$body` with `$format` standing for the packed format of weight type `$ty`; `$other` for float types.
macro_rules! with_format {
    ($ty:expr, $format:ident => $body:expr, $other:expr) => {{
        use $crate::formats::WeightType as Type;
        use $crate::matrix::format as packed;
        match $ty {
            Type::Q4_K => {
                type $format = packed::Q4_K;
                $body
            }
            Type::Q5_K => {
                type $format = packed::Q5_K;
                $body
            }
            Type::Q6_K => {
                type $format = packed::Q6_K;
                $body
            }
            Type::IQ4_XS => {
                type $format = packed::IQ4_XS;
                $body
            }
            Type::Q4_0 => {
                type $format = packed::Q4_0;
                $body
            }
            Type::Q4_1 => {
                type $format = packed::Q4_1;
                $body
            }
            Type::Q5_0 => {
                type $format = packed::Q5_0;
                $body
            }
            Type::Q5_1 => {
                type $format = packed::Q5_1;
                $body
            }
            Type::Q8_0 => {
                type $format = packed::Q8_0;
                $body
            }
            Type::IQ4_NL => {
                type $format = packed::IQ4_NL;
                $body
            }
            Type::MXFP4 => {
                type $format = packed::MXFP4;
                $body
            }
            Type::NVFP4 => {
                type $format = packed::NVFP4;
                $body
            }
            Type::F32 | Type::F16 | Type::BF16 => $other,
        }
    }};
}
pub(crate) use with_format;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_take_little_more_than_the_file_and_keep_the_alignment() {
        for ty in WeightType::ALL {
            let (bytes, cols) = with_format!(ty, F => (F::UNIT_BYTES, F::UNIT_COLS), continue);
            let file = ty.row_bytes(cols.max(ty.block_len())).unwrap() * PANEL_ROWS * cols / cols.max(ty.block_len());
            assert!(bytes.is_multiple_of(32), "{ty}: {bytes}");
            assert!(bytes * 100 <= file * 118, "{ty}: {bytes} bytes of panel for {file} of file");
        }
    }

    #[test]
    fn sums_of_a_chain_fit_an_i16() {
        for ty in WeightType::ALL {
            let (chain, largest) = with_format!(ty, F => (F::CHAIN, F::LARGEST), continue);
            let largest_sum = i32::try_from(chain).unwrap() * 2 * largest * 127;
            assert!(largest_sum <= i32::from(i16::MAX), "{ty}: {largest_sum}");
        }
    }
}
