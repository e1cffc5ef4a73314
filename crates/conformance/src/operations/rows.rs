//! Row operations: norms, sums, gates, logits and the rotary embedding.

use muser_kernels::cpu::Kernels;
use muser_kernels::rope::{RopeStyle, RopeTable};
use muser_kernels::rows::RowKernels;
use muser_kernels::samples::activation_row;

use crate::tally::BitTally;

/// Lengths around every vector width and the 256 lanes of the norm, and widths of models.
const LENGTHS: [usize; 12] = [1, 7, 16, 31, 96, 255, 257, 777, 1536, 4097, 6656, 19_968];
const EPS: f32 = 1e-5;
/// An operation on a row and an operand of the same length.
type InPlace = fn(&RowKernels, &mut [f32], &[f32]);
/// Every operation on a row and an operand, by name.
const OPERATIONS: [(&str, InPlace); 8] = [
    ("rms_norm", |kernels, x, weight| (kernels.rms_norm_in_place)(x, Some(weight), EPS)),
    ("rms_norm without factors", |kernels, x, _| (kernels.rms_norm_in_place)(x, None, EPS)),
    ("rms_norm to another row", |kernels, x, weight| {
        let input = x.to_vec();
        (kernels.rms_norm)(&input, Some(weight), EPS, x);
    }),
    ("add", |kernels, x, y| (kernels.add)(x, y)),
    ("silu_mul", |kernels, x, y| (kernels.silu_mul)(x, y)),
    ("sigmoid_gate", |kernels, x, y| (kernels.sigmoid_gate)(x, y)),
    ("scale_soft_cap", |kernels, x, _| (kernels.scale_soft_cap)(x, Some(0.196_116_14), Some(20.0))),
    ("all_finite", |kernels, x, _| {
        let is_finite = (kernels.all_finite)(x);
        x.fill(f32::from(u8::from(is_finite)));
    }),
];

/// Every operation on rows, of which one in four holds a value that is not finite.
pub(super) fn rows(seeds: u64, tally: &mut BitTally) {
    for length in LENGTHS {
        for seed in 0..4 * seeds {
            let mut rng = fastrand::Rng::with_seed(seed * 100_000 + length as u64);
            let (mut x, y) = (activation_row(length, &mut rng), activation_row(length, &mut rng));
            if seed % 4 == 3 {
                x[rng.usize(..length)] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][rng.usize(..3)];
            }
            for (name, operation) in OPERATIONS {
                let what = format!("{name} of {length}, seed {seed}");
                compare(&what, &x, |kernels, x| operation(kernels, x, &y), tally);
            }
        }
    }
}

/// The rotary embedding in both styles, of whole and of partly rotated heads.
pub(super) fn heads(seeds: u64, tally: &mut BitTally) {
    for pairs in [1, 3, 8, 16, 20, 48, 64, 128] {
        let table = match RopeTable::new(10_000.0, 2 * pairs, 300, None) {
            Ok(table) => table,
            Err(refused) => return tally.failed(&format_args!("rope {pairs} pairs"), &refused),
        };
        for seed in 0..8 * seeds {
            let mut rng = fastrand::Rng::with_seed(seed);
            let x = activation_row(2 * pairs + [0, 1, 32][rng.usize(..3)], &mut rng);
            let position = rng.usize(..300);
            for style in [RopeStyle::Norm, RopeStyle::Neox] {
                let what = format!("rope {pairs} pairs {style:?}, seed {seed}");
                compare(&what, &x, |kernels, x| (kernels.rope)(x, table.row(position), style), tally);
            }
        }
    }
}

/// `operation` on `x` by every implementation, the scalar one included, against the scalar one.
fn compare(what: &str, x: &[f32], operation: impl Fn(&RowKernels, &mut [f32]), tally: &mut BitTally) {
    let by = |kernels: &RowKernels| {
        let mut x = x.to_vec();
        operation(kernels, &mut x);
        x
    };
    let want = by(&Kernels::scalar().rows);
    for Kernels { isa, rows, .. } in Kernels::available() {
        tally.compare(&format_args!("{} {what}", isa.name()), x.len(), &want, &by(&rows));
    }
}
