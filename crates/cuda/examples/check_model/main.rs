//! Compares whole models on a GPU with the CPU, by bits: full logits and the bytes of every page, on every chunking, batch,
//! rewind and transfer, for random models of every architecture and weight type and for model files.
//!
//! `check_model [--rounds N] [MODEL.gguf ...]`

#[path = "../../../conformance/src/models.rs"]
#[expect(dead_code, reason = "shared with the exactness tests, which use all of it")]
mod models;
mod ways;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use muser_cuda::Gpu;
use muser_weights::gguf::ModelFiles;

use ways::Pair;

/// Positions of the random models.
const CONTEXT: u32 = 640;

fn main() -> ExitCode {
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{}", gpu.context().name());
    let mut arguments = std::env::args().skip(1);
    let (mut rounds, mut paths) = (2, Vec::new());
    while let Some(argument) = arguments.next() {
        if argument == "--rounds" {
            rounds = arguments.next().and_then(|number| number.parse().ok()).unwrap_or(rounds);
        } else {
            paths.push(argument);
        }
    }
    let mut wrong = 0;
    for path in &paths {
        match ModelFiles::open(Path::new(path)) {
            Ok(files) => wrong += check(&gpu, path, files, rounds),
            Err(error) => {
                eprintln!("{path}: {error}");
                wrong += 1;
            }
        }
    }
    for mix in models::MIXES.iter().chain([&models::FLOATS]) {
        for (architecture, name) in models::ARCHITECTURES.into_iter().enumerate() {
            let file = models::file_of_architecture(architecture, mix, CONTEXT);
            let files = ModelFiles::from_bytes(file).expect("a generated file");
            wrong += check(&gpu, &format!("{name}, {}", mix.name), files, rounds);
        }
    }
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs every way of computing over one model; the number of ways that gave other bits.
fn check(gpu: &Gpu, name: &str, files: ModelFiles, rounds: usize) -> usize {
    let start = Instant::now();
    let mut pair = Pair::load(gpu, files);
    for round in 0..rounds {
        pair.check_all(round);
    }
    let (ways, values, wrong) = pair.counts();
    let seconds = start.elapsed().as_secs_f64();
    println!("{name:36} {ways:4} ways {values:12} values {wrong:3} wrong {seconds:6.1} s");
    wrong
}
