//! Panels with AVX2, FMA and F16C: 16 output rows are two registers of 8 lanes.
//!
//! Bound, per 8 rows, 32 columns and token (256 multiply-adds):
//!
//! | codes        | vector operations                                                        |
//! |--------------|--------------------------------------------------------------------------|
//! | up to 4 bits | 8 maddubs, 7 add, 1 madd, 1 add = 17; rule 4 adds 1 convert and 2 fma      |
//! | 5 bits       | 8 maddubs, 6 add, 2 madd, 2 add = 18                                       |
//! | 6 bits       | 8 maddubs, 4 add, 4 madd, 4 add = 20                                       |
//! | bytes        | 8 sign, 8 maddubs, 8 madd, 8 add = 32                                      |
//!
//! Processors issue 3 or 4 of these per cycle, of which 2 multiply, so 4-bit codes cannot pass 57 multiply-adds per cycle
//! and bytes 32 (27 where sign shares the multipliers). Loads are one broadcast of 4 activation codes for two registers
//! of rows, and the weights once for all tokens of a tile, which stays under two per cycle. One Zen 5 core at 4.3 GHz:
//! ceilings of 221 and 118 GMAC/s, measured in registers; reached with 64 tokens: Q4_K 175, Q5_K 158, Q4_0 155, Q6_K 136,
//! Q8_0 88. With one token the bytes of the panel are the bound: 0.60 per weight for Q4_K, 0.56 Q4_0, 0.82 Q6_K, 1.06
//! Q8_0; from the second-level cache Q4_K runs at 64 GB/s, Q6_K 49, Q8_0 77, beyond what memory gives one core.

mod float_scales;
mod floats;
mod integer_scales;
mod unpack;

use std::ops::Range;

use crate::activations::Activations;
use crate::dot::float_weights::with_float_weights;
use crate::dot::tile::{self, Lanes, array};
use crate::isa::vector::packed_panels::{TileInput, packed_panels};
use crate::matrix::Matrix;
use crate::matrix::format::{Expanded, Format, Storage, with_format};

packed_panels!("avx2,fma,f16c", 4, 2, 1);

#[target_feature(enable = "avx2,fma,f16c")]
fn packed_panel(matrix: &Matrix, panel: usize, x: &Activations, first_row: usize, tile: &mut [Lanes]) {
    let units = matrix.panel(panel);
    let step = if matrix.form().exponent() == 1 { 0.5 } else { 1.0 };
    with_format!(matrix.weight_type(), F => {
        if tile.len() < const { expand_from::<F>() } {
            let units_per_part = tile::units_per_part(units.len() / F::UNIT_BYTES, PART / F::UNIT_BYTES);
            for (part, units) in units.chunks(units_per_part * F::UNIT_BYTES).enumerate() {
                let input = TileInput { x, row: first_row, first_group: part * units_per_part, step };
            token_tiles::<F>(units, input, tile);
            }
        } else {
            expanded_panel::<F>(units, TileInput { x, row: first_row, first_group: 0, step }, tile);
        }
    }, unreachable!("packed types only"));
}

/// Bytes of the part of a panel that meets all tokens before the next: it stays in the first-level cache meanwhile.
const PART: usize = 16 << 10;

/// Tokens from which it pays to expand codes to bytes first, as measured: later for codes that only need a mask and a
/// shift, and never for bytes.
const fn expand_from<F: Format>() -> usize {
    match (F::STORAGE, F::TABLE) {
        (Storage::Bytes, _) => usize::MAX,
        (Storage::Nibbles, None) => 12,
        _ => 4,
    }
}

/// Bytes of a part of a panel after expansion: small enough for the first-level cache next to the activations.
const SCRATCH: usize = 9216;

/// A part of a panel after expansion.
#[repr(align(64))]
struct Scratch([u8; SCRATCH]);

/// Expands the panel part by part and multiplies each with all tokens.
#[target_feature(enable = "avx2,fma,f16c")]
fn expanded_panel<F: Format>(units: &[u8], input: TileInput<'_>, tile: &mut [Lanes]) {
    let mut scratch = Scratch([0; SCRATCH]);
    let units_per_part = tile::units_per_part(units.len() / F::UNIT_BYTES, SCRATCH / Expanded::<F>::UNIT_BYTES);
    for (part, packed) in units.chunks(units_per_part * F::UNIT_BYTES).enumerate() {
        let expanded = &mut scratch.0[..packed.len() / F::UNIT_BYTES * Expanded::<F>::UNIT_BYTES];
        for (from, to) in packed.chunks_exact(F::UNIT_BYTES).zip(expanded.chunks_exact_mut(Expanded::<F>::UNIT_BYTES)) {
            unpack::expand::<F>(from, to);
        }
        token_tiles::<Expanded<F>>(expanded, TileInput { first_group: part * units_per_part, ..input }, tile);
    }
}
