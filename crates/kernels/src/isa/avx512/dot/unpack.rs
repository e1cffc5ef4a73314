//! Broadcasts, and codes from lines.

use std::arch::x86_64::*;

use crate::isa::avx2::memory::load_bytes16;
use crate::isa::avx512::memory::load_bytes64;
use crate::matrix::format::{Format, LINE, Storage};

/// Codes `at .. at + 4` in each 32-bit lane.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn broadcast_codes(codes: &[i8], at: usize) -> __m512i {
    let four = &codes[at..at + 4];
    let four = [four[0], four[1], four[2], four[3]].map(i8::cast_unsigned);
    _mm512_set1_epi32(i32::from_le_bytes(four))
}

/// Sums `at` and `at + 1` in each 32-bit lane.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn broadcast_sums(sums: &[i16], at: usize) -> __m512i {
    let pair = &sums[at..at + 2];
    let [low, high] = [pair[0], pair[1]].map(i16::to_le_bytes);
    _mm512_set1_epi32(i32::from_le_bytes([low[0], low[1], high[0], high[1]]))
}

/// The stored values of quad `c`, after the table, of 16 rows. `lines` are those of one block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn quad<F: Format>(lines: &[u8], c: usize) -> __m512i {
    let line = |line: usize| load_bytes64(&lines[line * LINE..]);
    let low_bits = _mm512_set1_epi8(15);
    let nibbles = || {
        if c < 4 {
            _mm512_and_si512(line(c), low_bits)
        } else {
            _mm512_and_si512(_mm512_srli_epi16::<4>(line(c - 4)), low_bits)
        }
    };
    let codes = match F::STORAGE {
        Storage::Bytes => line(c),
        Storage::Nibbles => nibbles(),
        Storage::NibblesAndBit => {
            let high = _mm512_and_si512(bit_to_bit_4(line(4), c), _mm512_set1_epi8(0x10));
            _mm512_or_si512(nibbles(), high)
        }
        Storage::NibblesAndPair => {
            let high = _mm512_and_si512(bit_to_bit_4(line(4 + c / 4), 2 * (c % 4)), _mm512_set1_epi8(0x30));
            _mm512_or_si512(nibbles(), high)
        }
    };
    match F::TABLE {
        Some(table) => _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_bytes16(&table)), codes),
        None => codes,
    }
}

/// Moves bit `bit` of every byte to bit 4; the other bits of the result are arbitrary.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn bit_to_bit_4(line: __m512i, bit: usize) -> __m512i {
    match bit {
        0 => _mm512_slli_epi16::<4>(line),
        1 => _mm512_slli_epi16::<3>(line),
        2 => _mm512_slli_epi16::<2>(line),
        3 => _mm512_slli_epi16::<1>(line),
        4 => line,
        5 => _mm512_srli_epi16::<1>(line),
        6 => _mm512_srli_epi16::<2>(line),
        _ => _mm512_srli_epi16::<3>(line),
    }
}
