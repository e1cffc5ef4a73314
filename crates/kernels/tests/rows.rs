//! Row operations through their public interface: every twin against the scalar reference bit for bit, and the reference
//! against formulas in f64.

use fastrand::Rng;
use muser_kernels::cpu::Kernels;
use muser_kernels::rope::{RopeStyle, RopeTable};
use muser_kernels::rows::RowKernels;

type InPlace = fn(&mut [f32], &[f32]);
type Operation = fn(&RowKernels, &mut [f32], &[f32]);

/// Lengths around every vector width and the 256 lanes of the norm.
const LENGTHS: [usize; 18] = [1, 2, 7, 8, 15, 16, 17, 31, 64, 96, 128, 255, 256, 257, 512, 777, 4096, 4097];

/// Ordinary numbers, or numbers of every magnitude, or now and then one that is not finite.
fn row(length: usize, rng: &mut Rng) -> Vec<f32> {
    let kind = rng.u32(0..5);
    (0..length)
        .map(|_| match kind {
            0 => loop {
                let any = f32::from_bits(rng.u32(..));
                if any.is_finite() {
                    break any;
                }
            },
            1 => 0.0,
            2 if rng.u32(0..40) == 0 => rng.choice([f32::NAN, f32::INFINITY, f32::NEG_INFINITY]).unwrap(),
            3 => (2.0 * rng.f32() - 1.0) * 200.0,
            _ => 2.0 * rng.f32() - 1.0,
        })
        .collect()
}

/// Bits, with one representative for every NaN: their payload is not part of the contract.
fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

/// Runs `operation` on every twin and compares with the reference.
fn compare(what: &str, operation: impl Fn(&RowKernels) -> Vec<f32>) {
    let expected = bits(&operation(&Kernels::scalar().rows));
    for Kernels { isa, rows, .. } in &Kernels::available()[1..] {
        let got = bits(&operation(rows));
        let differs = got.iter().zip(&expected).position(|(g, e)| g != e);
        assert!(differs.is_none(), "{} {what}: element {differs:?}", isa.name());
    }
}

#[test]
fn every_twin_equals_the_reference_bit_for_bit() {
    let names: Vec<_> = Kernels::available().iter().map(Kernels::name).collect();
    if names.len() < 3 {
        eprintln!("skipped: only {names:?} run here");
    }
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let length = rng.choice(LENGTHS).unwrap();
        let (x, y) = (row(length, &mut rng), row(length, &mut rng));
        let what = format!("length {length}, seed {seed}");
        let eps = rng.choice([1e-5, 1e-6, 1e-8]).unwrap();
        for weight in [None, Some(y.as_slice())] {
            compare(&format!("rms_norm {what}"), |k| {
                let mut out = vec![0.0; length];
                (k.rms_norm)(&x, weight, eps, &mut out);
                let mut in_place = x.clone();
                (k.rms_norm_in_place)(&mut in_place, weight, eps);
                assert_eq!(bits(&out), bits(&in_place));
                out
            });
        }
        let in_place = |operation: fn(&RowKernels) -> InPlace| {
            let (x, y) = (x.clone(), y.clone());
            move |k: &RowKernels| {
                let mut x = x.clone();
                operation(k)(&mut x, &y);
                x
            }
        };
        compare(&format!("add {what}"), in_place(|k| k.add));
        compare(&format!("silu_mul {what}"), in_place(|k| k.silu_mul));
        compare(&format!("sigmoid_gate {what}"), in_place(|k| k.sigmoid_gate));
        for (scale, cap) in [(None, None), (Some(0.3), None), (None, Some(30.0)), (Some(1.7), Some(50.0))] {
            compare(&format!("scale_soft_cap {what}"), |k| {
                let mut z = x.clone();
                (k.scale_soft_cap)(&mut z, scale, cap);
                z
            });
        }
        compare(&format!("all_finite {what}"), |k| vec![f32::from(u8::from((k.all_finite)(&x)))]);
    }
}

#[test]
fn every_twin_rotates_as_the_reference_does_and_leaves_the_rest_alone() {
    for seed in 0..200 {
        let mut rng = Rng::with_seed(seed);
        let pairs = rng.choice([1, 3, 8, 16, 20, 32, 48, 64, 128]).unwrap();
        let table = RopeTable::new(10_000.0, 2 * pairs, 50, None).unwrap();
        let position = rng.usize(0..50);
        let x = row(2 * pairs + rng.choice([0, 1, 32]).unwrap(), &mut rng);
        for style in [RopeStyle::Norm, RopeStyle::Neox] {
            compare(&format!("rope {pairs} pairs, seed {seed}"), |k| {
                let mut x = x.clone();
                (k.rope)(&mut x, table.row(position), style);
                x
            });
            let mut rotated = x.clone();
            (Kernels::scalar().rows.rope)(&mut rotated, table.row(position), style);
            assert_eq!(bits(&rotated[2 * pairs..]), bits(&x[2 * pairs..]));
        }
    }
}

#[test]
fn the_reference_computes_the_functions_it_names() {
    let mut rng = Rng::with_seed(7);
    let reference = Kernels::scalar().rows;
    let x: Vec<f32> = (0..1000).map(|_| 16.0 * rng.f32() - 8.0).collect();
    let y: Vec<f32> = (0..1000).map(|_| 2.0 * rng.f32() - 1.0).collect();
    let check = |what: &str, got: &[f32], expected: &dyn Fn(f64, f64) -> f64| {
        for ((got, x), y) in got.iter().zip(&x).zip(&y) {
            let expected = expected(f64::from(*x), f64::from(*y));
            let error = (f64::from(*got) - expected).abs();
            assert!(error <= 1e-6 * expected.abs() + 1e-7, "{what}({x}, {y}) = {got}, expected {expected}");
        }
    };
    let mut out = vec![0.0; 1000];
    (reference.rms_norm)(&x, Some(&y), 1e-5, &mut out);
    let mean: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 1000.0;
    check("rms_norm", &out, &|x, y| x / (mean + 1e-5).sqrt() * y);
    let apply = |operation: fn(&mut [f32], &[f32]), a: &[f32], b: &[f32]| {
        let mut a = a.to_vec();
        operation(&mut a, b);
        a
    };
    check("add", &apply(reference.add, &x, &y), &|x, y| x + y);
    check("silu_mul", &apply(reference.silu_mul, &x, &y), &|x, y| x / (1.0 + (-x).exp()) * y);
    check("sigmoid_gate", &apply(reference.sigmoid_gate, &y, &x), &|x, y| y / (1.0 + (-x).exp()));
    out.copy_from_slice(&x);
    (reference.scale_soft_cap)(&mut out, Some(2.0), Some(5.0));
    check("scale_soft_cap", &out, &|x, _| 5.0 * (2.0 * x / 5.0).tanh());
}

#[test]
fn rotation_follows_its_formula_in_both_styles() {
    let table = RopeTable::new(10_000.0, 4, 10, None).unwrap();
    let angles = [7.0, 7.0 * 10_000f64.powf(-0.5)];
    for (style, pairs) in [(RopeStyle::Norm, [(0, 1), (2, 3)]), (RopeStyle::Neox, [(0, 2), (1, 3)])] {
        let x = [0.25f32, -1.5, 3.0, 0.75, 9.0];
        let mut y = x;
        (Kernels::scalar().rows.rope)(&mut y, table.row(7), style);
        for ((first, second), angle) in pairs.into_iter().zip(angles) {
            let (x0, x1) = (f64::from(x[first]), f64::from(x[second]));
            assert!((f64::from(y[first]) - (x0 * angle.cos() - x1 * angle.sin())).abs() < 1e-6);
            assert!((f64::from(y[second]) - (x1 * angle.cos() + x0 * angle.sin())).abs() < 1e-6);
        }
        assert_eq!(y[4], 9.0);
    }
}

#[test]
fn a_number_that_is_not_finite_never_turns_into_one_that_is() {
    for Kernels { isa, rows: kernels, .. } in Kernels::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 5, 20] {
                let mut spoiled = vec![0.5f32; 21];
                spoiled[at] = bad;
                let good = vec![0.5f32; 21];
                let operations: [Operation; 7] = [
                    |k, x, y| (k.rms_norm_in_place)(x, Some(y), 1e-5),
                    |k, x, y| (k.add)(x, y),
                    |k, x, y| (k.silu_mul)(x, y),
                    |k, x, y| (k.sigmoid_gate)(x, y),
                    |k, x, _| (k.scale_soft_cap)(x, None, Some(30.0)),
                    |k, x, y| {
                        let gate = x.to_vec();
                        x.copy_from_slice(y);
                        (k.sigmoid_gate)(x, &gate);
                    },
                    |k, x, y| {
                        let up = x.to_vec();
                        x.copy_from_slice(y);
                        (k.silu_mul)(x, &up);
                    },
                ];
                for (index, operation) in operations.into_iter().enumerate() {
                    let mut x = spoiled.clone();
                    operation(&kernels, &mut x, &good);
                    assert!(!(kernels.all_finite)(&x), "{}, operation {index}, {bad} at {at}", isa.name());
                }
                let mut overflowing = [1e30f32; 21];
                (kernels.rms_norm_in_place)(&mut overflowing, None, 1e-5);
                assert!(!(kernels.all_finite)(&overflowing), "{}: the squares overflow", isa.name());
                assert!(!(kernels.all_finite)(&spoiled) && (kernels.all_finite)(&good));
            }
        }
    }
}
