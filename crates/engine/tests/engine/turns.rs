//! Turns: a client with many requests makes another wait for a place at most, and no answer shows it.

use muser_engine::EngineSettings;
use muser_engine::engine::{Flow, RequestId, SubmitError};
use muser_kv::KvLayout;

use crate::world::{
    Request, Solo, World, assert_same_answer, glimmer, greedy, llama, non_zero, pages, random_tokens, roomy,
};

const ALICE: Flow = Flow { client: 1, group: 0 };
const BOB: Flow = Flow { client: 2, group: 0 };

fn world(running_max: usize, waiting_max: usize) -> World {
    let settings = EngineSettings { running_max: non_zero(running_max), waiting_max, ..roomy(KvLayout::Q8) };
    World::new(&llama(), settings)
}

/// A request for `tokens` tokens with a prompt of its own.
fn request(flow: Flow, seed: u64, tokens: usize) -> Request {
    Request { flow, ..greedy(&random_tokens(&mut fastrand::Rng::with_seed(seed), 10), tokens) }
}

/// Requests that are done, in the order in which they ended; those of one step by number.
fn ends(world: &mut World) -> Vec<RequestId> {
    let mut ended = Vec::new();
    while world.engine.has_work() {
        world.step();
        let mut new: Vec<RequestId> = world
            .stories
            .iter()
            .filter(|(id, s)| s.outcome.is_some() && !ended.contains(*id))
            .map(|(id, _)| *id)
            .collect();
        new.sort_unstable();
        ended.extend(new);
    }
    ended
}

#[test]
fn places_turn_between_clients_however_many_requests_one_has() {
    let mut world = world(1, 100);
    let of_alice: Vec<_> = (0..6).map(|seed| world.submit(request(ALICE, seed, 3))).collect();
    let of_bob: Vec<_> = (10..13).map(|seed| world.submit(request(BOB, seed, 3))).collect();
    let ([a, b, c, d, e, f], [x, y, z]) = (of_alice[..].try_into().unwrap(), of_bob[..].try_into().unwrap());
    assert_eq!(ends(&mut world), [a, x, b, y, c, z, d, e, f]);
}

#[test]
fn answers_of_one_request_take_turns_with_other_requests_of_the_same_client() {
    let mut world = world(1, 100);
    let [first, second] = [1, 2].map(|group| Flow { group, ..ALICE });
    let many: Vec<_> = (0..4).map(|seed| world.submit(request(first, seed, 3))).collect();
    let few: Vec<_> = (10..12).map(|seed| world.submit(request(second, seed, 3))).collect();
    assert_eq!(ends(&mut world), [many[0], few[0], many[1], few[1], many[2], many[3]]);
}

#[test]
fn who_comes_to_a_full_engine_has_a_place_at_once_and_nothing_is_computed_twice() {
    let mut alone = Solo::new(&llama(), KvLayout::Q8);
    for other in [BOB, Flow { group: 7, ..ALICE }] {
        let mut world = world(4, 100);
        let many: Vec<_> = (0..20).map(|seed| request(ALICE, seed, 90)).collect();
        let ids: Vec<_> = many.iter().map(|request| world.submit(request.clone())).collect();
        let mut rows = 0;
        let mut step = |world: &mut World| {
            let report = world.step();
            rows += report.decode_rows + report.prefill_rows;
        };
        for _ in 0..5 {
            step(&mut world);
        }
        let late = world.submit(request(other, 50, 2));
        step(&mut world);
        assert_eq!((world.stories[&late].tokens.len(), world.engine.running()), (1, 4), "{other:?}");
        step(&mut world);
        assert_eq!(world.stories[&late].tokens.len(), 2);
        while world.engine.has_work() {
            step(&mut world);
        }
        for (id, request) in ids.iter().zip(&many) {
            assert_same_answer(&world.stories[id], &alone.run(request), "beside others");
        }
        let paused: Vec<usize> = ids.iter().map(|id| world.stories[id].paused).collect();
        assert_eq!((paused[3], paused.iter().sum()), (1, 1), "only the one that started last gives up its place");
        assert_eq!(rows, 20 * (10 + 89) + 10 + 1);
    }
}

#[test]
fn long_answers_of_more_clients_than_places_take_turns_after_64_tokens() {
    let mut world = world(1, 100);
    let clients: Vec<_> = (0..3).map(|client| request(Flow { client, group: 0 }, client, 200)).collect();
    let ids: Vec<_> = clients.iter().map(|request| world.submit(request.clone())).collect();
    let mut alone = Solo::new(&llama(), KvLayout::Q8);
    while world.engine.has_work() {
        world.step();
        let lengths: Vec<usize> =
            ids.iter().map(|id| world.stories.get(id).map_or(0, |story| story.tokens.len())).collect();
        let least = lengths.iter().min().unwrap();
        assert!(lengths.iter().all(|length| length - least <= 64 + 8), "{lengths:?}");
    }
    for (id, request) in ids.iter().zip(&clients) {
        assert_same_answer(&world.stories[id], &alone.run(request), "in turns");
        assert_eq!((world.stories[id].paused, world.stories[id].preempted), (3, 0));
    }
}

#[test]
fn a_full_queue_has_places_for_a_client_that_has_less_than_its_share() {
    let mut world = world(1, 8);
    for seed in 0..8 {
        world.submit(request(ALICE, seed, 3));
    }
    let full = |waiting| Err(SubmitError::QueueFull { waiting, max: 8 });
    assert_eq!(world.engine.submit(request(ALICE, 20, 3).job()), full(8));
    for waiting in 8..12 {
        assert_eq!(world.engine.waiting(), waiting);
        world.submit(request(BOB, 30 + waiting as u64, 3));
    }
    assert_eq!(world.engine.submit(request(BOB, 40, 3).job()), full(12));
    let others: Vec<_> =
        (3..5).map(|client| world.engine.submit(request(Flow { client, group: 0 }, client, 3).job())).collect();
    assert!(others.iter().all(Result::is_ok));
    world.finish();
    assert!(world.stories.values().all(|story| story.tokens.len() == 3));
}

#[test]
fn nobody_waits_for_a_prompt_that_others_wait_to_reuse() {
    let mut world = world(4, 100);
    let prompt = random_tokens(&mut fastrand::Rng::with_seed(1), 900);
    let many = (0..4).map(|_| world.submit(Request { flow: ALICE, ..greedy(&prompt, 2) })).collect::<Vec<_>>();
    assert_eq!(world.step().running, 1);
    let late = world.submit(request(BOB, 2, 1));
    world.step();
    assert_eq!(world.stories[&late].tokens.len(), 1);
    world.finish();
    assert!(many[1..].iter().all(|id| world.stories[id].reused == Some(896)));
}

#[test]
fn turns_interruptions_and_cancellations_of_many_clients_change_no_answer() {
    for (model, kv, budget) in [(llama(), KvLayout::F16, 34), (glimmer(32, &[true, false]), KvLayout::Q8, 26)] {
        let mut random = fastrand::Rng::with_seed(3);
        let settings = EngineSettings {
            budget_bytes: pages(&model, kv, budget),
            prefix_bytes_max: pages(&model, kv, 6),
            running_max: non_zero(3),
            ..roomy(kv)
        };
        let (mut world, mut alone) = (World::new(&model, settings), Solo::new(&model, kv));
        let mut requests = Vec::new();
        for round in 0..60 {
            let flow = Flow { client: random.u64(..4), group: random.u64(..2) };
            let length = random.usize(1..200);
            let request = Request { flow, ..greedy(&random_tokens(&mut random, length), random.usize(1..200)) };
            requests.push((world.submit(request.clone()), request));
            for _ in 0..random.usize(..20) {
                world.step();
            }
            if round % 8 == 7 {
                world.engine.cancel(requests.swap_remove(random.usize(..requests.len())).0);
            }
        }
        world.finish();
        let of = |count: fn(&crate::world::Story) -> usize| world.stories.values().map(count).sum::<usize>();
        let (paused, preempted) = (of(|story| story.paused), of(|story| story.preempted));
        assert!(paused > 5 && preempted > 0, "{paused} pauses, {preempted} interruptions");
        for (id, request) in &requests {
            assert_same_answer(&world.stories[id], &alone.run(request), "in turns");
        }
        assert_eq!(world.engine.memory().live_bytes, world.engine.prefix_bytes());
    }
}
