//! Prompts and counts at their limits: what does not fit or makes no sense is refused before anything is sent, and the next
//! request is answered.

use std::sync::Arc;

use muser_engine::SAMPLER_SETTINGS;
use muser_synthetic::scripted::Then;
use serde_json::{Value, json};

use crate::client::Answer;
use crate::routes::{Route, WAYS, saying, setup_saying};
use crate::world::{Setup, World, shipped};

/// A server on the shipped model with this context and as many slots.
fn world(context: usize, slots: usize) -> World {
    World::start(Setup { context, slots, ..Setup::of(shipped()) })
}

/// An ordinary request has its answer.
#[track_caller]
fn assert_answers(world: &World) {
    for way in WAYS {
        let said = way.ask(world, "Once", &json!({"max_tokens": 2, "ignore_eos": true}));
        assert_eq!((said.generated, said.finish.as_str()), (2, "length"), "{way:?}");
    }
    assert_eq!(world.get("/health").ok(), json!({"status": "ok"}));
}

/// The refusal is JSON and not a stream, whatever was asked for.
#[track_caller]
fn refused(answer: &Answer, kind: &str) -> String {
    assert_eq!(answer.header("content-type"), Some("application/json"));
    answer.refused(400, kind)
}

// An empty prompt stopped servers for good.
#[test]
fn empty_prompts_are_refused_and_change_nothing() {
    let world = world(128, 1);
    for way in WAYS {
        let bodies = match way.route {
            Route::Chat => vec![json!({"messages": []}), json!({"messages": null}), json!({})],
            Route::Native | Route::Texts => {
                let empty = [json!(""), json!([]), json!([""]), json!([[]]), json!(["Once", ""]), Value::Null];
                empty.into_iter().map(|prompt| json!({"prompt": prompt})).collect()
            }
        };
        for mut body in bodies {
            body["stream"] = way.stream.into();
            let message = refused(&world.post(way.route.path(), &body), "invalid_request_error");
            assert!(!message.is_empty(), "{body}");
        }
        assert_answers(&world);
    }
    let status = world.wait_until_idle();
    // Not even the other prompt of a request with an empty one has begun.
    assert_eq!(status.totals.ended, 6 * 6);
}

// Limits of 0, 1 and 2 gave three tokens or four, and -2 gave one.
#[test]
fn as_many_tokens_are_generated_as_were_asked_for() {
    let world = world(128, 2);
    for way in WAYS {
        for name in ["n_predict", "max_tokens", "max_completion_tokens"] {
            for limit in [0, 1, 2, 3, 17] {
                let mut options = json!({"ignore_eos": true});
                options[name] = limit.into();
                let said = way.ask(&world, "a", &options);
                assert_eq!((said.generated, said.finish.as_str()), (limit, "length"), "{way:?} {name}");
                assert!(limit > 0 || said.text.is_empty(), "{way:?} {said:?}");
            }
            for limit in [json!(-2), json!(1.5), json!("3"), json!(true), json!([1]), json!(1e300)] {
                let mut body = way.body("a", &json!({}));
                body[name] = limit;
                let message = refused(&world.post(way.route.path(), &body), "invalid_request_error");
                assert!(message.starts_with(name), "{message}");
            }
        }
    }
    assert_answers(&world);
}

#[test]
fn without_a_limit_the_context_is_filled_and_the_answer_says_so() {
    let world = world(64, 2);
    for way in WAYS {
        for limit in [json!(-1), Value::Null] {
            let said = way.ask(&world, "a", &json!({"n_predict": limit, "ignore_eos": true}));
            let last = said.objects.last().unwrap();
            let prompt = match way.route {
                Route::Native => {
                    assert_eq!((&last["truncated"], &last["stop_type"]), (&json!(true), &json!("limit")));
                    &last["tokens_evaluated"]
                }
                Route::Texts | Route::Chat => {
                    assert_eq!(last["usage"]["total_tokens"], 64);
                    &last["usage"]["prompt_tokens"]
                }
            };
            assert_eq!((prompt.as_u64().unwrap() + said.generated, said.finish.as_str()), (64, "length"), "{way:?}");
        }
    }
}

#[test]
fn a_prompt_without_an_answer_is_computed_for_the_next_request() {
    let world = world(512, 1);
    let ids: Vec<u32> = (0..300).map(|i| 300 + i % 50).collect();
    let body = |limit: u32| json!({"prompt": ids, "n_predict": limit, "ignore_eos": true});
    let first = world.post("/completion", &body(0)).ok();
    assert_eq!((&first["tokens_predicted"], &first["tokens_evaluated"]), (&json!(0), &json!(300)));
    assert_eq!((&first["timings"]["cache_n"], &first["timings"]["prompt_n"]), (&json!(0), &json!(300)));
    let second = world.post("/completion", &body(2)).ok();
    let (reused, computed) = (second["timings"]["cache_n"].as_u64().unwrap(), second["timings"]["prompt_n"].as_u64());
    assert!(reused > 0, "{}", second["timings"]);
    assert_eq!(reused + computed.unwrap(), 300);
}

// The front of a long prompt was cut off in silence, or a stream began and stayed empty.
#[test]
fn a_prompt_that_does_not_fit_is_refused_with_its_length_before_a_stream_begins() {
    for slots in [1, 4] {
        let world = world(128, slots);
        let prompt = |count: u32| json!((0..count).map(|i| 300 + i % 100).collect::<Vec<u32>>());
        for way in WAYS.into_iter().filter(|way| way.route != Route::Chat) {
            let post = |count, limit: Value| {
                let mut body = way.body("", &json!({"n_predict": limit, "ignore_eos": true}));
                body["prompt"] = prompt(count);
                world.post(way.route.path(), &body)
            };
            for (count, limit) in
                [(129, json!(-1)), (129, json!(0)), (128, json!(-1)), (128, json!(1)), (5000, json!(1))]
            {
                let answer = post(count, limit);
                let message = refused(&answer, "exceed_context_size_error");
                assert!(message.contains("at most 127 fit"), "{message}");
                let error = &answer.json()["error"];
                assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(count), &json!(128)));
            }
            assert_eq!(way.read(&post(127, json!(-1))).generated, 1, "{way:?}");
            assert_eq!(way.read(&post(128, json!(0))).generated, 0, "{way:?}");
        }
        let long = "word ".repeat(500);
        for way in WAYS {
            refused(&world.post(way.route.path(), &way.body(&long, &json!({}))), "exceed_context_size_error");
        }
        assert_answers(&world);
    }
}

/// With one more prompt than there may be in a request, or one that does not fit behind one that does, none is computed on.
#[test]
fn a_request_of_several_prompts_is_taken_whole_or_not_at_all() {
    let world = world(128, 2);
    let long: Vec<u32> = vec![300; 200];
    let bodies = [json!({"prompt": vec!["Once"; 17]}), json!({"prompt": [[300, 301], long], "ignore_eos": true})];
    for (body, kind) in bodies.iter().zip(["invalid_request_error", "exceed_context_size_error"]) {
        for path in ["/completion", "/v1/completions"] {
            refused(&world.post(path, body), kind);
        }
    }
    world.wait_until_idle();
    assert_answers(&world);
}

// Ids that are no tokens stopped servers, one of them only when it logged.
#[test]
fn ids_that_are_no_tokens_are_refused_everywhere() {
    let model = shipped();
    let vocab = model.config().vocab;
    let world = World::start(Setup::of(Arc::clone(&model)));
    let wrong =
        [json!(-1), json!(vocab), json!(2_147_483_648u32), json!(1.5), json!(u64::MAX), json!(1e300), json!({})];
    for way in WAYS {
        for id in &wrong {
            let mut bodies = vec![];
            if way.route != Route::Chat {
                for prompt in [json!([id]), json!([300, id]), json!([[300], [id]]), json!(["Once", id])] {
                    let mut body = way.body("", &json!({}));
                    body["prompt"] = prompt;
                    bodies.push(body);
                }
            }
            bodies.push(way.body("a", &json!({"logit_bias": [[id, 5]]})));
            for body in bodies {
                refused(&world.post(way.route.path(), &body), "invalid_request_error");
            }
        }
        for biases in [
            json!({"999999999": 5}),
            json!({"300": "x"}),
            json!([[300]]),
            json!([300, 5]),
            json!("300"),
            json!({"300": true}),
        ] {
            let body = way.body("a", &json!({"logit_bias": biases}));
            refused(&world.post(way.route.path(), &body), "invalid_request_error");
        }
    }
    for path in ["/completion", "/v1/completions"] {
        for prompt in
            [json!([[1, "x"], [null]]), json!([null]), json!([true]), json!(7), json!([[[1]]]), json!([1, [2]])]
        {
            refused(&world.post(path, &json!({"prompt": prompt})), "invalid_request_error");
        }
        // Ids and text in a row are one prompt.
        world.post(path, &json!({"prompt": [300, "x"], "max_tokens": 1})).ok();
    }
    for id in wrong {
        refused(&world.post("/detokenize", &json!({"tokens": [id]})), "invalid_request_error");
    }
    assert_answers(&world);
}

#[test]
fn a_field_that_is_null_is_a_field_that_is_absent() {
    let world = saying(&[b"yes", b"!"], Then::End);
    let others = [
        "stop",
        "seed",
        "n_predict",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "logit_bias",
        "ignore_eos",
        "cache_prompt",
        "samplers",
        "id_slot",
        "model",
        "grammar",
        "json_schema",
        "timings_per_token",
        "return_progress",
        "no_such_field",
    ];
    let of_sampler = SAMPLER_SETTINGS.iter().map(|setting| setting.name);
    let names: Vec<&str> = others.into_iter().chain(of_sampler).collect();
    let of_openai = ["user", "store", "metadata", "service_tier", "logprobs", "stream_options", "suffix"];
    for way in WAYS.into_iter().filter(|way| !way.stream) {
        let mut options = json!({});
        names.iter().for_each(|name| options[*name] = Value::Null);
        if way.route != Route::Native {
            of_openai.iter().for_each(|name| options[*name] = Value::Null);
        }
        let mut body = way.body("Well?\n", &options);
        body["stream"] = Value::Null;
        let said = way.read(&world.post(way.route.path(), &body));
        assert_eq!((said.text.as_str(), said.finish.as_str()), ("yes!", "stop"), "{way:?}");
    }
    let chat = json!({"messages": [{"role": "user", "content": null, "name": null}]});
    world.post("/v1/chat/completions", &chat).ok();
}

#[test]
fn usage_adds_up_on_every_way() {
    let world = World::start(Setup { slots: 1, ..setup_saying(&[b"one ", b"two ", b"three"], Then::Again) });
    let long = format!("{}\n", "a".repeat(200));
    for way in WAYS {
        for (limit, stop) in [(9, ""), (4, ""), (50, "three")] {
            let said = way.ask(&world, &long, &json!({"max_tokens": limit, "stop": stop}));
            let generated = if stop.is_empty() { limit } else { 3 };
            assert_eq!(said.generated, generated, "{way:?}");
            let last = said.objects.last().unwrap();
            let timings = said.objects.iter().rev().find_map(|object| object.get("timings")).unwrap();
            let count = |name: &str| timings[name].as_u64().unwrap();
            let prompt = if way.route == Route::Chat { 220 } else { 201 };
            assert_eq!((count("cache_n") + count("prompt_n"), count("predicted_n")), (prompt, generated), "{way:?}");
            if way.route != Route::Native {
                let usage = json!({"prompt_tokens": prompt, "completion_tokens": generated,
                                   "total_tokens": prompt + generated,
                                   "prompt_tokens_details": {"cached_tokens": count("cache_n")},
                                   "completion_tokens_details": {"reasoning_tokens": 0}});
                assert_eq!(last["usage"], usage, "{way:?}");
            }
        }
    }
}
