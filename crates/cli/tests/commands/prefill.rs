//! Placement of long prompts: `muser serve` chooses by measured rates, reports the reason, and keeps the rates.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::Folder;
use crate::produce::{Producing, cluster, complete};
use crate::serving::Serving;

/// A prompt of some 300 tokens that begins like no other.
fn prompt(number: usize) -> String {
    format!("{number}. ") + &"There was an old house by the sea. ".repeat(25)
}

/// The verdict on a place.
fn verdict<'a>(timings: &'a Value, place: &str) -> &'a Value {
    let candidates = timings["kv_choice"]["candidates"].as_array().unwrap();
    &candidates.iter().find(|candidate| candidate["place"] == place).unwrap()["verdict"]
}

/// A server with producers at these addresses.
fn serving(decoder: &str, producers: &[&str], more: &[&str]) -> Serving {
    let producers = producers.iter().flat_map(|address| ["--producer", address]);
    let flags = ["--cluster", decoder, "--producer-min-tokens", "40"];
    Serving::start(&flags.into_iter().chain(producers).chain(more.iter().copied()).collect::<Vec<_>>())
}

/// Rates out of a policy file, each place's multiplied by what `factor` says for whether it is a producer.
fn scaled(text: &str, factor: impl Fn(bool) -> f64) -> String {
    let mut list: toml::Table = text.parse().unwrap();
    for place in list["place"].as_array_mut().unwrap() {
        let place = place.as_table_mut().unwrap();
        let by = factor(place.contains_key("address"));
        for rate in place["position_ms"].as_array_mut().unwrap() {
            *rate = (rate.as_float().unwrap() * by).into();
        }
    }
    list.to_string()
}

#[test]
fn each_place_is_tried_once_and_then_the_quickest_by_what_is_kept_over_a_restart() {
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let producing = Producing::start(&["--cluster", &producer, "--listen", "127.0.0.1:0"]);
    let address = producing.address.as_str();
    let first = serving(&decoder, &[address], &[]);
    let (_, of_short) = complete(&first, "Once upon a time");
    assert!(of_short["kv_choice"].is_null() && of_short["kv_source"] == "local", "{of_short}");
    let (_, of_producer) = complete(&first, &prompt(0));
    assert_eq!((&of_producer["kv_source"], verdict(&of_producer, address)), (&json!("producer"), &json!("first_try")));
    let number = |name: &str| of_producer[name].as_f64().unwrap_or_else(|| panic!("no {name} in {of_producer}"));
    assert!(number("kv_compute_ms") > 0.0 && number("kv_queue_ms") >= 0.0, "{of_producer}");
    assert!(number("kv_queue_ms") + number("kv_compute_ms") <= number("kv_ms"), "{of_producer}");
    let rate = number("kv_wire_bytes") * 8.0 / number("kv_send_wall_ms") / 1e6;
    assert!((number("kv_wall_gbit_per_s") / rate - 1.0).abs() < 1e-6, "{of_producer}");
    let (_, of_local) = complete(&first, &prompt(1));
    assert_eq!((&of_local["kv_source"], verdict(&of_local, "local")), (&json!("local"), &json!("first_try")));
    assert!(of_local["kv_fallback"].is_null(), "{of_local}");
    let (_, known) = complete(&first, &prompt(2));
    for candidate in known["kv_choice"]["candidates"].as_array().unwrap() {
        let ms = |name: &str| candidate[name].as_f64().unwrap_or_else(|| panic!("no {name} in {known}"));
        let sum = ms("queue_ms") + ms("compute_ms").max(ms("wire_ms")) + ms("fixed_ms");
        assert!((ms("total_ms") - sum).abs() < 1e-6 && ms("compute_ms") > 0.0, "{candidate}");
        assert_eq!(candidate["place"] == "local", ms("wire_ms") == 0.0, "{candidate}");
    }
    assert_eq!(first.metric(&format!("muser:prefill_choices_total{{place=\"{address}\",reason=\"first_try\"}}")), 1.0);
    assert_eq!(first.metric("muser:prefill_choices_total{place=\"local\",reason=\"first_try\"}"), 1.0);
    assert_eq!(first.metric("muser:handoff_fallbacks_total"), 0.0);
    for name in ["seconds", "compute_seconds", "send_wall_seconds", "bytes", "wire_bytes", "tokens"] {
        assert!(first.metric(&format!("muser:handoff_{name}_total{{producer=\"{address}\"}}")) > 0.0, "{name}");
    }
    // It is written although nothing more is learnt, and nobody ends the server.
    let (file, began) = (format!("{decoder}/policy.toml"), Instant::now());
    while fs::metadata(&file).is_err() {
        assert!(began.elapsed() < Duration::from_secs(60), "waited in vain for {file}");
        thread::sleep(Duration::from_millis(10));
    }
    first.stopped();

    let learnt = fs::read_to_string(&file).unwrap();
    for (producer_is_quicker, place) in [(true, address), (false, "local")] {
        fs::write(&file, scaled(&learnt, |is_producer| if is_producer == producer_is_quicker { 0.01 } else { 1e4 }))
            .unwrap();
        let again = serving(&decoder, &[address], &[]);
        let (_, chosen) = complete(&again, &prompt(3));
        assert_eq!((&chosen["kv_choice"]["place"], verdict(&chosen, place)), (&json!(place), &json!("cheapest")));
        assert_eq!(chosen["kv_source"] == "producer", producer_is_quicker, "{chosen}");
        again.stopped();
    }
    fs::write(&file, "model = \"damaged").unwrap();
    let anew = serving(&decoder, &[address], &[]);
    assert_eq!(verdict(&complete(&anew, &prompt(4)).1, address), "first_try");
    let said = anew.stopped();
    assert!(said.contains("policy.toml") && said.contains("rates are learnt anew"), "{said}");
    assert!(fs::read_to_string(&file).unwrap().contains(address));
}

#[test]
fn another_producer_is_asked_before_this_machine_if_that_is_what_was_asked_for() {
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let producing = Producing::start(&["--cluster", &producer, "--listen", "127.0.0.1:0"]);
    let (dead, alive) = ("127.0.0.1:1", producing.address.as_str());
    let asking = serving(&decoder, &[dead, alive], &["--fallback", "other-producer"]);
    let (_, times) = complete(&asking, &prompt(0));
    assert_eq!((&times["kv_source"], &times["kv_producer"]), (&json!("producer"), &json!("producer")), "{times}");
    assert!(times["kv_fallback"].as_str().unwrap().starts_with("127.0.0.1:1: "), "{times}");
    assert!(times["kv_lost_ms"].as_f64().unwrap() > 0.0, "{times}");
    assert_eq!(asking.metric(&format!("muser:handoff_failures_total{{producer=\"{dead}\"}}")), 1.0);
    assert_eq!(asking.metric(&format!("muser:handoffs_total{{producer=\"{alive}\"}}")), 1.0);
    assert_eq!(asking.metric("muser:handoff_fallbacks_total"), 0.0);
    asking.stopped();

    let (dead_too, at_once) = ("127.0.0.1:2", serving(&decoder, &[dead, alive], &["--fallback", "local"]));
    let (_, times) = complete(&at_once, &prompt(0));
    assert!(times["kv_source"] == "local" && times["kv_fallback"].is_string(), "{times}");
    assert_eq!(at_once.metric("muser:handoff_fallbacks_total"), 1.0);
    at_once.stopped();

    let nobody = serving(&decoder, &[dead, dead_too], &["--fallback", "other-producer"]);
    let (_, times) = complete(&nobody, &prompt(0));
    let reasons = times["kv_fallback"].as_str().unwrap();
    assert!(reasons.contains("127.0.0.1:1: ") && reasons.contains("; 127.0.0.1:2: "), "{times}");
    assert_eq!(times["kv_source"], "local");
    nobody.stopped();
}
