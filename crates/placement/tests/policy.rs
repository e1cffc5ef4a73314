//! The policy against machines and wires whose true rates are known.

use std::ops::Range;

use muser_placement::{Candidate, Observation, Place, Policy, PolicyFileError, PolicySettings, Trial, Verdict};
use muser_trust::Address;
use muser_trust::identity::NodeId;

/// Muse Glimmer 30B's rows in f16: 13 layers of all positions, 39 of the last 2048.
fn bytes(range: &Range<u64>) -> u64 {
    let positions = range.end - range.start;
    1024 * (13 * positions + 39 * positions.min(2048))
}

const MODEL: [u8; 32] = [9; 32];

#[test]
fn a_producer_that_is_busy_is_left_alone_as_long_as_it_asks_and_not_taken_for_one_that_fails() {
    // A refusal as busy was once a failure, so that a few of them in a row kept a healthy producer unused for a minute.
    // Now the producer says when it may be asked again.
    let (mut policy, place) = (Policy::new(PolicySettings::default(), MODEL), Place::Producer(address(1)));
    let range = 0..1000;
    let candidate = || Machine::producer(1, 1000.0, 1.0, 2.0).candidate(&range);
    for round in 0..20 {
        let now_ms = round * 1000;
        assert!(policy.choose(&[candidate()], now_ms).is_some(), "round {round}");
        policy.busy(place, 1000, now_ms);
        let chosen = policy.choose(&[candidate()], now_ms + 999);
        assert!(chosen.is_none(), "round {round}: {chosen:?}");
    }
    assert_eq!(policy.fail(place, 30_000), 31_000);
    // Being busy neither shortens what a failure cost nor lasts for ever.
    policy.busy(place, 1, 30_000);
    assert!(policy.choose(&[candidate()], 30_999).is_none());
    policy.busy(place, u64::MAX, 40_000);
    assert!(policy.choose(&[candidate()], 100_000).is_some());
    policy.busy(Place::Local, 1000, 40_000);
    assert!(policy.choose(&[Machine::local(1000.0).candidate(&range)], 40_000).is_some());
}

/// A machine: positions a second at depth 0, how much slower it gets with depth, its wire and its fixed cost.
#[derive(Clone, Copy, Debug)]
struct Machine {
    place: Place,
    positions_per_s: f64,
    depth_for_half: f64,
    /// `None` for the local machine.
    wire_gbit_per_s: Option<f64>,
    fixed_ms: f64,
}

impl Machine {
    fn local(positions_per_s: f64) -> Self {
        Self { place: Place::Local, positions_per_s, depth_for_half: 20_000.0, wire_gbit_per_s: None, fixed_ms: 2.0 }
    }

    fn producer(id: u8, positions_per_s: f64, gbit: f64, fixed_ms: f64) -> Self {
        let place = Place::Producer(address(id));
        Self { place, positions_per_s, depth_for_half: 40_000.0, wire_gbit_per_s: Some(gbit), fixed_ms }
    }

    fn compute_ms(&self, range: &Range<u64>) -> f64 {
        // The integral of (1 + depth / depth_for_half) / rate.
        let up_to = |end: u64| end as f64 + (end as f64).powi(2) / (2.0 * self.depth_for_half);
        1000.0 * (up_to(range.end) - up_to(range.start)) / self.positions_per_s
    }

    fn candidate(&self, range: &Range<u64>) -> Candidate {
        let wire_bytes = self.wire_gbit_per_s.map_or(0, |_| bytes(range));
        Candidate { place: self.place, compute: range.clone(), wire_bytes, queue_ms: 0.0, trial: Trial::Allowed }
    }

    /// Simulated times of a request, with a few per cent of noise.
    fn run(&self, range: &Range<u64>, random: &mut fastrand::Rng) -> Observation {
        let mut noise = || 0.96 + 0.08 * random.f64();
        let Candidate { place, compute, wire_bytes, queue_ms, .. } = self.candidate(range);
        let compute_ms = self.compute_ms(range) * noise();
        let wire_ms = self.wire_gbit_per_s.map_or(0.0, |gbit| wire_bytes as f64 * 8.0 / gbit / 1e6 * noise());
        let total_ms = compute_ms.max(wire_ms) + self.fixed_ms * noise();
        // A kernel does not tell short times: then it is what passes from the first page to the last, most of the computing.
        let is_told = wire_ms >= 50.0 || self.wire_gbit_per_s.is_none();
        let wire_ms = if is_told { wire_ms } else { wire_ms.max(0.9 * compute_ms) };
        Observation { place, compute, compute_ms, wire_bytes, wire_ms, queue_ms, total_ms }
    }

    fn true_ms(&self, range: &Range<u64>) -> f64 {
        let bytes = self.candidate(range).wire_bytes as f64;
        let wire_ms = self.wire_gbit_per_s.map_or(0.0, |gbit| bytes * 8.0 / gbit / 1e6);
        self.compute_ms(range).max(wire_ms) + self.fixed_ms
    }
}

fn address(id: u8) -> Address {
    Address::from(([192, 0, 2, id], 9932))
}

/// The length at `share` of the way from 256 to 16384 positions, by its logarithm.
#[expect(clippy::cast_possible_truncation, reason = "the length is positive and at most 16384")]
fn length_at(share: f64) -> u64 {
    (256.0 * 64f64.powf(share)).round() as u64
}

fn length(random: &mut fastrand::Rng) -> u64 {
    length_at(random.f64())
}

fn candidates(machines: &[Machine], range: &Range<u64>) -> Vec<Candidate> {
    machines.iter().map(|machine| machine.candidate(range)).collect()
}

/// Serves `count` requests by the policy's choices, one a second.
fn serve(policy: &mut Policy, machines: &[Machine], count: u64, now_ms: &mut u64, random: &mut fastrand::Rng) {
    for _ in 0..count {
        *now_ms += 1000;
        let range = 0..length(random);
        let place = policy.choose(&candidates(machines, &range), *now_ms).unwrap().place;
        let machine = machines.iter().find(|machine| machine.place == place).unwrap();
        policy.observe(&machine.run(&range, random), *now_ms);
    }
}

/// Share of 64 lengths for which the cheapest by the policy is the fastest in truth.
fn share_right(policy: &Policy, machines: &[Machine], now_ms: u64) -> f64 {
    let right = (0..64u32).filter(|point| {
        let range = 0..length_at(f64::from(*point) / 63.0);
        let choice = policy.choose(&candidates(machines, &range), now_ms).unwrap();
        let cost = |place| choice.explanations.iter().find(|each| each.place == place).unwrap().cost.unwrap().total_ms;
        let by_policy = machines.iter().min_by(|a, b| cost(a.place).total_cmp(&cost(b.place))).unwrap();
        let in_truth = machines.iter().min_by(|a, b| a.true_ms(&range).total_cmp(&b.true_ms(&range))).unwrap();
        by_policy.place == in_truth.place
    });
    right.count() as f64 / 64.0
}

#[test]
fn the_faster_side_is_chosen_in_95_of_100_points_over_1_and_10_gbit() {
    for gbit in [1.0, 10.0] {
        faster_side_is_chosen(gbit);
    }
}

fn faster_side_is_chosen(gbit: f64) {
    let (mut points, mut crossovers, mut worst) = (0.0, 0, 1.0f64);
    let seeds = 200;
    for seed in 0..seeds {
        let mut random = fastrand::Rng::with_seed(seed);
        let fixed_ms = 20.0 * 175f64.powf(random.f64());
        // A server's processor or a desktop's accelerator here, an accelerator of a data centre or a small one there.
        let machines = [
            Machine::local(60.0 * 30f64.powf(random.f64())),
            Machine::producer(1, 2000.0 * 8f64.powf(random.f64()), gbit * (0.6 + 0.35 * random.f64()), fixed_ms),
        ];
        let mut policy = Policy::new(PolicySettings::default(), MODEL);
        let mut now_ms = 0;
        serve(&mut policy, &machines, 300, &mut now_ms, &mut random);
        let share = share_right(&policy, &machines, now_ms);
        (points, worst) = (points + share, worst.min(share));
        let local_wins = |end| machines[0].true_ms(&(0..end)) < machines[1].true_ms(&(0..end));
        crossovers += usize::from(local_wins(256) != local_wins(16_384));
    }
    let share = points / seeds as f64;
    println!(
        "{gbit} Gbit/s: {:.2} % of points right, worst machine {:.1} %, {crossovers} crossovers",
        100.0 * share,
        100.0 * worst
    );
    assert!(share >= 0.95, "{gbit} Gbit/s: {:.1} % right", 100.0 * share);
    assert!(crossovers > 30, "only {crossovers} of {seeds} pairs have a crossover, so the test says little");
}

#[test]
fn the_crossover_moves_when_the_wire_slows_down_and_when_it_recovers() {
    let mut random = fastrand::Rng::with_seed(1);
    let local = Machine::local(900.0);
    let (quick, slow) = (Machine::producer(1, 8000.0, 9.0, 300.0), Machine::producer(1, 8000.0, 0.15, 300.0));
    let mut policy = Policy::new(PolicySettings::default(), MODEL);
    let mut now_ms = 0;
    let long = 0..8000;
    let chosen = |policy: &Policy, now_ms| policy.choose(&candidates(&[local, quick], &long), now_ms).unwrap().place;
    serve(&mut policy, &[local, quick], 200, &mut now_ms, &mut random);
    assert_eq!(chosen(&policy, now_ms), quick.place);
    serve(&mut policy, &[local, slow], 200, &mut now_ms, &mut random);
    assert_eq!(chosen(&policy, now_ms), Place::Local);
    // Nothing but the occasional retry tells that the wire is good again.
    serve(&mut policy, &[local, quick], 2000, &mut now_ms, &mut random);
    assert_eq!(chosen(&policy, now_ms), quick.place);
}

/// A producer measured over a broken wire looks ten times too dear, and would never be chosen by cost alone.
#[test]
fn a_producer_that_looks_hopeless_is_tried_again_within_minutes() {
    let mut random = fastrand::Rng::with_seed(6);
    let machines = [Machine::local(900.0), Machine::producer(1, 8000.0, 9.0, 100.0)];
    let broken = Machine { wire_gbit_per_s: Some(0.0096), ..machines[1] };
    let (mut policy, mut now_ms) = (Policy::new(PolicySettings::default(), MODEL), 0);
    let range = 0..8000;
    for machine in [machines[0], broken] {
        policy.observe(&machine.run(&range, &mut random), now_ms);
    }
    let place = |policy: &Policy, now_ms| policy.choose(&candidates(&machines, &range), now_ms).unwrap().place;
    assert_eq!(place(&policy, now_ms), Place::Local);
    serve(&mut policy, &machines, 240, &mut now_ms, &mut random);
    assert_eq!(place(&policy, now_ms), Place::Local);
    serve(&mut policy, &machines, 1000, &mut now_ms, &mut random);
    assert_eq!(place(&policy, now_ms), machines[1].place);
}

#[test]
fn whole_prompts_of_many_lengths_tell_what_deep_positions_cost() {
    let mut random = fastrand::Rng::with_seed(7);
    let machine = Machine { depth_for_half: 4000.0, ..Machine::local(900.0) };
    let mut policy = Policy::new(PolicySettings::default(), MODEL);
    for _ in 0..2000 {
        policy.observe(&machine.run(&(0..length(&mut random)), &mut random), 0);
    }
    for range in [0..2000, 2048..4096, 4096..8192, 8192..16_384] {
        let choice = policy.choose(&[machine.candidate(&range)], 0).unwrap();
        let (expected, truth) = (choice.explanations[0].cost.unwrap().compute_ms, machine.compute_ms(&range));
        assert!((expected / truth - 1.0).abs() < 0.15, "{range:?}: {expected} ms expected, {truth} ms in truth");
    }
}

#[test]
fn among_several_producers_the_quickest_is_found() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut machines = vec![Machine::local(400.0)];
        machines
            .extend((1..4).map(|id| Machine::producer(id, 2000.0 * f64::from(id), 9.0, 50.0 + 10.0 * f64::from(id))));
        let mut policy = Policy::new(PolicySettings::default(), MODEL);
        let mut now_ms = 0;
        serve(&mut policy, &machines, 300, &mut now_ms, &mut random);
        let share = share_right(&policy, &machines, now_ms);
        assert!(share >= 0.9, "seed {seed}: {share}");
    }
}

#[test]
fn one_wild_measurement_does_not_turn_the_policy_over() {
    let mut random = fastrand::Rng::with_seed(3);
    let machines = [Machine::local(500.0), Machine::producer(1, 8000.0, 9.0, 100.0)];
    let mut policy = Policy::new(PolicySettings::default(), MODEL);
    let mut now_ms = 0;
    serve(&mut policy, &machines, 200, &mut now_ms, &mut random);
    let range = 0..8000;
    let mut wild = machines[1].run(&range, &mut random);
    (wild.compute_ms, wild.wire_ms, wild.total_ms) = (wild.compute_ms * 1e3, f64::NAN, f64::INFINITY);
    policy.observe(&wild, now_ms);
    let choice = policy.choose(&candidates(&machines, &range), now_ms).unwrap();
    assert_eq!(choice.place, machines[1].place);
}

#[test]
fn after_a_failure_a_producer_is_left_alone_for_a_stated_time_and_used_again() {
    let machines = [Machine::local(500.0), Machine::producer(1, 8000.0, 9.0, 100.0)];
    let (mut policy, mut now_ms) = (Policy::new(PolicySettings::default(), MODEL), 0);
    let mut random = fastrand::Rng::with_seed(4);
    serve(&mut policy, &machines, 50, &mut now_ms, &mut random);
    let producer = machines[1].place;
    let range = 0..8000;
    let list = candidates(&machines, &range);
    assert_eq!(policy.choose(&list, now_ms).unwrap().place, producer);
    for (failures, wait_ms) in
        [(1, 1000), (2, 2000), (3, 4000), (4, 8000), (5, 16_000), (6, 32_000), (7, 60_000), (8, 60_000)]
    {
        let until_ms = policy.fail(producer, now_ms);
        assert_eq!(until_ms, now_ms + wait_ms, "failure {failures}");
        let choice = policy.choose(&list, until_ms - 1).unwrap();
        assert_eq!(choice.place, Place::Local);
        assert_eq!(choice.explanations[1].verdict, Verdict::BackOff { until_ms, failures });
        assert_eq!(policy.choose(&list, until_ms).unwrap().place, producer);
        assert_eq!(policy.choose(&list[1..], until_ms - 1), None);
        now_ms = until_ms;
    }
    policy.observe(&machines[1].run(&range, &mut random), now_ms);
    assert_eq!(policy.fail(producer, now_ms), now_ms + 1000);
    assert_eq!(policy.fail(Place::Local, now_ms), now_ms);
    for _ in 0..200 {
        policy.fail(producer, now_ms);
    }
    assert_eq!(policy.fail(producer, now_ms), now_ms + 60_000);
}

#[test]
fn a_choice_explains_every_term() {
    let id = address(1);
    let mut policy = Policy::new(PolicySettings::default(), MODEL);
    let observation = |place, wire_bytes, wire_ms, total_ms| Observation {
        place,
        compute: 0..100,
        compute_ms: 50.0,
        wire_bytes,
        wire_ms,
        queue_ms: 10.0,
        total_ms,
    };
    policy.observe(&observation(Place::Local, 0, 0.0, 61.0), 0);
    policy.observe(&observation(Place::Producer(id), 1000, 80.0, 95.0), 0);
    let candidate =
        |place, wire_bytes| Candidate { place, compute: 0..200, wire_bytes, queue_ms: 7.0, trial: Trial::Allowed };
    let other = Place::Producer(address(2));
    let list = [candidate(Place::Local, 0), candidate(Place::Producer(id), 2000)];
    let choice = policy.choose(&list, 0).unwrap();
    let shown: Vec<String> = choice.explanations.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown[0],
        "local: 108.0 ms = queue 7.0 + max(compute 100.0, wire 0.0) + fixed 1.0; chosen as the cheapest"
    );
    let expected = "172.0 ms = queue 7.0 + max(compute 100.0, wire 160.0) + fixed 5.0; not chosen";
    assert_eq!(shown[1], format!("producer 192.0.2.1:9932: {expected}"));
    let choice = policy.choose(&[list[0].clone(), candidate(other, 5)], 0).unwrap();
    assert_eq!((choice.place, choice.explanations[1].verdict), (other, Verdict::FirstTry));
    assert_eq!(policy.choose(&[], 0), None);
}

#[test]
fn what_was_learnt_survives_a_restart_and_nonsense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    let machines = [Machine::local(500.0), Machine::producer(1, 8000.0, 9.0, 100.0)];
    let (mut policy, mut now_ms) = (Policy::new(PolicySettings::default(), MODEL), 0);
    serve(&mut policy, &machines, 100, &mut now_ms, &mut fastrand::Rng::with_seed(5));
    policy.save(&path).unwrap();
    let again = Policy::load(&path, PolicySettings::default(), now_ms).unwrap();
    let list = candidates(&machines, &(0..5000));
    let costs = |policy: &Policy| {
        policy.choose(&list, now_ms).unwrap().explanations.iter().map(|each| each.cost).collect::<Vec<_>>()
    };
    assert_eq!(costs(&again), costs(&policy));
    for text in [
        "place = 1",
        "model = \"12\"",
        "[[place]]\naddress = \"nowhere\"\nposition_ms = [1.0]",
        "[[place]]\nposition_ms = [-1.0]",
        "[[place]]\nposition_ms = [nan]",
        "[[place]]\nposition_ms = []\nfixed_ms = inf",
        "[[place]]\nnode = \"zz\"\nposition_ms = []",
    ] {
        let model = if text.contains("model") { String::new() } else { format!("model = \"{}\"\n", "09".repeat(32)) };
        std::fs::write(&path, model + text).unwrap();
        let error = Policy::load(&path, PolicySettings::default(), 0).unwrap_err();
        assert!(!matches!(error, PolicyFileError::File(_)), "{text}: {error}");
    }
}

#[test]
fn another_node_at_an_address_begins_from_nothing_and_the_same_one_goes_on() {
    let machine = Machine::producer(1, 8000.0, 9.0, 100.0);
    let mut policy = Policy::new(PolicySettings::default(), MODEL);
    let mut random = fastrand::Rng::with_seed(8);
    policy.met(machine.place, NodeId([1; 32]));
    policy.observe(&machine.run(&(0..1000), &mut random), 0);
    policy.met(machine.place, NodeId([1; 32]));
    assert!(policy.knows(machine.place));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    policy.save(&path).unwrap();
    let mut policy = Policy::load(&path, PolicySettings::default(), 0).unwrap();
    assert_eq!((policy.model(), policy.measured().collect::<Vec<_>>()), (MODEL, vec![machine.place]));
    policy.met(machine.place, NodeId([2; 32]));
    assert!(!policy.knows(machine.place));
}

#[test]
fn a_place_is_not_tried_by_what_tells_nothing_about_it_unless_nobody_is_known() {
    let machines = [Machine::producer(1, 8000.0, 9.0, 100.0), Machine::local(500.0)];
    let mut policy = Policy::new(PolicySettings::default(), MODEL);
    let mut random = fastrand::Rng::with_seed(9);
    let allowed = candidates(&machines, &(0..300));
    let barred: Vec<Candidate> =
        allowed.iter().map(|each| Candidate { trial: Trial::Barred, ..each.clone() }).collect();
    let choose = |policy: &Policy, list: &[Candidate], now_ms| {
        let choice = policy.choose(list, now_ms).unwrap();
        let verdict = choice.explanations.iter().find(|each| each.place == choice.place).unwrap().verdict;
        (choice.place, verdict)
    };
    assert_eq!(choose(&policy, &barred, 0), (machines[0].place, Verdict::FirstTry));
    policy.observe(&machines[1].run(&(0..300), &mut random), 0);
    assert_eq!(choose(&policy, &barred, 0), (Place::Local, Verdict::Cheapest));
    assert_eq!(choose(&policy, &allowed, 0), (machines[0].place, Verdict::FirstTry));
    // The producer is slightly dearer: it is measured again after a minute, but not by this.
    let dearer = Machine { fixed_ms: machines[1].true_ms(&(0..300)) * 1.1, ..machines[0] };
    policy.observe(&dearer.run(&(0..300), &mut random), 0);
    assert_eq!(choose(&policy, &barred, 70_000).0, Place::Local);
    assert!(matches!(choose(&policy, &allowed, 70_000), (place, Verdict::Retry { .. }) if place == dearer.place));
}
