//! Panels on vectors, written once for every instruction set: dispatch by weight class, and packed units times tiles of
//! tokens.
//!
//! A module that expands [`packed_panels`] provides `packed_panel()`, which cuts a panel into parts, and the modules
//! `integer_scales`, `float_scales` and `floats` with the products of one tile.

use crate::activations::Activations;

/// Activations that a part of a packed panel is multiplied with, and the step of its integer scales.
#[derive(Clone, Copy)]
pub(crate) struct TileInput<'a> {
    pub x: &'a Activations,
    /// Row of the first token.
    pub row: usize,
    /// First group of each row: the units of the panel before this part.
    pub first_group: usize,
    /// `2^-e`.
    pub step: f32,
}

/// Defines `panel()` for one instruction set. `$features` are what the products need, and `$tokens` the tokens of a tile,
/// from the most that the registers hold down to 1.
macro_rules! packed_panels {
    ($features:literal, $($tokens:literal),+) => {
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

        /// Adds the products of `units` to all of `tile`.
        #[target_feature(enable = $features)]
        fn token_tiles<F: Format>(units: &[u8], mut input: TileInput<'_>, tile: &mut [Lanes]) {
            let rest = tile;
            $(
                let (tiles, rest) = rest.as_chunks_mut::<$tokens>();
                for lanes in tiles {
                    token_tile::<F, $tokens>(units, input, lanes);
                    input.row += $tokens;
                }
            )+
            debug_assert!(rest.is_empty(), "the last tile has one token");
        }

        #[target_feature(enable = $features)]
        fn token_tile<F: Format, const T: usize>(units: &[u8], input: TileInput<'_>, tile: &mut [Lanes; T]) {
            let TileInput { x, row, first_group, step } = input;
            let groups = first_group..first_group + units.len() / F::UNIT_BYTES;
            if F::INTEGER_SCALES {
                let x = array!(t in T, &[][..] => &x.row(row + t).int8x256()[groups.clone()]);
                integer_scales::tile::<F, T>(units, x, step, tile);
            } else {
                let x = array!(t in T, &[][..] => &x.row(row + t).int8x32()[groups.clone()]);
                float_scales::tile::<F, T>(units, x, tile);
            }
        }

        #[target_feature(enable = $features)]
        fn float_panel(matrix: &Matrix, panel: usize, x: &Activations, first_row: usize, tile: &mut [Lanes]) {
            let bytes = matrix.panel(panel);
            with_float_weights!(matrix.weight_type(), W => floats::panel::<W>(bytes, x, first_row, tile));
        }
    };
}
pub(crate) use packed_panels;
