//! Rule 4b on vectors, written once for every instruction set: float rows in 32 strided lanes.
//!
//! A module that expands [`float_panels`] provides the vector type `V`, its `LANES`, `zero`, `fma`, loads and stores, and
//! the rows and tokens that its registers hold at once: `ROWS` with `TOKENS`, and `ROWS_OF_ONE` with a single token.

/// Defines `panel()` for one instruction set. `$features` are what the module's vector functions need.
macro_rules! float_panels {
    ($features:literal) => {
        use crate::activations::Activations;
        use crate::dot::float_weights::{FloatWeights, halving_tree};
        use crate::dot::tile::{Lanes, array};
        use crate::matrix::PANEL_ROWS;

        /// Registers of 32 lanes.
        const PARTS: usize = 32 / LANES;

        /// Fills `tile`. Tokens are the outer loop: their f32 values take more room than the rows.
        #[target_feature(enable = $features)]
        pub(super) fn panel<W: FloatWeights>(bytes: &[u8], x: &Activations, first_row: usize, tile: &mut [Lanes]) {
            let mut row = first_row;
            let (full, rest) = tile.as_chunks_mut::<TOKENS>();
            for lanes in full {
                rows::<W, ROWS, TOKENS>(bytes, array!(t in TOKENS, &[][..] => x.row(row + t).floats()), lanes);
                row += TOKENS;
            }
            for lanes in rest.as_chunks_mut::<1>().0 {
                rows::<W, ROWS_OF_ONE, 1>(bytes, [x.row(row).floats()], lanes);
                row += 1;
            }
        }

        /// All 16 rows times `T` tokens; rows that are padding hold zeros.
        #[target_feature(enable = $features)]
        fn rows<W: FloatWeights, const R: usize, const T: usize>(bytes: &[u8], x: [&[f32]; T], tile: &mut [Lanes; T]) {
            let row_bytes = bytes.len() / PANEL_ROWS;
            for first in (0..PANEL_ROWS).step_by(R) {
                let weights = array!(r in R, &[][..] => &bytes[(first + r) * row_bytes..][..row_bytes]);
                let values = dot::<W, R, T>(weights, x);
                for (r, values) in values.into_iter().enumerate() {
                    for (lanes, value) in tile.iter_mut().zip(values) {
                        lanes[first + r] = value;
                    }
                }
            }
        }

        /// `R` rows of weights times `T` tokens.
        #[target_feature(enable = $features)]
        fn dot<W: FloatWeights, const R: usize, const T: usize>(weights: [&[u8]; R], x: [&[f32]; T]) -> [[f32; T]; R] {
            let mut acc = [[[zero(); T]; R]; PARTS];
            let runs = x[0].len() / 32;
            for run in 0..runs {
                let x = array!(t in T, &[0.0; 32] => &x[t].as_chunks::<32>().0[run]);
                let weights = array!(r in R, weights[0] => &weights[r][32 * W::BYTES * run..][..32 * W::BYTES]);
                for (part, acc) in acc.iter_mut().enumerate() {
                    let x = array!(t in T, zero() => load_f32(&x[t][LANES * part..]));
                    for (acc, weights) in acc.iter_mut().zip(weights) {
                        let weights = widen::<W>(&weights[LANES * W::BYTES * part..]);
                        for (acc, x) in acc.iter_mut().zip(x) {
                            *acc = fma(weights, x, *acc);
                        }
                    }
                }
            }
            let mut values = [[0.0; T]; R];
            for r in 0..R {
                for t in 0..T {
                    let mut lanes = stored(array!(part in PARTS, zero() => acc[part][r][t]));
                    let rest = weights[r][32 * W::BYTES * runs..].chunks_exact(W::BYTES).zip(&x[t][32 * runs..]);
                    for (lane, (weight, value)) in lanes.iter_mut().zip(rest) {
                        *lane = W::widen(weight).mul_add(*value, *lane);
                    }
                    values[r][t] = halving_tree(lanes);
                }
            }
            values
        }

        /// The registers of one row and token as lanes.
        #[inline]
        #[target_feature(enable = $features)]
        fn stored(acc: [V; PARTS]) -> [f32; 32] {
            let mut lanes = [0.0; 32];
            for (lanes, acc) in lanes.as_chunks_mut::<LANES>().0.iter_mut().zip(acc) {
                store_f32(lanes, acc);
            }
            lanes
        }

        /// The first weights, widened.
        #[inline]
        #[target_feature(enable = $features)]
        fn widen<W: FloatWeights>(weights: &[u8]) -> V {
            if W::BYTES == 4 {
                load_f32_bytes(weights)
            } else if W::BRAIN {
                load_bf16(weights)
            } else {
                load_f16(weights)
            }
        }
    };
}
pub(crate) use float_panels;
