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
use crate::matrix::Matrix;
use crate::matrix::format::{Format, with_format};

/// See [`crate::dot::PanelFn`].
pub(super) fn panel(matrix: &Matrix, panel: usize, x: &Activations, rows: Range<usize>, tile: &mut [Lanes]) {
    tile::fill(
        (matrix, panel),
        (x, rows.clone()),
        tile,
        |tile| {
            // SAFETY: reached only through `KERNELS`, which is handed out only where the features are.
            unsafe { packed_panel(matrix, panel, x, rows.start, tile) }
        },
        |tile| {
            // SAFETY: as above.
            unsafe { float_panel(matrix, panel, x, rows.start, tile) }
        },
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn packed_panel(matrix: &Matrix, panel: usize, x: &Activations, first_row: usize, tile: &mut [Lanes]) {
    let units = matrix.panel(panel);
    let step = if matrix.form().exponent() == 1 { 0.5 } else { 1.0 };
    with_format!(matrix.weight_type(), F => {
        let units_per_part = tile::units_per_part(units.len() / F::UNIT_BYTES, PART / F::UNIT_BYTES);
        for (part, units) in units.chunks(units_per_part * F::UNIT_BYTES).enumerate() {
            token_tiles::<F>(units, (x, first_row, part * units_per_part), step, tile);
        }
    }, unreachable!("packed types only"));
}

/// Bytes of the part of a panel that meets all tokens before the next: it stays in the first-level cache meanwhile.
const PART: usize = 16 << 10;

/// Adds the products of `units`, the first of which is unit `first_unit` of the panel, to all of `tile`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn token_tiles<F: Format>(
    units: &[u8],
    (x, first_row, first_unit): (&Activations, usize, usize),
    step: f32,
    tile: &mut [Lanes],
) {
    let mut row = first_row;
    let (eights, rest) = tile.as_chunks_mut::<8>();
    for lanes in eights {
        token_tile::<F, 8>(units, (x, row, first_unit), step, lanes);
        row += 8;
    }
    let (fours, rest) = rest.as_chunks_mut::<4>();
    for lanes in fours {
        token_tile::<F, 4>(units, (x, row, first_unit), step, lanes);
        row += 4;
    }
    let (pairs, rest) = rest.as_chunks_mut::<2>();
    for lanes in pairs {
        token_tile::<F, 2>(units, (x, row, first_unit), step, lanes);
        row += 2;
    }
    for lanes in rest.as_chunks_mut::<1>().0 {
        token_tile::<F, 1>(units, (x, row, first_unit), step, lanes);
        row += 1;
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn token_tile<F: Format, const T: usize>(
    units: &[u8],
    (x, row, first_unit): (&Activations, usize, usize),
    step: f32,
    tile: &mut [Lanes; T],
) {
    let count = units.len() / F::UNIT_BYTES;
    if F::INTEGER_SCALES {
        let x = array!(t in T, &[][..] => &x.row(row + t).int8x256()[first_unit..first_unit + count]);
        integer_scales::tile::<F, T>(units, x, step, tile);
    } else {
        let x = array!(t in T, &[][..] => &x.row(row + t).int8x32()[first_unit..first_unit + count]);
        float_scales::tile::<F, T>(units, x, tile);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn float_panel(matrix: &Matrix, panel: usize, x: &Activations, first_row: usize, tile: &mut [Lanes]) {
    let bytes = matrix.panel(panel);
    with_float_weights!(matrix.weight_type(), W => floats::panel::<W>(bytes, x, first_row, tile));
}
