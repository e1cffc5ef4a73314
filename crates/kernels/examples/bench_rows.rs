//! Time of the row operations on one thread, on rows in cache: `cargo run --release -p muser-kernels --example bench_rows`.

use muser_kernels::cpu::Kernels;
use muser_kernels::rope::{RopeStyle, RopeTable};
use muser_kernels::rows::RowKernels;
use std::hint::black_box;
use std::time::Instant;

type Operation = fn(&RowKernels, &mut [f32], &[f32]);

/// Elements of a row: the hidden size of a small model.
const COLUMNS: usize = 4096;

fn main() {
    let operations: [(&str, Operation); 7] = [
        ("rms_norm", |k, x, y| (k.rms_norm_in_place)(x, Some(y), 1e-5)),
        ("rms_norm of 32 heads of 128", |k, x, y| {
            x.chunks_exact_mut(128).for_each(|head| (k.rms_norm_in_place)(head, Some(&y[..128]), 1e-5));
        }),
        ("add", |k, x, y| (k.add)(x, y)),
        ("silu_mul", |k, x, y| (k.silu_mul)(x, y)),
        ("sigmoid_gate", |k, x, y| (k.sigmoid_gate)(x, y)),
        ("scale_soft_cap", |k, x, _| (k.scale_soft_cap)(x, Some(0.5), Some(30.0))),
        ("all_finite", |k, x, _| assert!((k.all_finite)(x))),
    ];
    println!("ns for {COLUMNS} elements");
    for kernels in Kernels::available() {
        for (name, operation) in operations {
            measure(&kernels, name, operation);
        }
        let table = RopeTable::new(10_000.0, 128, 8, None).expect("a valid table");
        for style in [RopeStyle::Norm, RopeStyle::Neox] {
            let rope = |k: &RowKernels, x: &mut [f32], _: &[f32]| {
                x.chunks_exact_mut(128).for_each(|head| (k.rope)(head, table.row(5), style));
            };
            measure(&kernels, &format!("rope {style:?}, 32 heads of 128"), rope);
        }
    }
}

fn measure(kernels: &Kernels, name: &str, operation: impl Fn(&RowKernels, &mut [f32], &[f32])) {
    let mut rng = fastrand::Rng::with_seed(1);
    let x: Vec<f32> = (0..COLUMNS).map(|_| 2.0 * rng.f32() - 1.0).collect();
    let y: Vec<f32> = (0..COLUMNS).map(|_| 2.0 * rng.f32() - 1.0).collect();
    let mut best = f64::INFINITY;
    for _ in 0..300 {
        let mut row = x.clone();
        let start = Instant::now();
        operation(&kernels.rows, black_box(&mut row), black_box(&y));
        best = best.min(start.elapsed().as_secs_f64());
        black_box(&row);
    }
    println!("{:<10} {name:<30} {:>10.0}", kernels.name(), best * 1e9);
}
