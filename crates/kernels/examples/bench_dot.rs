//! Speed of one thread's matrix products, by weight type, instruction set and number of tokens.
//!
//! `cargo run --release -p muser-kernels --example bench_dot [-- TYPE...]` prints, for a 2048 x 2048 matrix, the best of
//! many runs: 10^9 bytes of packed weights read per second by one token, and 10^9 multiply-adds per second.

use std::time::{Duration, Instant};

use muser_kernels::activations::{ActivationFormat, Activations, FormatSet};
use muser_kernels::cpu::Kernels;
use muser_kernels::dot::DotKernels;
use muser_kernels::formats::WeightType;
use muser_kernels::matrix::{Matrix, MatrixPlan, PANEL_ROWS, Scan};

const ROWS: usize = 2048;
const COLS: usize = 2048;
/// Activation rows of the products that are measured.
const TOKENS: [usize; 6] = [1, 2, 4, 8, 16, 64];
/// Time given to each measurement.
const BUDGET: Duration = Duration::from_millis(150);

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    print!("{:8} {:7} {:>8}", "type", "kernels", "GB/s");
    TOKENS.iter().for_each(|tokens| print!(" {:>7}", format!("{tokens} tok")));
    println!(" (GMAC/s)");
    for ty in chosen_types(&chosen) {
        let matrix = random_matrix(ty);
        for Kernels { isa, dot, .. } in Kernels::available() {
            let seconds = TOKENS.map(|tokens| seconds_per_product(&dot, &matrix, tokens));
            print!("{:8} {:7} {:8.1}", ty.name(), isa.name(), matrix.bytes() as f64 * 1e-9 / seconds[0]);
            for (tokens, seconds) in TOKENS.into_iter().zip(seconds) {
                print!(" {:7.1}", (ROWS * COLS * tokens) as f64 * 1e-9 / seconds);
            }
            println!();
        }
    }
    for Kernels { isa, dot, .. } in Kernels::available() {
        for needs in [ActivationFormat::Int8x256, ActivationFormat::Int8x32] {
            let x: Vec<f32> = (0..COLS).map(|k| (k as f32 * 0.37).sin()).collect();
            let mut activations = Activations::new(1, COLS);
            let seconds = best(|| {
                let row = &mut activations.rows_mut()[0];
                assert!((dot.quantise_row)(std::hint::black_box(&x), FormatSet::EMPTY.with(needs), row));
            });
            println!("quantise {:7} {needs:?}: {:.2} ns per value", isa.name(), seconds * 1e9 / COLS as f64);
        }
    }
    for ty in chosen_types(&chosen) {
        let raw = random_tensor(ty);
        let weights = (ROWS * COLS) as f64;
        let scan = best(|| drop(std::hint::black_box(Scan::of(ty, COLS, 0, &raw))));
        let plan = MatrixPlan::new(ty, ROWS, COLS, &raw).expect("a sound tensor");
        let mut panel = vec![0; plan.panel_bytes()];
        let pack = best(|| (0..plan.panels()).for_each(|index| plan.fill_panel(&raw, index, &mut panel)));
        println!("{:8} scan {:.3}, pack {:.3} ns per weight", ty.name(), scan * 1e9 / weights, pack * 1e9 / weights);
    }
}

/// The types named in `names`; all if there are none.
fn chosen_types(names: &[String]) -> impl Iterator<Item = WeightType> {
    WeightType::ALL.into_iter().filter(move |ty| names.is_empty() || names.iter().any(|name| name == ty.name()))
}

fn random_tensor(ty: WeightType) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut raw = Vec::new();
    let block = |rng: &mut fastrand::Rng| {
        let mut bytes: Vec<u8> = (0..ty.block_bytes()).map(|_| rng.u8(..)).collect();
        let mut put = |at: usize, value: [u8; 2]| bytes[at..at + 2].copy_from_slice(&value);
        match ty {
            WeightType::F32 => put(2, [0x80, 0x3d]),
            WeightType::BF16 => put(0, [0x80, 0x3d]),
            WeightType::Q6_K => put(208, [0x00, 0x20]),
            WeightType::MXFP4 => put(0, [120, 0x77]),
            WeightType::NVFP4 => {
                put(0, [0x30, 0x31]);
                put(2, [0x32, 0x33]);
            }
            _ => put(0, [0x00, 0x20]),
        }
        if matches!(ty, WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4_K | WeightType::Q5_K) {
            put(2, [0x00, 0x28]);
        }
        bytes
    };
    for _ in 0..ROWS * COLS / ty.block_len() {
        raw.extend(block(&mut rng));
    }
    raw
}

fn random_matrix(ty: WeightType) -> Matrix {
    Matrix::packed(ty, ROWS, COLS, &random_tensor(ty)).expect("a sound tensor")
}

fn seconds_per_product(kernels: &DotKernels, matrix: &Matrix, tokens: usize) -> f64 {
    let mut activations = Activations::new(tokens, COLS);
    for (t, row) in activations.rows_mut().iter_mut().enumerate() {
        let x: Vec<f32> = (0..COLS).map(|k| ((k + 31 * t) as f32 * 0.37).sin()).collect();
        assert!((kernels.quantise_row)(&x, FormatSet::EMPTY.with(matrix.activation()), row));
    }
    let mut tile = vec![[0.0; PANEL_ROWS]; tokens];
    best(|| {
        for panel in 0..matrix.panels() {
            (kernels.panel)(matrix, panel, &activations, 0..tokens, &mut tile);
            std::hint::black_box(&tile);
        }
    })
}

/// Shortest time of `run` within the budget.
fn best(mut run: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    while best.is_infinite() || begin.elapsed() < BUDGET {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}
