//! Broadcasts, and codes from lines.

use std::arch::x86_64::*;

use crate::isa::avx2::memory::{load_bytes16, load_bytes32, store_bytes32};
use crate::matrix::format::{Expanded, Format, LINE, PANEL_ROWS, Storage};

/// Codes `at .. at + 4` in each 32-bit lane.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn broadcast_codes(codes: &[i8], at: usize) -> __m256i {
    let four = &codes[at..at + 4];
    let four = [four[0], four[1], four[2], four[3]].map(i8::cast_unsigned);
    _mm256_set1_epi32(i32::from_le_bytes(four))
}

/// Sums `at` and `at + 1` in each 32-bit lane.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn broadcast_sums(sums: &[i16], at: usize) -> __m256i {
    let pair = &sums[at..at + 2];
    let [low, high] = [pair[0], pair[1]].map(i16::to_le_bytes);
    _mm256_set1_epi32(i32::from_le_bytes([low[0], low[1], high[0], high[1]]))
}

/// The stored values of quad `c`, after the table, of rows `8 half .. 8 half + 8`. `lines` are those of one block.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn quad<F: Format>(lines: &[u8], c: usize, half: usize) -> __m256i {
    let line = |line: usize| load_bytes32(&lines[line * LINE + 2 * PANEL_ROWS * half..]);
    let low_bits = _mm256_set1_epi8(15);
    let nibbles = || {
        if c < 4 {
            _mm256_and_si256(line(c), low_bits)
        } else {
            _mm256_and_si256(_mm256_srli_epi16::<4>(line(c - 4)), low_bits)
        }
    };
    let stored = match F::STORAGE {
        Storage::Bytes => line(c),
        Storage::Nibbles => nibbles(),
        Storage::NibblesAndBit => {
            let high = _mm256_and_si256(bit_to_bit_4(line(4), c), _mm256_set1_epi8(0x10));
            _mm256_or_si256(nibbles(), high)
        }
        Storage::NibblesAndPair => {
            let high = _mm256_and_si256(bit_to_bit_4(line(4 + c / 4), 2 * (c % 4)), _mm256_set1_epi8(0x30));
            _mm256_or_si256(nibbles(), high)
        }
    };
    match F::TABLE {
        Some(table) => _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_bytes16(&table)), stored),
        None => stored,
    }
}

/// Moves bit `bit` of every byte to bit 4; the other bits of the result are arbitrary.
#[inline]
#[target_feature(enable = "avx2")]
fn bit_to_bit_4(line: __m256i, bit: usize) -> __m256i {
    match bit {
        0 => _mm256_slli_epi16::<4>(line),
        1 => _mm256_slli_epi16::<3>(line),
        2 => _mm256_slli_epi16::<2>(line),
        3 => _mm256_slli_epi16::<1>(line),
        4 => line,
        5 => _mm256_srli_epi16::<1>(line),
        6 => _mm256_srli_epi16::<2>(line),
        _ => _mm256_srli_epi16::<3>(line),
    }
}

/// Rewrites a unit of `F` as one of `Expanded<F>`.
#[target_feature(enable = "avx2")]
pub(super) fn expand<F: Format>(from: &[u8], to: &mut [u8]) {
    let (scales, blocks) = from[..F::UNIT_BYTES].split_at(F::CODES_AT);
    let (to_scales, to_blocks) = to[..Expanded::<F>::UNIT_BYTES].split_at_mut(F::CODES_AT);
    to_scales.copy_from_slice(scales);
    let to_blocks = to_blocks.chunks_exact_mut(Expanded::<F>::BLOCK_BYTES);
    for (lines, to_lines) in blocks.chunks_exact(F::BLOCK_BYTES).zip(to_blocks) {
        for c in 0..8 {
            for half in 0..2 {
                store_bytes32(&mut to_lines[c * LINE + 2 * PANEL_ROWS * half..], quad::<F>(lines, c, half));
            }
        }
    }
}
