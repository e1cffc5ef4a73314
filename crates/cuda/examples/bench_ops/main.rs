//! Times operations of the home model on a GPU: `bench_ops [WORD]` runs the benches whose name holds WORD. `muser conformance
//! --device cuda` says whether they are right.

mod attend;
mod operations;
mod world;

use std::process::ExitCode;

use world::World;

fn main() -> ExitCode {
    let word = std::env::args().skip(1).find(|argument| argument != "bench").unwrap_or_default();
    let mut world = match World::open() {
        Ok(world) => world,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{} {:?}", world.context.name(), world.context.capability());
    operations::run(&mut world, &word);
    ExitCode::SUCCESS
}
