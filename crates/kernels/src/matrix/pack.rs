//! From rows as stored in the file to panels as `format.rs` lays them out.

use half::{bf16, f16};

use super::format::{Format, HALVES, LINE, PANEL_ROWS, Storage};
use super::scan::{Form, integer_min, min_ratio};
use crate::formats::{Block32, KBlock};

/// Packs up to 16 `rows` of `row_bytes` each into `panel`. Rows that are missing become zero.
pub(super) fn fill_panel<F: Format>(rows: &[u8], row_bytes: usize, form: Form, panel: &mut [u8]) {
    panel.fill(0);
    let stored = stored_values::<F>();
    for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
        for (index, unit) in panel.chunks_exact_mut(F::UNIT_BYTES).enumerate() {
            if F::INTEGER_SCALES {
                let block = KBlock::decode(F::TYPE, row, index);
                put_integer_scales::<F>(unit, lane, &block, form);
                for (j, codes) in block.codes.as_chunks::<32>().0.iter().enumerate() {
                    put_codes::<F>(&mut unit[F::CODES_AT + j * F::BLOCK_BYTES..], lane, codes, &stored);
                }
            } else {
                let block = Block32::decode(F::TYPE, row, index);
                put_float_scales::<F>(unit, lane, &block);
                put_codes::<F>(&mut unit[F::CODES_AT..], lane, &block.codes, &stored);
            }
        }
    }
}

/// Stored value of each code, indexed by the code's byte.
fn stored_values<F: Format>() -> [u8; 256] {
    let mut stored = [0; 256];
    for (byte, stored) in (0..=255u8).zip(&mut stored) {
        // No code plus the offset passes the range of a byte, so that the low byte is all of the sum.
        let [raised, _] = (i16::from(byte.cast_signed()) + F::OFFSET).to_le_bytes();
        *stored = match F::TABLE {
            // Of two equal entries either will do: both mean the same code.
            Some(table) => (0..16).find(|&nibble| table[usize::from(nibble)] == raised).unwrap_or(0),
            None => raised,
        };
    }
    stored
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

/// `d`, the sub-scales times 2^e and the negated mins of one row.
fn put_integer_scales<F: Format>(unit: &mut [u8], lane: usize, block: &KBlock, form: Form) {
    // `d` came from an f16.
    put(unit, 2 * lane, f16::from_f32(block.d).to_le_bytes());
    let doublings = if F::MINS { form.exponent() } else { 0 };
    for sub in 0..256 / F::SUB {
        // At most 2 * 63.
        let scale = block.scales[sub * F::SUB / 16] << doublings;
        put(unit, F::SUB_SCALES_AT + sub / 2 * HALVES + 2 * lane + sub % 2, scale.to_le_bytes());
    }
    if F::MINS {
        let ratio = min_ratio(block);
        for j in 0..8 {
            #[expect(clippy::cast_possible_truncation, reason = "the scan found every M within i16")]
            let min = -integer_min(ratio, block.mins[2 * j], form.exponent()) as i16;
            put(unit, F::MINS_AT + j / 2 * 2 * HALVES + 4 * lane + j % 2 * 2, min.to_le_bytes());
        }
    }
}

/// The scales and the min of one row. All came from the 16-bit format they go to, or from a power of two or a UE4M3
/// that it holds exactly.
fn put_float_scales<F: Format>(unit: &mut [u8], lane: usize, block: &Block32) {
    for sub in 0..32 / F::SUB {
        let scale = block.scales[sub];
        let bytes =
            if F::BRAIN_FLOATS { bf16::from_f32(scale).to_le_bytes() } else { f16::from_f32(scale).to_le_bytes() };
        put(unit, sub * HALVES + 2 * lane, bytes);
    }
    if F::MINS {
        put(unit, F::MINS_AT + 2 * lane, f16::from_f32(block.min).to_le_bytes());
    }
}

/// The codes of 32 columns of one row.
fn put_codes<F: Format>(lines: &mut [u8], lane: usize, codes: &[i8; 32], stored: &[u8; 256]) {
    let codes = codes.map(|code| stored[usize::from(code.cast_unsigned())]);
    let quads: [u32; 8] = std::array::from_fn(|c| {
        u32::from_le_bytes([codes[4 * c], codes[4 * c + 1], codes[4 * c + 2], codes[4 * c + 3]])
    });
    let mut put_line = |line: usize, word: u32| put(lines, line * LINE + 4 * lane, word.to_le_bytes());
    if F::STORAGE == Storage::Bytes {
        for (c, quad) in quads.into_iter().enumerate() {
            put_line(c, quad);
        }
        return;
    }
    for c in 0..4 {
        put_line(c, quads[c] & 0x0f0f_0f0f | (quads[c + 4] & 0x0f0f_0f0f) << 4);
    }
    if F::STORAGE == Storage::NibblesAndBit {
        put_line(4, (0..8).fold(0, |word, c| word | (quads[c] >> 4 & 0x0101_0101) << c));
    }
    if F::STORAGE == Storage::NibblesAndPair {
        for line in 0..2 {
            put_line(4 + line, (0..4).fold(0, |word, c| word | (quads[4 * line + c] >> 4 & 0x0303_0303) << (2 * c)));
        }
    }
}

/// Copies rows of floats, or rows of class GEN, as they are; rows that are missing become zero.
pub(super) fn copy_rows(rows: &[u8], panel: &mut [u8]) {
    let (present, missing) = panel.split_at_mut(rows.len());
    present.copy_from_slice(rows);
    missing.fill(0);
}

const _: () = assert!(LINE == 4 * PANEL_ROWS);
