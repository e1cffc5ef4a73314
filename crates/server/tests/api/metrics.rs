//! `/metrics` and `/slots`, and that they never wait for the engine.

use std::collections::BTreeSet;

use muser_server::{PageVisibility, ServerSettings};
use serde_json::{Value, json};

use crate::world::{Setup, World, shipped, wait_until};

/// Checks a text line by line against Prometheus's format; the names of its metrics.
fn checked(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut announced = String::new();
    let is_name = |name: &str| {
        let start = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
        name.starts_with(start) && name.chars().all(|c| start(c) || c.is_ascii_digit())
    };
    assert!(text.ends_with('\n'), "{text:?}");
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, sentence) = help.split_once(' ').unwrap();
            assert!(is_name(name) && sentence.ends_with('.'), "{line}");
            assert!(names.insert(name.to_owned()), "{name} comes twice");
            announced = name.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, announced);
            assert!(["counter", "gauge"].contains(&kind), "{line}");
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            assert_eq!(name, announced, "{line}");
            let labels = labels.strip_suffix('}').unwrap();
            for label in labels.split(',').filter(|label| !label.is_empty()) {
                let (name, value) = label.split_once('=').unwrap();
                let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap();
                assert!(is_name(name) && !value.contains(['"', '\\']), "{line}");
            }
            assert!(value.parse::<f64>().unwrap().is_finite(), "{line}");
        }
    }
    names
}

#[test]
fn every_line_is_in_prometheus_format_and_counts_what_happened() {
    let world = World::shipped();
    let names = checked(&world.get("/metrics").body);
    let llama_cpp = [
        "prompt_tokens_total",
        "prompt_seconds_total",
        "tokens_predicted_total",
        "tokens_predicted_seconds_total",
        "prompt_tokens_seconds",
        "predicted_tokens_seconds",
        "requests_processing",
        "requests_deferred",
        "n_decode_total",
        "n_busy_slots_per_decode",
        "n_tokens_max",
    ];
    for name in llama_cpp {
        assert!(names.contains(&format!("llamacpp:{name}")), "{name}");
    }
    let prompt: Vec<u32> = (0..100).map(|token| token + 300).collect();
    for _ in 0..2 {
        let body = json!({"prompt": prompt, "n_predict": 5, "ignore_eos": true});
        world.post("/completion", &body).ok();
    }
    world.get("/nowhere");
    assert_eq!(world.ask("BREW", "/health", &[]).status, 405);
    // A client may have its answer before it is counted.
    wait_until("all is counted", || world.metric("muser:sequences_ended_total") == 2.0);
    let requests = |labels: &str| {
        let name = format!("muser:requests_total{{{labels}}} ");
        let text = world.get("/metrics").body;
        text.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse::<u64>().unwrap())
    };
    wait_until("two are counted", || requests(r#"route="/completion",method="POST",status="200""#) == 2);
    wait_until("one is counted", || requests(r#"route="none",method="GET",status="404""#) == 1);
    wait_until("another is counted", || requests(r#"route="/health",method="other",status="405""#) == 1);
    let answer = world.get("/metrics");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert_eq!(checked(&answer.body), names);
    // The second prompt found the first page of the first one.
    assert_eq!(world.metric("llamacpp:prompt_tokens_total"), 136.0);
    assert_eq!(world.metric("muser:reused_tokens_total"), 64.0);
    assert_eq!(world.metric("llamacpp:tokens_predicted_total"), 10.0);
    assert_eq!(world.metric("llamacpp:n_tokens_max"), 105.0);
    assert_eq!(world.metric("llamacpp:requests_processing"), 0.0);
    assert_eq!(world.metric("muser:sequences_cancelled_total"), 0.0);
    assert!(world.metric("muser:prefix_bytes") > 0.0);
    assert!(world.metric("muser:kv_live_bytes") >= world.metric("muser:prefix_bytes"));
    assert_eq!(world.metric("muser:kv_budget_bytes"), f64::from(256 << 20));
    wait_until("nobody is connected", || world.connections() == 0);
    assert_eq!(world.metric("muser:connections_open"), 1.0);
}

#[test]
fn hidden_pages_say_that_they_are() {
    let mut setup = Setup::of(shipped());
    setup.server =
        ServerSettings { metrics: PageVisibility::Hidden, slots: PageVisibility::Hidden, ..ServerSettings::default() };
    let world = World::start(setup);
    for (path, flag) in [("/metrics", "--no-metrics"), ("/slots", "--no-slots")] {
        let message = world.get(path).refused(501, "not_supported_error");
        assert!(message.contains(flag), "{message}");
    }
}

#[test]
fn a_prompt_being_computed_delays_no_answer_about_the_server() {
    let mut setup = Setup::of(shipped());
    setup.context = 2048;
    let world = World::start(setup);
    let prompts =
        (0..8u32).map(|index| -> Vec<u32> { (0..2000).map(|token| 300 + (token * 7 + index) % 999).collect() });
    let body = |prompt: Vec<u32>| json!({"prompt": prompt, "n_predict": 1, "cache_prompt": false});
    let asked: Vec<_> = prompts.map(|prompt| world.send("POST", "/completion", &body(prompt))).collect();
    // Progress of those that have tokens of the prompt computed, and not all of them.
    let progress = || -> Vec<(Value, Value)> {
        let slots = world.get("/slots").ok();
        let started = slots.as_array().unwrap().iter().filter(|slot| {
            let computed = slot["n_prompt_tokens_processed"].as_u64().unwrap();
            slot["is_processing"] == true && computed > 0 && computed < 2000
        });
        started.map(|slot| (slot["id_task"].clone(), slot["n_prompt_tokens_processed"].clone())).collect()
    };
    // Answers that came between two equal reports came within one step, so none waited for the end of one.
    wait_until("three answers come within one step of a prompt", || {
        let before = progress();
        for path in ["/health", "/metrics", "/v1/models"] {
            assert_eq!(world.get(path).status, 200);
        }
        !before.is_empty() && progress() == before
    });
    drop(asked);
    wait_until("nothing runs", || world.metric("llamacpp:requests_processing") == 0.0);
}
