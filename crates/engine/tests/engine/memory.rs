//! Too little memory: sequences wait and are interrupted, but no request is refused late, gets stuck or gets another
//! answer.

use muser_engine::EngineSettings;
use muser_engine::engine::SubmitError;
use muser_kv::KvLayout;

use crate::world::{
    LAYOUTS, Request, Solo, World, assert_same_answer, glimmer, greedy, llama, non_zero, pages, random_tokens, roomy,
};

#[test]
fn sequences_that_outgrow_the_memory_take_turns_and_answer_as_if_alone() {
    for (model, layers) in [(llama(), 2), (glimmer(32, &[true, false]), 2), (glimmer(100, &[true, true, false]), 3)] {
        for kv in LAYOUTS {
            // Eight of twelve sequences begin with two pages per layer each and come to need six.
            let settings = EngineSettings {
                budget_bytes: pages(&model, kv, 17 * layers),
                prefix_bytes_max: pages(&model, kv, 17 * layers),
                ..roomy(kv)
            };
            let mut world = World::new(&model, settings);
            let prompts: Vec<Vec<u32>> =
                (0..12).map(|seed| random_tokens(&mut fastrand::Rng::with_seed(seed), 20)).collect();
            let ids: Vec<_> = prompts.iter().map(|prompt| world.submit(greedy(prompt, 330))).collect();
            while world.engine.has_work() {
                let over = |id| world.stories.get(id).is_some_and(|story| story.outcome.is_some());
                let oldest = *ids.iter().find(|id| !over(id)).unwrap();
                let preempted = |world: &World| world.stories.get(&oldest).map_or(0, |story| story.preempted);
                let before = preempted(&world);
                world.step();
                // The oldest of those still at work is never interrupted, so that the whole cannot stand still.
                assert_eq!(preempted(&world), before, "{layers} layers, {kv:?}");
                let memory = world.engine.memory();
                assert!(memory.live_bytes <= memory.budget_bytes);
            }
            let mut alone = Solo::new(&model, kv);
            let mut preempted = 0;
            for (id, prompt) in ids.iter().zip(&prompts) {
                let story = &world.stories[id];
                preempted += story.preempted;
                let what = format!("{layers} layers, {kv:?}, {id:?}");
                assert_same_answer(story, &alone.run(&greedy(prompt, 330)), &what);
            }
            assert!(preempted >= 4, "{preempted}");
        }
    }
}

#[test]
fn kept_prefixes_make_way_before_anybody_is_interrupted() {
    let (model, kv) = (llama(), KvLayout::Q8);
    let budget = pages(&model, kv, 2 * 12);
    let settings = EngineSettings { budget_bytes: budget, prefix_bytes_max: budget, ..roomy(kv) };
    let mut world = World::new(&model, settings);
    for seed in 0..4 {
        world.run(greedy(&random_tokens(&mut fastrand::Rng::with_seed(seed), 200), 1));
    }
    assert!(world.engine.prefix_bytes() > budget / 2);
    let request = greedy(&random_tokens(&mut fastrand::Rng::with_seed(9), 600), 160);
    let story = world.run(request.clone());
    assert_eq!(story.preempted, 0);
    assert_same_answer(&story, &Solo::new(&model, kv).run(&request), "in the place of kept prefixes");
}

#[test]
fn a_request_that_could_never_fit_is_refused_at_once_and_one_that_just_fits_runs() {
    let (model, kv) = (llama(), KvLayout::F16);
    let budget_bytes = pages(&model, kv, 2 * 5);
    let mut world = World::new(&model, EngineSettings { budget_bytes, ..roomy(kv) });
    let prompt = random_tokens(&mut fastrand::Rng::with_seed(1), 300);
    let refused = SubmitError::NeverFits { needed_bytes: pages(&model, kv, 2 * 6), budget_bytes };
    assert_eq!(world.engine.submit(greedy(&prompt, 22).job()), Err(refused));
    assert!(!world.engine.has_work());
    // The last of 21 tokens has no keys and values: 320 rows, five pages.
    let story = world.run(greedy(&prompt, 21));
    assert_same_answer(&story, &Solo::new(&model, kv).run(&greedy(&prompt, 21)), "it just fits");
    let whole = random_tokens(&mut fastrand::Rng::with_seed(2), 320);
    assert_eq!(world.run(Request { context: 320, ..greedy(&whole, 0) }).computed.last(), Some(&320));
}

#[test]
fn a_sequence_waits_for_memory_and_those_behind_it_do_not_overtake() {
    let (model, kv) = (llama(), KvLayout::Q8);
    let settings = EngineSettings { budget_bytes: pages(&model, kv, 2 * 9), running_max: non_zero(4), ..roomy(kv) };
    let mut world = World::new(&model, settings);
    let text = |seed, length| random_tokens(&mut fastrand::Rng::with_seed(seed), length);
    let first = world.submit(greedy(&text(1, 300), 20));
    let second = world.submit(greedy(&text(2, 300), 20));
    let third = world.submit(greedy(&text(3, 10), 5));
    while world.stories.get(&first).is_none_or(|story| story.outcome.is_none()) {
        let report = world.step();
        assert!(report.running <= 1);
        assert!(!world.stories.contains_key(&second) && !world.stories.contains_key(&third));
    }
    world.finish();
    assert_eq!([first, second, third].map(|id| world.stories[&id].preempted), [0; 3]);
    assert_eq!(world.stories[&third].tokens.len(), 5);
}
