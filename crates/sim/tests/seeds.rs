//! A few hundred worlds, the seeds that once found something, and the promise that a seed tells one story.

use muser_sim::{Mark, Telling, run, run_seeds};

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[test]
fn hundreds_of_worlds_keep_every_promise() {
    let summary = run_seeds(0..400, threads());
    let told: Vec<String> = summary.failures.iter().map(ToString::to_string).collect();
    assert!(told.is_empty(), "{}", told.join("\n"));
    // So many worlds in which nothing is asked, or nothing goes wrong, would prove nothing.
    assert!(summary.coverage.of(Mark::Completed) > 2000, "{}", summary.coverage);
    let never: Vec<Mark> = summary.coverage.below(1).into_iter().map(|(mark, _)| mark).collect();
    assert!(never.len() < 8, "never met: {never:?}");
}

#[test]
fn the_same_seed_tells_the_same_story_on_any_number_of_threads() {
    for seed in 0..30 {
        let (one, other) = (run(seed, Telling::StepByStep), run(seed, Telling::StepByStep));
        assert!(one == other && one.lines.len() > 10, "seed {seed}");
        assert_eq!(one.coverage, run(seed, Telling::Silent).coverage, "seed {seed}");
    }
    let (one, many) = (run_seeds(0..60, 1), run_seeds(0..60, 3));
    assert_eq!((one.seeds, one.coverage), (many.seeds, many.coverage));
}

/// The first seeds that met a bug, fixed or planted: a committed handoff whose time ended before the installation was told
/// (2517), pages that came twice (214) or after a cancellation (10), a length without limit (104), a header without checksum
/// (460), damage taken for a torn tail (52) and a torn tail for damage (172), a ledger without its floor (5), and one that
/// went on after nobody knew which file it was (1242). A change of what worlds draw gives these seeds other stories; then the
/// bugs are to be planted again, and the seeds that meet them written here.
#[test]
fn seeds_that_once_met_a_bug_keep_every_promise() {
    for seed in [2517, 214, 10, 104, 460, 52, 172, 5, 1242] {
        assert_eq!(run(seed, Telling::Silent).violation, None, "seed {seed}");
    }
}

/// The first seeds that met a bug that was planted in the judgement of trust: nobody asked (7), asked when pages arrive and
/// not when they become visible (87), orders to forget not counted (27), quarantine (19), certificates' time (23) or keys (51)
/// not looked at, kept pages of revoked nodes left (143), realms of other nodes (39) or secrets (11) shared.
#[test]
fn seeds_that_met_a_bug_of_trust_keep_every_promise() {
    for seed in [7, 87, 27, 19, 23, 51, 143, 39, 11] {
        assert_eq!(run(seed, Telling::Silent).violation, None, "seed {seed}");
    }
}

#[test]
fn trust_changes_at_every_step_of_handoffs_and_those_of_others_complete() {
    let summary = run_seeds(0..600, threads());
    let count = |mark| summary.coverage.of(mark);
    let changes = [
        Mark::TrustRevoked,
        Mark::TrustQuarantined,
        Mark::TrustCertificateEnded,
        Mark::TrustKeyRotatedAway,
        Mark::TrustRealmChanged,
        Mark::TrustTakenBack,
        Mark::TrustAllForgotten,
        Mark::TrustLieBegun,
    ];
    let steps = [
        Mark::ChangedWhenConnected,
        Mark::ChangedWhenAsked,
        Mark::ChangedWhenRecorded,
        Mark::ChangedBetweenPages,
        Mark::ChangedWhenComplete,
        Mark::ChangedWhenArrived,
        Mark::ChangedWhenRenewed,
        Mark::ChangedWhileRunning,
        Mark::ChangedWhenKept,
    ];
    let outcomes = [
        Mark::UntrustedWhenConnecting,
        Mark::UntrustedWhenAsking,
        Mark::UntrustedWhenComplete,
        Mark::TurnRefusedUntrusted,
        Mark::TurnRefusedTakenBack,
        Mark::LeftNothing,
        Mark::LostTakenBack,
        Mark::LiarCondemned,
        Mark::TrustedBesideOthers,
    ];
    for mark in changes.into_iter().chain(steps).chain(outcomes) {
        assert!(count(mark) >= 5, "{mark:?} happened {} times\n{}", count(mark), summary.coverage);
    }
    let sum = |marks: &[Mark]| marks.iter().map(|mark| count(*mark)).sum::<u64>();
    assert_eq!(sum(&changes), sum(&steps), "{}", summary.coverage);
}
