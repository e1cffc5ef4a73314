//! The same answer to the bit, with any other requests beside it and any pages cached.

use std::thread;

use serde_json::json;

use crate::cases::{CONTEXT, Case};
use crate::world::{Setup, World, shipped};

#[test]
fn every_answer_among_eight_clients_has_the_bits_that_it_has_alone() {
    let cases = Case::all(&shipped(), 24, 11);
    let world = World::start(Setup { context: CONTEXT, slots: 5, ..Setup::of(shipped()) });
    thread::scope(|scope| {
        for client in 0..8 {
            let (cases, world) = (&cases, &world);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(client);
                let mut order: Vec<usize> = (0..cases.len()).collect();
                random.shuffle(&mut order);
                for index in order.into_iter().take(12) {
                    let body = cases[index].body(random.bool(), random.u32(..4) > 0);
                    let wrong = cases[index].wrong(&world.post("/completion", &body));
                    assert_eq!(wrong, None, "client {client}, case {index}");
                }
            });
        }
    });
    let status = world.wait_until_idle();
    assert!(status.totals.reused_tokens > 1000, "{:?}", status.totals);
    assert!(status.totals.running_over_steps > 2 * status.totals.steps, "{:?}", status.totals);
}

#[test]
fn a_seed_decides_the_text_whatever_was_asked_before() {
    let world = World::shipped();
    let text = |seed: u64, cached: bool| {
        let body = json!({"prompt": "Once upon a time there was", "n_predict": 24, "seed": seed, "temperature": 1.2,
                          "top_k": 0, "top_p": 1, "min_p": 0, "cache_prompt": cached});
        world.post("/completion", &body).ok()["content"].clone()
    };
    let first: Vec<_> = (0..4).map(|seed| text(seed, false)).collect();
    let again: Vec<_> = (0..4).rev().map(|seed| text(seed, true)).rev().collect();
    let then: Vec<_> = (0..4).map(|seed| text(seed, true)).collect();
    assert_eq!((&first, &first), (&again, &then));
    assert!(first.windows(2).all(|pair| pair[0] != pair[1]), "{first:?}");
}

#[test]
fn without_a_seed_each_answer_tells_the_seed_that_gives_it_again() {
    let world = World::shipped();
    let body = json!({"prompt": "Once", "n_predict": 16, "temperature": 1.5, "top_k": 0, "seed": -1});
    let [one, other] = [0, 1].map(|_| world.post("/completion", &body).ok());
    assert_ne!(one["generation_settings"]["seed"], other["generation_settings"]["seed"]);
    let mut with_seed = body;
    with_seed["seed"] = one["generation_settings"]["seed"].clone();
    assert_eq!(world.post("/completion", &with_seed).ok()["content"], one["content"]);
}
