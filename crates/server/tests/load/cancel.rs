//! Clients that disconnect: their work ends at the next step, whatever it was, and leaves nothing.

use std::sync::{Arc, MutexGuard, PoisonError};

use futures_util::FutureExt;
use muser_engine::SamplingSettings;
use muser_engine::engine::{Generate, Job, PrefixReuse};
use muser_synthetic::scripted::{Then, byte_token};
use serde_json::{Value, json};

use crate::ALONE;
use crate::client::Pending;
use crate::footprint::Footprint;
use crate::routes::setup_saying;
use crate::world::{Setup, World};

fn alone() -> MutexGuard<'static, ()> {
    // A test that failed leaves nothing that the next one needs.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One slot, and answers without an end.
fn world() -> World {
    let setup = setup_saying(&[b"on ", b"and "], Then::Again);
    World::start(Setup { context: 32768, slots: 1, ..setup })
}

fn endless(stream: bool) -> Value {
    json!({"prompt": "x\n", "n_predict": -1, "stream": stream, "cache_prompt": false})
}

fn long_prompt(stream: bool) -> Value {
    let mut body = endless(stream);
    body["prompt"] = format!("{}\n", "x".repeat(30_000)).into();
    body
}

fn assert_answers(world: &World) {
    let answer = world.post("/completion", &json!({"prompt": "x\n", "n_predict": 3, "cache_prompt": false})).ok();
    assert_eq!(answer["content"], "on and on ");
}

// Servers went on with a prompt whose client had left, kept the slot, or started queued requests that nobody waited for.
#[test]
fn whoever_leaves_frees_the_slot_and_leaves_nothing_behind() {
    let _alone = alone();
    let world = world();
    assert_answers(&world);
    let before = Footprint::at_rest(&world);
    for round in 0..50 {
        for stream in [false, true] {
            leave_during_prefill(&world, stream);
            leave_during_decode(&world, stream);
        }
        leave_the_queue(&world, round % 2 == 0);
        let slots = world.get("/slots").ok();
        assert_eq!((&slots[0]["is_processing"], &slots[0]["id_task"]), (&json!(false), &json!(-1)), "{round}");
        let after = Footprint::back_at(&before, &world);
        assert_eq!(Footprint { resident_kib: before.resident_kib, ..after }, before, "round {round}");
    }
    assert_answers(&world);
    let totals = world.status().totals;
    assert_eq!((totals.ended, totals.cancelled), (2 + 50 * (4 + 4), 50 * (4 + 3)));
}

fn leave_during_prefill(world: &World, stream: bool) {
    let connection = world.send("POST", "/completion", &long_prompt(stream));
    world.wait_until("computing a prompt", |status| status.slots[0].task.is_some_and(|task| task.computed_tokens > 0));
    drop(connection);
    let status = world.wait_until_idle();
    assert_eq!(status.waiting, 0);
}

fn leave_during_decode(world: &World, stream: bool) {
    let before = world.status().totals;
    let connection = world.send("POST", "/completion", &endless(stream));
    world.wait_until("generating", |status| status.slots[0].task.is_some_and(|task| task.generated_tokens > 2));
    if stream {
        let mut pending = Pending::read_head(connection);
        assert!(pending.chunk().contains("on "));
    } else {
        drop(connection);
    }
    let after = world.wait_until_idle().totals;
    assert_eq!(
        (after.ended - before.ended, after.cancelled - before.cancelled),
        (1, 1),
        "{stream} {before:?} {after:?}"
    );
}

/// Of three that wait behind one, two leave: they never start, and the third has its answer.
fn leave_the_queue(world: &World, stream: bool) {
    let before = world.status().totals;
    let first = world.send("POST", "/completion", &endless(stream));
    world.wait_until("running", |status| status.running() == 1);
    let mut waiting_body = long_prompt(stream);
    waiting_body["n_predict"] = 1.into();
    let leave = [0, 1].map(|_| world.send("POST", "/completion", &waiting_body));
    let stays = world.send("POST", "/completion", &json!({"prompt": "xy\n", "n_predict": 2, "cache_prompt": false}));
    world.wait_until("waiting", |status| status.waiting == 3);
    drop(leave);
    world.wait_until("left", |status| status.waiting == 1);
    drop(first);
    let answer = Pending::read_head(stays).finish().ok();
    assert_eq!(answer["content"], "on and ");
    let after = world.wait_until_idle().totals;
    assert_eq!((after.ended - before.ended, after.cancelled - before.cancelled), (4, 3));
    // "x\n" and "xy\n": of the long prompts not a token was computed.
    assert_eq!(after.prompt_tokens - before.prompt_tokens, 2 + 3);
}

// A client left in the moment between the engine's taking of its request and the server's learning of that: nobody held
// the answer, nobody cancelled it, and it ran to its end.
#[test]
fn who_leaves_before_the_engine_has_replied_is_noticed_as_well() {
    let _alone = alone();
    let world = world();
    let service = world.service();
    let generate = Generate {
        tokens_max: None,
        context: 32768,
        stop_tokens: Arc::new([]),
        sampling: SamplingSettings::greedy(),
        logprobs: None,
    };
    let job = Job::generate([byte_token(b'\n')], PrefixReuse::Isolate, generate);
    let mut submitting = Box::pin(service.host.submit(job));
    let early = (&mut submitting).now_or_never();
    world.wait_until("generating", |status| status.slots[0].task.is_some_and(|task| task.generated_tokens > 2));
    drop((early, submitting));
    drop(service);
    let totals = world.wait_until_idle().totals;
    assert_eq!((totals.ended, totals.cancelled), (1, 1));
    assert_answers(&world);
}

// An answer in an ended connection's buffer is not an answer that was read, but a finished request is no cancelled one.
#[test]
fn who_reads_to_the_end_is_not_counted_as_gone() {
    let _alone = alone();
    let world = world();
    for stream in [false, true] {
        let body = json!({"prompt": "x\n", "n_predict": 20, "stream": stream});
        assert_eq!(world.post("/completion", &body).status, 200);
    }
    let totals = world.wait_until_idle().totals;
    assert_eq!((totals.ended, totals.cancelled), (2, 0));
}
