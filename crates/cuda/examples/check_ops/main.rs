//! Compares every operation on a GPU with `muser-kernels`, by bits, on random and adversarial operands.
//!
//! `check_ops [WORD] [--repeats N]` runs the families whose name holds WORD, repeats each case N times (default 20) with
//! other work between the launches and poisoned outputs, prints a table, and fails if a bit differed. `check_ops bench
//! [WORD]` times operations of the home model instead.

mod attend;
mod bench;
mod bench_attend;
mod heads;
mod matmul;
mod pages;
mod quantise;
mod rows;
mod world;

use std::process::ExitCode;

use world::World;

/// A family of cases.
type Family = (&'static str, fn(&mut World));

const FAMILIES: &[Family] = &[
    ("quantise", quantise::run),
    ("matmul", matmul::run),
    ("rows", rows::run),
    ("heads", heads::run),
    ("attend", attend::run),
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut word, mut repeats, mut timing) = (String::new(), 20, false);
    while let Some(argument) = arguments.next() {
        if argument == "--repeats" {
            repeats = arguments.next().and_then(|number| number.parse().ok()).unwrap_or(repeats);
        } else if argument == "bench" {
            timing = true;
        } else {
            word = argument;
        }
    }
    let mut world = match World::open(repeats) {
        Ok(world) => world,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = world.self_test() {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    if timing {
        bench::run(&mut world, &word);
        return ExitCode::SUCCESS;
    }
    for (name, run) in FAMILIES.iter().filter(|(name, _)| name.contains(&word)) {
        world.start_family(name);
        run(&mut world);
    }
    world.finish()
}
