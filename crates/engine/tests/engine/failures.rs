//! A value that is not finite fails the sequence that met it, and no other.

use muser_engine::EngineSettings;
use muser_engine::engine::RequestError;
use muser_kv::KvLayout;
use muser_model::{ForwardError, Place};

use crate::world::{Solo, World, assert_same_answer, greedy, random_tokens, roomy, with_a_bad_token};

const BAD: u32 = 299;

/// Tokens that do no harm.
fn good(seed: u64, count: usize) -> Vec<u32> {
    random_tokens(&mut fastrand::Rng::with_seed(seed), count).into_iter().map(|token| token % BAD).collect()
}

#[test]
fn an_overflow_fails_its_request_by_name_and_leaves_the_others_and_the_engine_as_they_were() {
    let model = with_a_bad_token();
    let settings = EngineSettings { prefix_bytes_max: 0, ..roomy(KvLayout::Q8) };
    let mut world = World::new(&model, settings);
    let mut alone = Solo::new(&model, KvLayout::Q8);
    let before = greedy(&good(1, 30), 20);
    let first = world.submit(before.clone());
    world.step();
    let prompt = [&good(2, 150)[..], &[BAD], &good(3, 20)].concat();
    let bad = world.submit(greedy(&prompt, 20));
    let after = greedy(&good(4, 120), 20);
    let last = world.submit(after.clone());
    world.finish();
    let story = &world.stories[&bad];
    let met = ForwardError { position: 150, place: Place::Layer(1) };
    assert_eq!(story.error, Some(RequestError::NotFinite(met)));
    assert_eq!((story.outcome, story.tokens.len()), (None, 0));
    let stand = *story.computed.last().unwrap();
    assert!((150 - 16..=150).contains(&stand), "{stand} rows stand: chunks of up to 16 rows before the bad one should");
    for (id, request) in [(first, before), (last, after)] {
        assert_same_answer(&world.stories[&id], &alone.run(&request), "beside a failed request");
    }
    assert_eq!((world.engine.has_work(), world.engine.memory().live_bytes), (false, 0));
    assert!(!world.engine.cancel(bad));
}

#[test]
fn what_a_failed_request_had_computed_is_not_kept() {
    let model = with_a_bad_token();
    let mut world = World::new(&model, roomy(KvLayout::Q8));
    world.submit(greedy(&[&good(2, 150)[..], &[BAD]].concat(), 5));
    world.finish();
    assert_eq!(world.engine.prefix_bytes(), 0);
    assert_eq!(world.run(greedy(&good(2, 150), 5)).reused, Some(0));
}
