//! Panels with AVX-512 F, BW, VL and VNNI: 16 output rows are one register.
//!
//! Bound: one dpbusd is 64 multiply-adds and takes its 4 activation codes as a broadcast from memory, so two per cycle
//! need both load ports. Per 16 rows, 32 columns and token: 8 dpbusd, 1 more multiplication for an offset, then rule 3
//! multiplies by the sub-scale and adds (2), rule 4 converts and fuses twice (3). Lines are unpacked once for the 8
//! tokens of a tile (12 operations), which hide behind the loads; expanding codes to bytes beforehand only adds stores.
//! One Zen 5 core at 4.3 GHz: ceiling 550 GMAC/s, measured with broadcasts from the first-level cache; reached with 64
//! tokens: Q4_K 350, Q4_0 350, Q8_0 340, Q6_K 320. Misaligned lines (every other unit of some types) cost the rest.
//! With one token the bytes of the panel are the bound, as for AVX2: 85 to 120 GB/s from the second-level cache.

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
use crate::matrix::format::{Format, with_format};

packed_panels!("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c", 8, 4, 2, 1);

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn packed_panel(matrix: &Matrix, panel: usize, x: &Activations, first_row: usize, tile: &mut [Lanes]) {
    let units = matrix.panel(panel);
    let step = if matrix.form().exponent() == 1 { 0.5 } else { 1.0 };
    with_format!(matrix.weight_type(), F => {
        let units_per_part = tile::units_per_part(units.len() / F::UNIT_BYTES, PART / F::UNIT_BYTES);
        for (part, units) in units.chunks(units_per_part * F::UNIT_BYTES).enumerate() {
            let input = TileInput { x, row: first_row, first_group: part * units_per_part, step };
            token_tiles::<F>(units, input, tile);
        }
    }, unreachable!("packed types only"));
}

/// Bytes of the part of a panel that meets all tokens before the next: it stays in the first-level cache meanwhile.
const PART: usize = 16 << 10;
