//! Queue times of places, and measurements of prompts that are computed here.

use std::time::Duration;

use muser_host::{Slot, Task, Totals};
use muser_kv::PoolUse;
use muser_placement::{PolicySettings, Verdict};
use muser_trust::identity::NodeId;
use muser_wire::Stats;

use super::*;

const LOCAL: Place = Place::Local;

fn producer() -> Place {
    Place::Producer("192.0.2.1:9932".parse().unwrap())
}

/// A chooser with measured rates: this node 1 ms a row, a producer 0.5 ms a row and 1000 ms a request.
fn chooser() -> Arc<Chooser> {
    let mut policy = Policy::new(PolicySettings::default(), [0; 32]);
    for (place, ms_of_1000, total_ms) in [(LOCAL, 1000.0, 1000.0), (producer(), 500.0, 1500.0)] {
        let observation = Observation {
            place,
            compute: 0..1000,
            compute_ms: ms_of_1000,
            wire_bytes: 1,
            wire_ms: 0.0,
            queue_ms: 0.0,
            total_ms,
        };
        policy.observe(&observation, 0);
    }
    Arc::new(Chooser::new(policy, None, 256))
}

/// An engine that runs these prompts, each with so many rows of so many.
fn status(running: &[(usize, usize)]) -> EngineStatus {
    let slot = |(number, (computed, prompt)): (usize, &(usize, usize))| Slot {
        task: Some(Task {
            number: number as u64,
            prompt_tokens: *prompt,
            computed_tokens: *computed,
            generated_tokens: 0,
        }),
    };
    EngineStatus {
        slots: running.iter().enumerate().map(slot).chain([Slot::default()]).collect(),
        waiting: 0,
        memory: PoolUse { live_pages: 0, live_bytes: 0, free_pages: 0, free_bytes: 0, budget_bytes: 0 },
        prefix_bytes: 0,
        totals: Totals::default(),
        failure: None,
    }
}

/// Queue time of the place in the choice's explanation, ms.
fn queue_ms(chooser: &Chooser, place: Place, status: &EngineStatus) -> f64 {
    let chosen = chooser.choose(&[(place, 0..100, 0)], status).unwrap();
    chosen.choice.explanations[0].cost.unwrap().queue_ms
}

fn verdict(chooser: &Chooser, rows: u64) -> Verdict {
    let chosen = chooser.choose(&[(LOCAL, 0..rows, 0), (producer(), 0..rows, 1)], &status(&[])).unwrap();
    chosen.choice.explanations.into_iter().find(|each| each.place == chosen.choice.place).unwrap().verdict
}

#[test]
fn this_node_is_busy_with_what_runs_and_what_waits() {
    let chooser = chooser();
    let running = status(&[(200, 500), (700, 600)]);
    assert!((queue_ms(&chooser, LOCAL, &running) - 300.0).abs() < 1e-6);
    let mut waiting = chooser.watch(64, 264);
    assert!((queue_ms(&chooser, LOCAL, &running) - 500.0).abs() < 1e-6);
    // Once it runs, the engine's status counts it.
    waiting.started(Instant::now(), 64, 0, &running);
    assert!((queue_ms(&chooser, LOCAL, &running) - 300.0).abs() < 1e-6);
    let another = chooser.watch(0, 100);
    drop((waiting, another));
    assert_eq!(queue_ms(&chooser, LOCAL, &status(&[])), 0.0);
}

#[test]
fn a_producer_is_busy_with_what_it_was_given_or_as_long_as_it_last_was() {
    let (chooser, idle) = (chooser(), status(&[]));
    let given = chooser.begin(producer(), 0..400);
    assert!((queue_ms(&chooser, producer(), &idle) - 200.0).abs() < 1e-6);
    given.progress(300);
    assert!((queue_ms(&chooser, producer(), &idle) - 50.0).abs() < 1e-6);
    drop(given);
    assert_eq!(queue_ms(&chooser, producer(), &idle), 0.0);
    let mut state = chooser.lock();
    state.queues.insert(producer(), (60_000.0, 1000));
    for (now_ms, expected_ms) in [(1000, 60_000.0), (31_000, 30_000.0), (61_000, 0.0), (90_000, 0.0)] {
        assert_eq!(state.queue_ms(producer(), &idle, now_ms), expected_ms, "at {now_ms} ms");
        assert_eq!(state.queue_ms(LOCAL, &idle, now_ms), 0.0);
    }
}

#[test]
fn a_place_that_nobody_knows_is_tried_by_one_long_prompt_at_a_time() {
    let mut policy = Policy::new(PolicySettings::default(), [0; 32]);
    policy.observe(&chooser_observation(), 0);
    let chooser = Arc::new(Chooser::new(policy, None, 256));
    assert_eq!(verdict(&chooser, 255), Verdict::Cheapest);
    assert_eq!(verdict(&chooser, 256), Verdict::FirstTry);
    let short = chooser.begin(producer(), 0..100);
    assert_eq!(verdict(&chooser, 256), Verdict::FirstTry);
    let trial = chooser.begin(producer(), 0..256);
    assert_eq!(verdict(&chooser, 256), Verdict::Cheapest);
    drop((short, trial));
    assert_eq!(verdict(&chooser, 256), Verdict::FirstTry);
}

fn chooser_observation() -> Observation {
    Observation {
        place: LOCAL,
        compute: 0..100,
        compute_ms: 100.0,
        wire_bytes: 0,
        wire_ms: 0.0,
        queue_ms: 0.0,
        total_ms: 100.0,
    }
}

#[test]
fn what_is_computed_beside_others_teaches_by_its_share_and_not_at_all_if_they_change() {
    let learnt = |after: &EngineStatus, rows: u64| {
        let chooser = chooser();
        let mut watch = chooser.watch(0, rows);
        let began = Instant::now();
        watch.started(began, 0, 1, &status(&[(0, 5000)]));
        watch.first_token(began + Duration::from_secs(8), after);
        chooser.lock().policy.compute_ms(LOCAL, &(0..1000)).unwrap()
    };
    // 3000 rows of another and 1000 of its own in 8 s: 2 ms each, and a quarter of the way from 1 ms is 1.25 ms.
    let shared_ms = learnt(&status(&[(3000, 5000)]), 1000);
    assert!((shared_ms - 1250.0).abs() < 1.0, "{shared_ms}");
    assert_eq!(learnt(&status(&[]), 1000), 1000.0);
    // So few rows say nothing about rows.
    assert_eq!(learnt(&status(&[(3000, 5000)]), 63), 1000.0);
}

#[test]
fn times_too_short_for_the_kernels_ticks_are_those_from_the_first_page_to_the_last() {
    let times =
        |send_busy_us| SenderTimes { queue_us: 0, compute_us: 0, pack_us: 0, send_busy_us, send_wall_us: 400_000 };
    let told =
        [(None, 400_000), (Some(0), 400_000), (Some(4000), 400_000), (Some(90_000), 90_000), (Some(500_000), 400_000)];
    for (busy_us, expected_us) in told {
        assert_eq!(wire_us(&times(busy_us)), expected_us, "{busy_us:?}");
    }
}

/// A decoder cannot know beforehand what packing leaves of the pages: it must not count the packing's gain as a slow wire.
#[test]
fn a_wire_that_carries_packed_pages_is_as_quick_as_what_they_hold() {
    let chooser = Arc::new(Chooser::new(Policy::new(PolicySettings::default(), [0; 32]), None, 0));
    let times = SenderTimes {
        queue_us: 7_000,
        compute_us: 100_000,
        pack_us: 0,
        send_busy_us: Some(400_000),
        send_wall_us: 450_000,
    };
    let stats = Stats {
        rows: 1000,
        reused_rows: 0,
        pages: 100,
        payload_bytes: 4_000_000,
        stored_bytes: 1_000_000,
        frames: 1,
        elapsed_ms: 500,
        times,
    };
    let (node, elapsed) = (NodeId([1; 32]), Duration::from_millis(500));
    chooser.brought(producer(), &Handoff { producer: "one".into(), node, stats, held_pages: 0, elapsed });
    let chosen = chooser.choose(&[(producer(), 0..1000, 4_000_000)], &status(&[])).unwrap();
    let cost = chosen.choice.explanations[0].cost.unwrap();
    assert!((cost.wire_ms - 400.0).abs() < 1e-6 && (cost.compute_ms - 100.0).abs() < 1e-6, "{cost:?}");
    assert!((cost.fixed_ms - 93.0).abs() < 1e-6, "{cost:?}");
}

#[test]
fn a_prompt_that_had_the_engine_to_itself_teaches_whatever_its_time() {
    let began = Instant::now();
    for micros in (50_000..60_000).step_by(7) {
        let chooser = Arc::new(Chooser::new(Policy::new(PolicySettings::default(), [0; 32]), None, 256));
        let mut watch = chooser.watch(0, 228);
        watch.started(began, 0, 0, &status(&[]));
        watch.first_token(began + Duration::from_micros(micros), &status(&[]));
        assert!(chooser.lock().policy.knows(LOCAL), "{micros} us");
    }
}
