//! Many seeds, side by side.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::coverage::Coverage;
use crate::violation::Violation;
use crate::world::{Telling, run};

/// Results of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Number of seeds played.
    pub seeds: u64,
    /// Sum of their event counts.
    pub coverage: Coverage,
    /// The seeds with a violation, lowest first.
    pub failures: Vec<SeedFailure>,
}

/// A seed with a violation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}: {violation}")]
pub struct SeedFailure {
    /// The seed, which reproduces the violation.
    pub seed: u64,
    /// The violation.
    #[source]
    pub violation: Violation,
}

/// Plays `seeds` on so many threads. The number of threads changes the time and nothing else.
pub fn run_seeds(seeds: Range<u64>, threads: usize) -> Summary {
    let (next, sum) = (AtomicU64::new(seeds.start), Mutex::new(Summary::default()));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut own = Summary::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let story = run(seed, Telling::Silent);
                    own.seeds += 1;
                    own.coverage.add(&story.coverage);
                    own.failures.extend(story.violation.map(|violation| SeedFailure { seed, violation }));
                }
                // A thread that panicked added nothing, so what is there is whole.
                let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
                sum.seeds += own.seeds;
                sum.coverage.add(&own.coverage);
                sum.failures.append(&mut own.failures);
            });
        }
    });
    let mut sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    sum.failures.sort_by_key(|failure| failure.seed);
    sum
}
