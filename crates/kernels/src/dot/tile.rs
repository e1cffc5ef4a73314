//! Frame of every panel function around its kernel: argument checks, dispatch by weight class, and the matrix's scale.

use std::ops::Range;

use super::general;
use crate::activations::Activations;
use crate::formats::WeightClass;
use crate::matrix::{Form, Matrix, PANEL_ROWS};

/// Outputs of one activation row.
pub(crate) type Lanes = [f32; PANEL_ROWS];

/// An array of `$count` values, `$value` for each `$i`. A plain loop, because closures over vector registers are not
/// inlined into `array::map` or `array::from_fn`.
macro_rules! array {
    ($i:ident in $count:expr, $initial:expr => $value:expr) => {{
        let mut values = [$initial; $count];
        for $i in 0..$count {
            values[$i] = $value;
        }
        values
    }};
}
pub(crate) use array;

/// Units per part where `units` units are cut into equal parts of at most `most`.
pub(crate) fn units_per_part(units: usize, most: usize) -> usize {
    units.div_ceil(units.div_ceil(most).max(1)).max(1)
}

/// Checks the arguments of a panel function, zeroes `tile`, has `packed` or `floats` fill it (class GEN is done here),
/// and applies the matrix's scale.
pub(crate) fn fill(
    (matrix, panel): (&Matrix, usize),
    (x, rows): (&Activations, Range<usize>),
    tile: &mut [Lanes],
    packed: impl FnOnce(&mut [Lanes]),
    floats: impl FnOnce(&mut [Lanes]),
) {
    assert_eq!(tile.len(), rows.len(), "elements of the tile and activation rows");
    assert_eq!(matrix.cols(), x.cols(), "columns of the matrix and of the activations");
    assert!(panel < matrix.panels(), "panel {panel} of {}", matrix.panels());
    assert!(rows.end <= x.rows(), "activation row {} of {}", rows.end, x.rows());
    tile.fill([0.0; PANEL_ROWS]);
    match (matrix.weight_type().class(), matrix.form()) {
        (WeightClass::Float, _) => floats(tile),
        (_, Form::General) => general::panel(matrix, panel, x, rows, tile),
        _ => packed(tile),
    }
    if let Some(scale) = matrix.scale() {
        let present = matrix.panel_rows(panel);
        for lanes in tile {
            for lane in &mut lanes[..present] {
                *lane *= scale;
            }
        }
    }
}
