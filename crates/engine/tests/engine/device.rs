//! A device with less memory than the host, and one that fails: only the requests concerned end.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use muser_engine::engine::{RequestError, RequestId, StepRefused};
use muser_engine::{EngineSettings, Finish};
use muser_kernels::cpu::Kernels;
use muser_kv::{KvLayout, PAGE_ROWS};
use muser_model::testing::{Fault, Faults, Faulty};
use muser_model::{DeviceError, Executor, Model, SequenceInput};

use crate::world::{LAYOUTS, Request, Solo, World, assert_same_answer, greedy, llama, non_zero, random_tokens, roomy};

/// An engine whose device fails as `faults` says.
fn world(model: &Arc<Model>, settings: EngineSettings, faults: Faults) -> World {
    let executor = Executor::new(Arc::clone(model), Kernels::detected(), NonZeroUsize::MIN, non_zero(160)).unwrap();
    World::of(Faulty::new(executor, faults), settings)
}

/// Pages of one layer that a step's rows see.
fn pages_of(batch: &[SequenceInput<'_>]) -> usize {
    batch.iter().map(|input| (input.cache.rows() + input.tokens.len()).div_ceil(PAGE_ROWS)).sum()
}

/// A device with room for so many pages of each layer.
fn room_for(pages: usize) -> Faults {
    Arc::new(move |batch| (pages_of(batch) > pages).then(|| Fault::out_of_memory(1024)))
}

fn requests(seed: u64, count: usize, longest: usize) -> Vec<Request> {
    let mut random = fastrand::Rng::with_seed(seed);
    let lengths: Vec<usize> = (0..count).map(|_| random.usize(20..longest)).collect();
    lengths.into_iter().map(|length| greedy(&random_tokens(&mut random, length), 90)).collect()
}

#[test]
fn sequences_that_the_device_cannot_hold_together_take_turns_and_every_answer_is_the_one_given_alone() {
    let model = llama();
    for (kv, seed) in LAYOUTS.into_iter().zip([1, 2]) {
        // The longest sequence has 260 + 90 rows: 6 pages.
        let mut world = world(&model, roomy(kv), room_for(7));
        let requests = requests(seed, 8, 260);
        let ids: Vec<RequestId> = requests.iter().map(|request| world.submit(request.clone())).collect();
        world.finish();
        let mut alone = Solo::new(&model, kv);
        for (id, request) in ids.iter().zip(&requests) {
            let story = &world.stories[id];
            assert_eq!((&story.error, story.outcome.unwrap().finish), (&None, Finish::Limit), "{kv:?}, {id:?}");
            assert_same_answer(story, &alone.run(request), &format!("{kv:?}, {id:?}"));
        }
        let paused: usize = world.stories.values().map(|story| story.paused).sum();
        assert!(paused > 4, "{paused} pauses: the device was not short of memory");
        assert_eq!(world.stories[&ids[0]].paused, 0, "the first one is never interrupted");
        assert_eq!(world.engine.memory().live_bytes, world.engine.prefix_bytes());
    }
}

#[test]
fn a_sequence_whose_step_alone_does_not_fit_fails_with_the_memory_in_its_error_and_the_others_go_on() {
    let model = llama();
    let mut world = world(&model, roomy(KvLayout::Q8), room_for(5));
    let mut requests = requests(3, 5, 200);
    // Its sixth page comes while it decodes, and the seventh's prompt never fits.
    requests.push(greedy(&random_tokens(&mut fastrand::Rng::with_seed(4), 300), 90));
    requests.push(greedy(&random_tokens(&mut fastrand::Rng::with_seed(5), 500), 90));
    requests.insert(0, greedy(&random_tokens(&mut fastrand::Rng::with_seed(6), 400), 10));
    let ids: Vec<RequestId> = requests.iter().map(|request| world.submit(request.clone())).collect();
    world.finish();
    let mut alone = Solo::new(&model, KvLayout::Q8);
    for (index, (id, request)) in ids.iter().zip(&requests).enumerate() {
        let (story, want) = (&world.stories[id], alone.run(request));
        match index {
            0 | 6 | 7 => {
                let error = story.error.as_ref().unwrap();
                assert!(matches!(error, RequestError::DeviceMemory(DeviceError::OutOfMemory { .. })), "{error:?}");
                let text =
                    "a step of this request alone does not fit: the faulty device has no 1024 bytes of memory left";
                assert_eq!((error.to_string().as_str(), story.outcome), (text, None));
                // Tokens chosen before stand.
                let told = story.tokens.len();
                assert_eq!(told, if index == 6 { 5 * PAGE_ROWS - 300 + 1 } else { 0 });
                assert_eq!((&story.tokens[..], &story.logits[..]), (&want.tokens[..told], &want.logits[..told * 300]));
            }
            _ => assert_same_answer(story, &want, &format!("{id:?}")),
        }
    }
    let later = greedy(&random_tokens(&mut fastrand::Rng::with_seed(7), 100), 20);
    assert_same_answer(&world.run(later.clone()), &alone.run(&later), "after failures");
    assert_eq!(world.engine.memory().live_bytes, world.engine.prefix_bytes());
}

#[test]
fn a_token_that_was_told_before_its_step_was_given_up_is_not_told_again() {
    let model = llama();
    let steps = AtomicUsize::new(0);
    let faults: Faults = Arc::new(move |batch| {
        // Of the steps with company each third one fails once its tokens are told.
        let fails = batch.len() > 2 && steps.fetch_add(1, Ordering::Relaxed).is_multiple_of(3);
        fails.then_some(Fault::Late(DeviceError::OutOfMemory { device: "the faulty device", bytes: 1 }))
    });
    let mut world = world(&model, roomy(KvLayout::Q8), faults);
    let requests = requests(8, 7, 100);
    let ids: Vec<RequestId> = requests.iter().map(|request| world.submit(request.clone())).collect();
    world.finish();
    let mut alone = Solo::new(&model, KvLayout::Q8);
    let mut failed = 0;
    for (id, request) in ids.iter().zip(&requests) {
        let (story, mut want) = (&world.stories[id], alone.run(request));
        if story.error.is_some() {
            failed += 1;
            want.tokens.truncate(story.tokens.len());
            want.logits.truncate(story.logits.len());
        }
        assert_same_answer(story, &want, &format!("{id:?}"));
    }
    assert!((1..=5).contains(&failed), "{failed} failed: two always go on");
}

#[test]
fn a_device_that_fails_ends_every_request_running_or_waiting_by_name() {
    let model = llama();
    let steps = AtomicUsize::new(0);
    let faults: Faults = Arc::new(move |_| (steps.fetch_add(1, Ordering::Relaxed) == 4).then(Fault::lost));
    let settings = EngineSettings { running_max: non_zero(2), ..roomy(KvLayout::Q8) };
    let mut world = world(&model, settings, faults);
    let requests = requests(9, 4, 50);
    let ids: Vec<RequestId> = requests.iter().map(|request| world.submit(request.clone())).collect();
    for _ in 0..4 {
        world.step();
    }
    let refused = world.try_step().unwrap_err();
    assert!(matches!(refused, StepRefused::DeviceFailed(DeviceError::Failed { .. })), "{refused:?}");
    assert_eq!(refused.to_string(), "the faulty device failed: it was taken away");
    for id in ids {
        let error = world.stories[&id].error.as_ref().unwrap();
        assert_eq!(error.to_string(), refused.to_string(), "{id:?}");
    }
    assert_eq!((world.engine.has_work(), world.engine.memory().live_bytes), (false, world.engine.prefix_bytes()));
}
