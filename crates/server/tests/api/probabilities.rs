//! Probabilities as clients read them: there on every route, numbers all of them, and the model's own.

use muser_engine::{LogprobsStage, LogprobsWanted};
use serde_json::{Value, json};

use crate::routes::{Route, Said, WAYS, Way};
use crate::solo::Solo;
use crate::world::{Setup, World, shipped};

const IDS: [u32; 5] = [600, 17, 901, 333, 1200];
const COUNT: usize = 6;

/// All tokens' objects in llama.cpp's shape, in order.
fn objects(way: Way, said: &Said) -> Vec<Value> {
    let lists = said.objects.iter().filter_map(|object| match way.route {
        Route::Native => object["completion_probabilities"].as_array(),
        Route::Texts | Route::Chat => object["choices"][0]["logprobs"]["content"].as_array(),
    });
    lists.flatten().cloned().collect()
}

fn wanted(way: Way, top: usize) -> Value {
    match way.route {
        Route::Native => json!({"n_probs": top, "return_tokens": true}),
        Route::Texts => json!({"logprobs": top}),
        Route::Chat => json!({"logprobs": true, "top_logprobs": top}),
    }
}

fn merged(mut options: Value, more: &Value) -> Value {
    more.as_object().unwrap().iter().for_each(|(name, value)| options[name] = value.clone());
    options
}

// Pre-sampling values were those after a sampler, or left out: each is recomputed here from the raw logits.
#[test]
fn logprobs_are_the_softmax_of_the_raw_logits_whatever_the_sampler_does() {
    let world = World::shipped();
    let mut solo = Solo::new(&shipped(), 512);
    for options in [
        json!({"temperature": 0.3, "top_k": 3, "seed": 4}),
        json!({"temperature": 0}),
        json!({"temperature": 1.5, "top_k": 0, "top_p": 0.4, "repeat_penalty": 1.3, "logit_bias": [[5, 3.0]], "seed": 9}),
    ] {
        let body = merged(
            json!({"prompt": IDS, "n_predict": COUNT, "ignore_eos": true, "n_probs": 7,
                                 "return_tokens": true}),
            &options,
        );
        let answer = world.post("/completion", &body).ok();
        let tokens: Vec<u32> = serde_json::from_value(answer["tokens"].clone()).unwrap();
        assert_eq!(tokens.len(), COUNT);
        for (at, found) in answer["completion_probabilities"].as_array().unwrap().iter().enumerate() {
            let so_far: Vec<u32> = IDS.iter().chain(&tokens[..at]).copied().collect();
            let any = LogprobsWanted { count: 0, stage: LogprobsStage::Model };
            let logits = solo.run(&so_far, 1, Default::default(), any).remove(0).logits;
            let logprobs = log_softmax(&logits);
            assert_eq!(found["id"], json!(tokens[at]));
            assert_close(&found["logprob"], logprobs[tokens[at] as usize]);
            let mut likeliest: Vec<usize> = (0..logits.len()).collect();
            likeliest.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
            let top = found["top_logprobs"].as_array().unwrap();
            assert_eq!(top.len(), 7);
            for (top, id) in top.iter().zip(likeliest) {
                assert_eq!(top["id"], json!(id));
                assert_close(&top["logprob"], logprobs[id]);
            }
        }
    }
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let peak = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|z| f64::from(z - peak).exp()).sum();
    logits.iter().map(|z| f64::from(*z) - f64::from(peak) - total.ln()).collect()
}

/// Two orders of adding up 4096 terms part in the last bits.
#[track_caller]
fn assert_close(found: &Value, want: f64) {
    let found = found.as_f64().unwrap_or_else(|| panic!("no number: {found}"));
    // The softmax above rounds the differences of logits to f32.
    assert!((found - want).abs() < 1e-5 && found <= 0.0, "{found}, not {want}");
}

#[test]
fn every_route_tells_the_same_probabilities_streamed_and_whole() {
    let world = World::shipped();
    for top in [0, 1, 5] {
        let mut first: Option<Vec<(f64, usize)>> = None;
        // A conversation is another prompt, and has probabilities of its own.
        for way in WAYS.into_iter().filter(|way| way.route != Route::Chat) {
            let options = merged(json!({"max_tokens": 8, "seed": 3, "ignore_eos": true}), &wanted(way, top));
            let said = way.ask(&world, "Once upon", &options);
            let found: Vec<(f64, usize)> = match way.route {
                Route::Texts => texts_logprobs(&said),
                _ => objects(way, &said)
                    .iter()
                    .map(|object| (logprob(object), length(&object["top_logprobs"])))
                    .collect(),
            };
            if way.route == Route::Native && top == 0 {
                assert_eq!(found, [], "nothing was asked for");
                continue;
            }
            assert_eq!(found.len(), 8, "{way:?}");
            assert!(found.iter().all(|(logprob, count)| *logprob <= 0.0 && *count == top), "{way:?} {found:?}");
            let first = first.get_or_insert_with(|| found.clone());
            assert_eq!(*first, found, "{way:?}");
        }
    }
}

fn texts_logprobs(said: &Said) -> Vec<(f64, usize)> {
    let mut found = Vec::new();
    for object in &said.objects {
        let logprobs = &object["choices"][0]["logprobs"];
        let Some(values) = logprobs["token_logprobs"].as_array() else { continue };
        let tops = logprobs["top_logprobs"].as_array().unwrap();
        found.extend(
            values.iter().zip(tops).map(|(value, top)| (value.as_f64().unwrap(), top.as_object().unwrap().len())),
        );
    }
    found
}

fn logprob(object: &Value) -> f64 {
    object["logprob"].as_f64().unwrap()
}

fn length(list: &Value) -> usize {
    list.as_array().unwrap().len()
}

#[test]
fn a_chat_tells_the_probabilities_of_its_tokens_streamed_and_whole() {
    let world = World::shipped();
    let [whole, streamed] = [false, true].map(|stream| {
        let way = Way { route: Route::Chat, stream };
        let options = merged(json!({"max_tokens": 8, "seed": 3, "ignore_eos": true}), &wanted(way, 3));
        objects(way, &way.ask(&world, "Once upon", &options))
    });
    assert_eq!(whole, streamed);
    assert_eq!(whole.len(), 8);
    for object in &whole {
        assert_eq!(length(&object["top_logprobs"]), 3);
        let bytes: Vec<u8> = serde_json::from_value(object["bytes"].clone()).unwrap();
        assert_eq!(object["token"], json!(String::from_utf8_lossy(&bytes)));
        assert!(logprob(object) <= 0.0);
    }
}

// Tokens that a sampler had removed had the logarithm of zero, which is no JSON.
#[test]
fn probabilities_after_sampling_are_those_of_the_draw_and_add_up_to_one_at_most() {
    let world = World::shipped();
    for (options, candidates) in [
        (json!({"top_k": 1}), Some(1)),
        (json!({"temperature": 0}), Some(1)),
        (json!({"top_k": 3, "top_p": 1.0, "min_p": 0.0}), Some(3)),
        (json!({"top_k": 40, "top_p": 0.5, "min_p": 0.2}), None),
        (json!({"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 5.0}), Some(5)),
    ] {
        for stream in [false, true] {
            for route in [Route::Native, Route::Chat] {
                let way = Way { route, stream };
                let body =
                    merged(json!({"n_probs": 5, "post_sampling_probs": true, "max_tokens": 8, "seed": 2}), &options);
                let found = objects(way, &way.ask(&world, "Once", &body));
                assert!(!found.is_empty(), "{way:?} {options}");
                found.iter().for_each(|object| assert_is_a_draw(object, candidates));
            }
        }
    }
}

#[track_caller]
fn assert_is_a_draw(object: &Value, candidates: Option<usize>) {
    let top = object["top_probs"].as_array().unwrap();
    let probabilities: Vec<f64> = top.iter().map(|top| top["prob"].as_f64().unwrap()).collect();
    assert!(probabilities.is_sorted_by(|a, b| a >= b), "{object}");
    assert!(probabilities.iter().all(|p| *p > 0.0) && probabilities.iter().sum::<f64>() < 1.0 + 1e-9, "{object}");
    let chosen = object["prob"].as_f64().unwrap();
    assert!(chosen > 0.0 && chosen <= 1.0, "{object}");
    match candidates {
        Some(1) => assert_eq!((probabilities.as_slice(), chosen), (&[1.0][..], 1.0)),
        Some(count) => assert_eq!(top.len(), count, "{object}"),
        None => assert!(!top.is_empty() && top.len() <= 5),
    }
    if candidates.is_none_or(|count| count < 5) && top.len() < 5 {
        // All that could be drawn is listed, the chosen one included.
        assert!((probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{object}");
        assert!(top.iter().any(|top| top["id"] == object["id"] && top["prob"] == object["prob"]), "{object}");
    }
}

#[test]
fn banned_tokens_have_the_probability_that_the_model_gives_them() {
    let world = World::start(Setup::of(shipped()));
    let body = |ban: Value| json!({"prompt": IDS, "n_predict": 1, "temperature": 0, "n_probs": 3, "logit_bias": ban});
    let free = world.post("/completion", &body(json!([]))).ok()["completion_probabilities"][0].clone();
    let first = &free["id"];
    let banned = world.post("/completion", &body(json!([[first, false]]))).ok()["completion_probabilities"][0].clone();
    assert_eq!(banned["id"], free["top_logprobs"][1]["id"]);
    assert_eq!(banned["top_logprobs"], free["top_logprobs"]);
}
