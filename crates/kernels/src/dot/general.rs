//! Class GEN: tensors whose mins fit no integer. Rare, so portable code over the rows as stored in the file will do.

use std::ops::Range;

use super::tile::Lanes;
use crate::activations::{Activations, Group256};
use crate::formats::KBlock;
use crate::matrix::{Matrix, PANEL_ROWS};

/// Activation rows that share the decoding of a block.
const ROWS: usize = 16;

/// Fills `tile` by the two chains of class GEN. The arguments were checked by the caller.
pub(super) fn panel(matrix: &Matrix, panel: usize, x: &Activations, rows: Range<usize>, tile: &mut [Lanes]) {
    let raw = matrix.panel(panel);
    let row_bytes = raw.len() / PANEL_ROWS;
    for (lane, raw_row) in raw.chunks_exact(row_bytes).take(matrix.panel_rows(panel)).enumerate() {
        for (part, tile) in tile.chunks_mut(ROWS).enumerate() {
            let mut chains = [(0.0f32, 0.0f32); ROWS];
            for block in 0..matrix.cols() / 256 {
                let weights = KBlock::decode(matrix.weight_type(), raw_row, block);
                for (i, (scales, mins)) in chains[..tile.len()].iter_mut().enumerate() {
                    let x = &x.row(rows.start + part * ROWS + i).int8x256()[block];
                    let (scaled, offset) = integer_sums(&weights, x);
                    *scales = (weights.d * x.scale).mul_add(scaled, *scales);
                    *mins = (weights.dmin * x.scale).mul_add(offset, *mins);
                }
            }
            for (lanes, (scales, mins)) in tile.iter_mut().zip(chains) {
                lanes[lane] = scales - mins;
            }
        }
    }
}

/// `f(sum sc_j P_j)` and `f(sum m_j S_j)` of one group.
#[expect(clippy::cast_precision_loss, reason = "the one rounding of the rule")]
fn integer_sums(weights: &KBlock, x: &Group256) -> (f32, f32) {
    let (mut scaled, mut offset) = (0i32, 0i32);
    for (j, codes) in x.codes.chunks_exact(32).enumerate() {
        let pairs = weights.codes[32 * j..][..32].iter().zip(codes);
        let product: i32 = pairs.map(|(&weight, &code)| i32::from(weight) * i32::from(code)).sum();
        scaled += i32::from(weights.scales[2 * j]) * product;
        offset += i32::from(weights.mins[2 * j]) * i32::from(x.sums32[j]);
    }
    (scaled as f32, offset as f32)
}
