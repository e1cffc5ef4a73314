//! Scheduling of rows: decode first, chunks that yield, a bounded queue, cancellation within one step.

use muser_engine::engine::{EngineError, SubmitError};
use muser_engine::{ChunkRows, Engine, EngineSettings, Finish, SamplingError, SamplingSettings, SettingRange};
use muser_kernels::cpu::Kernels;
use muser_kv::KvLayout;
use muser_model::Executor;

use crate::world::{
    CONTEXT, Request, Solo, World, assert_same_answer, glimmer, greedy, llama, non_zero, random_tokens, roomy,
};

fn prompt(seed: u64, length: usize) -> Vec<u32> {
    random_tokens(&mut fastrand::Rng::with_seed(seed), length)
}

#[test]
fn a_decoder_gets_a_token_in_every_step_of_a_long_prefill_whose_chunks_are_short_meanwhile() {
    let mut world = World::new(&glimmer(100, &[true, false]), roomy(KvLayout::Q8));
    let decoders = [world.submit(greedy(&prompt(1, 10), 30)), world.submit(greedy(&prompt(2, 10), 20))];
    world.step();
    assert_eq!(decoders.map(|id| world.stories[&id].tokens.len()), [1, 1]);
    let long = world.submit(greedy(&prompt(3, 700), 5));
    for step in 1..20 {
        let report = world.step();
        assert_eq!((report.decode_rows, report.prefill_rows), (2, 16), "step {step}");
        assert_eq!(decoders.map(|id| world.stories[&id].tokens.len()), [step + 1, step + 1]);
        assert_eq!(*world.stories[&long].computed.last().unwrap(), 16 * step);
    }
    // One decoder has its 20 tokens, the other goes on.
    assert_eq!(world.step().decode_rows, 1);
    while world.stories[&decoders[0]].outcome.is_none() {
        assert!(world.step().prefill_rows <= 16);
    }
    // No sequence decodes any more: whole chunks.
    let computed = *world.stories[&long].computed.last().unwrap();
    assert!(computed + 96 < 700);
    assert_eq!(world.step().prefill_rows, 96.min(700 - computed));
}

#[test]
fn the_book_s_chunks_are_512_rows_and_64_beside_a_decoder() {
    let model = llama();
    let executor = Executor::new(model, Kernels::detected(), non_zero(1), non_zero(600)).unwrap();
    let mut engine =
        Engine::new(executor, EngineSettings { chunk: ChunkRows::DEFAULT, ..roomy(KvLayout::Q8) }).unwrap();
    engine.submit(greedy(&prompt(1, 700), 5).job()).unwrap();
    let step = |engine: &mut Engine| {
        let report = engine.step(&mut |_, _| ()).unwrap();
        (report.decode_rows, report.prefill_rows)
    };
    assert_eq!(step(&mut engine), (0, 512));
    engine.submit(greedy(&prompt(2, 700), 1).job()).unwrap();
    // The rest of the first prompt, and what is left of the chunk for the second.
    assert_eq!(step(&mut engine), (0, 512));
    for _ in 0..4 {
        assert_eq!(step(&mut engine), (1, 64));
    }
}

#[test]
fn yielding_can_be_switched_off() {
    let chunk = ChunkRows { alone: non_zero(96), while_decoding: non_zero(96) };
    let mut world = World::new(&llama(), EngineSettings { chunk, ..roomy(KvLayout::Q8) });
    world.submit(greedy(&prompt(1, 10), 60));
    world.step();
    world.submit(greedy(&prompt(3, 700), 5));
    for _ in 0..5 {
        let report = world.step();
        assert_eq!((report.decode_rows, report.prefill_rows), (1, 96));
    }
}

#[test]
fn prompts_share_a_chunk_and_the_shortest_is_done_first() {
    let mut world = World::new(&llama(), roomy(KvLayout::Q8));
    let ids = [400, 120, 30].map(|length| world.submit(greedy(&prompt(length as u64, length), 0)));
    let computed =
        |world: &World| ids.map(|id| world.stories.get(&id).and_then(|story| story.computed.last().copied()));
    // Half of the 96 rows for the oldest, the rest for the shortest first; 16 beside the last 6 of the second.
    let steps =
        [[48, 18, 30], [96, 66, 30], [144, 114, 30], [160, 120, 30], [256, 120, 30], [352, 120, 30], [400, 120, 30]];
    for rows in steps {
        world.step();
        assert_eq!(computed(&world), rows.map(Some));
    }
    assert!(!world.engine.has_work());
    assert!(ids.iter().all(|id| world.stories[id].outcome.unwrap().finish == Finish::Limit));
}

/// Steps until the first token of a prompt of `length` tokens that comes while prompts of `beside` tokens are computed.
fn steps_to_first_token(beside: &[usize], length: usize) -> (usize, World) {
    let mut world = World::new(&llama(), roomy(KvLayout::Q8));
    for (seed, &other) in (10..).zip(beside) {
        world.submit(greedy(&prompt(seed, other), 1));
    }
    world.step();
    let id = world.submit(greedy(&prompt(1, length), 1));
    let mut steps = 0;
    while world.stories.get(&id).is_none_or(|story| story.tokens.is_empty()) {
        world.step();
        steps += 1;
    }
    (steps, world)
}

#[test]
fn a_short_prompt_beside_long_ones_has_its_first_token_after_a_few_steps() {
    // 96 rows a step; the longest needs ten steps alone.
    for beside in [&[960][..], &[960, 900], &[960, 900, 800, 700]] {
        for (length, steps) in [(1, 1), (16, 1), (40, 1), (48, 1), (49, 2), (96, 2), (140, 3)] {
            let (found, world) = steps_to_first_token(beside, length);
            assert_eq!(found, steps, "{length} tokens beside {beside:?}");
            assert_eq!(world.stories.values().filter(|story| story.tokens.is_empty()).count(), beside.len());
        }
    }
}

#[test]
fn short_prompts_without_end_slow_a_long_one_down_by_no_more_than_half() {
    let mut world = World::new(&llama(), roomy(KvLayout::Q8));
    let long = world.submit(greedy(&prompt(1, 960), 1));
    let (mut rows, mut seed) = (0, 100);
    while world.stories.get(&long).is_none_or(|story| story.tokens.is_empty()) {
        // There are always some that wait.
        while world.engine.waiting() < 8 {
            world.submit(greedy(&prompt(seed, 40), 0));
            seed += 1;
        }
        rows += world.step().prefill_rows;
        assert!(rows <= 2 * 960 + 96, "{rows} rows were computed, and not yet 960 of the oldest prompt");
    }
    assert!(seed > 110, "there was no company");
}

#[test]
fn no_more_sequences_run_than_may() {
    let settings = EngineSettings { running_max: non_zero(3), ..roomy(KvLayout::Q8) };
    let mut world = World::new(&llama(), settings);
    let ids: Vec<_> = (0..7).map(|seed| world.submit(greedy(&prompt(seed, 20), 8))).collect();
    let mut most = 0;
    while world.engine.has_work() {
        let report = world.step();
        most = most.max(report.running);
        assert!(report.running <= 3 && report.decode_rows <= 3);
    }
    assert_eq!(most, 3);
    assert!(ids.iter().all(|id| world.stories[id].tokens.len() == 8));
}

#[test]
fn the_queue_is_bounded_and_says_so() {
    let settings = EngineSettings { running_max: non_zero(1), waiting_max: 3, ..roomy(KvLayout::Q8) };
    let mut world = World::new(&llama(), settings);
    let request = greedy(&prompt(1, 20), 4);
    let ids: Vec<_> = (0..3).map(|_| world.submit(request.clone())).collect();
    assert_eq!(world.engine.submit(request.job()), Err(SubmitError::QueueFull { waiting: 3, max: 3 }));
    world.step();
    let fourth = world.submit(request.clone());
    assert_eq!(world.engine.submit(request.job()), Err(SubmitError::QueueFull { waiting: 3, max: 3 }));
    world.finish();
    assert!(ids.iter().chain([&fourth]).all(|id| world.stories[id].tokens.len() == 4));
}

#[test]
fn a_cancelled_request_ends_with_the_next_step_wherever_it_is() {
    let settings = EngineSettings { running_max: non_zero(2), prefix_bytes_max: 0, ..roomy(KvLayout::Q8) };
    let mut world = World::new(&llama(), settings);
    let decoding = world.submit(greedy(&prompt(1, 20), 50));
    let prefilling = world.submit(greedy(&prompt(2, 500), 50));
    let waiting = world.submit(greedy(&prompt(3, 20), 50));
    let other = world.submit(greedy(&prompt(4, 20), 5));
    for _ in 0..3 {
        world.step();
    }
    let (tokens, computed) = (world.stories[&decoding].tokens.len(), world.stories[&prefilling].computed.clone());
    assert!([decoding, prefilling, waiting].map(|id| world.engine.cancel(id)).iter().all(|known| *known));
    let report = world.step();
    // Its rows are gone at once: only the fourth request, which has begun, is computed.
    assert_eq!((report.decode_rows, report.prefill_rows, report.running, report.waiting), (0, 20, 1, 0));
    for (id, generated) in [(decoding, tokens), (prefilling, 0), (waiting, 0)] {
        let story = &world.stories[&id];
        let outcome = story.outcome.unwrap();
        assert_eq!((outcome.finish, outcome.generated, story.tokens.len()), (Finish::Stopped, generated, generated));
        assert!(!world.engine.cancel(id), "it is over");
    }
    assert_eq!(world.stories[&prefilling].computed, computed);
    assert_eq!(world.stories[&waiting].reused, None, "what is cancelled in the queue never starts");
    world.finish();
    assert_eq!(world.stories[&other].tokens.len(), 5);
    assert_eq!(world.engine.memory().live_bytes, 0);
}

#[test]
fn two_hundred_cancelled_requests_leave_nothing_behind() {
    let settings = EngineSettings { prefix_bytes_max: 0, ..roomy(KvLayout::Q8) };
    let mut world = World::new(&glimmer(32, &[true, false]), settings);
    let mut random = fastrand::Rng::with_seed(5);
    for round in 0..200 {
        let id = world.submit(greedy(&prompt(round, random.usize(1..200)), 50));
        for _ in 0..random.usize(0..4) {
            world.step();
        }
        world.engine.cancel(id);
        world.step();
        let memory = world.engine.memory();
        assert_eq!((world.engine.running(), world.engine.waiting(), memory.live_bytes), (0, 0, 0), "round {round}");
    }
    let last = world.run(greedy(&prompt(1, 50), 3));
    assert_eq!(last.tokens.len(), 3);
}

#[test]
fn counts_are_exact_at_limits_stop_tokens_and_the_end_of_the_context() {
    let model = llama();
    let (mut world, mut alone) = (World::new(&model, roomy(KvLayout::Q8)), Solo::new(&model, KvLayout::Q8));
    let text = prompt(6, 100);
    for tokens in [0, 1, 2, 3] {
        let story = world.run(greedy(&text, tokens));
        assert_eq!((story.tokens.len(), story.outcome.unwrap().finish), (tokens, Finish::Limit));
    }
    let whole = world.run(greedy(&text, 30)).tokens;
    let stop = Request { stop_tokens: [whole[5]].into(), ..greedy(&text, 30) };
    let first = whole.iter().position(|token| *token == whole[5]).unwrap();
    let story = world.run(stop);
    assert_eq!((&story.tokens[..], story.outcome.unwrap().finish), (&whole[..=first], Finish::EndOfGeneration));
    for (context, tokens_max, count, finish) in [
        (101, None, 1, Finish::ContextFull),
        (110, None, 10, Finish::ContextFull),
        (110, Some(10), 10, Finish::ContextFull),
        (110, Some(9), 9, Finish::Limit),
        (CONTEXT, Some(30), 30, Finish::Limit),
        (100, Some(0), 0, Finish::Limit),
    ] {
        let request = Request { context, tokens_max, ..greedy(&text, 0) };
        let story = world.run(request.clone());
        assert_eq!((story.tokens.len(), story.outcome.unwrap().finish), (count, finish), "{context} {tokens_max:?}");
        assert_same_answer(&story, &alone.run(&request), "end of the context");
    }
}

#[test]
fn requests_that_make_no_sense_are_refused_with_numbers_and_change_nothing() {
    let mut world = World::new(&llama(), roomy(KvLayout::Q8));
    let good = greedy(&prompt(1, 10), 3);
    let refused = |request: Request, world: &mut World| world.engine.submit(request.job()).unwrap_err();
    let empty = Request { prompt: Vec::new(), ..good.clone() };
    assert_eq!(refused(empty, &mut world), SubmitError::EmptyPrompt);
    let unknown = Request { prompt: vec![5, 300], ..good.clone() };
    assert_eq!(refused(unknown, &mut world), SubmitError::UnknownToken { token: 300, vocab: 300 });
    let long = Request { context: 10, ..good.clone() };
    assert_eq!(refused(long, &mut world), SubmitError::PromptTooLong { prompt: 10, context: 10 });
    let long = Request { context: 9, tokens_max: Some(0), ..good.clone() };
    assert_eq!(refused(long, &mut world), SubmitError::PromptTooLong { prompt: 10, context: 9 });
    let wide = Request { context: CONTEXT + 1, ..good.clone() };
    assert_eq!(refused(wide, &mut world), SubmitError::ContextTooLong { wanted: CONTEXT + 1, max: CONTEXT });
    let hot =
        Request { sampling: SamplingSettings { temperature: -1.0, ..SamplingSettings::default() }, ..good.clone() };
    let expected = SamplingError::OutOfRange { setting: "temperature", value: -1.0, range: SettingRange::from(0.0) };
    assert_eq!(refused(hot, &mut world), SubmitError::Sampling(expected));
    assert!(!world.engine.has_work());
    assert_eq!(world.step(), Default::default());
    assert_eq!(world.run(good).tokens.len(), 3);
}

#[test]
fn an_engine_that_fits_neither_model_nor_executor_is_refused() {
    let new = |settings| {
        let executor = Executor::new(llama(), Kernels::detected(), non_zero(1), non_zero(8)).unwrap();
        Engine::new(executor, settings).err()
    };
    let wide = new(EngineSettings { context: CONTEXT + 1, ..roomy(KvLayout::Q8) });
    assert!(matches!(wide, Some(EngineError::ContextTooLong { wanted: 1025, trained: 1024 })), "{wide:?}");
    let many = new(EngineSettings { running_max: non_zero(9), ..roomy(KvLayout::Q8) });
    assert!(matches!(many, Some(EngineError::TooManyRunning { running_max: 9, rows_max: 8 })), "{many:?}");
    assert!(new(EngineSettings { running_max: non_zero(8), ..roomy(KvLayout::Q8) }).is_none());
}

#[test]
fn an_engine_can_be_handed_to_another_thread() {
    fn is_send<T: Send>(_: &T) {}
    is_send(&World::new(&llama(), roomy(KvLayout::Q8)).engine);
}
