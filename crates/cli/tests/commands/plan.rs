//! `muser plan`.

use muser_kernels::formats::WeightType;
use serde_json::{Value, json};

use crate::common::{Folder, float_model, llama_spec, muser};

fn report(args: &[&str]) -> Value {
    serde_json::from_str(&muser(&[&["plan", "--json"], args].concat()).done().stdout).unwrap()
}

fn number(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("no {name} in {report}"))
}

#[test]
fn rows_rounding_and_framing_add_up_to_what_travels() {
    let big = ["--geometry", "muse-glimmer-30b", "-ctk", "f16"];
    for args in [
        [&["130815"], &big[..]].concat(),
        [&["65536", "--held-tokens", "32768"], &big[..]].concat(),
        vec!["1000"],
        vec!["1000", "--held-tokens", "200", "--kv", "f16"],
    ] {
        let report = report(&args);
        let framing: u64 = ["header_bytes", "digest_bytes", "range_bytes", "entry_bytes"]
            .iter()
            .map(|name| number(&report["framing"], name))
            .sum();
        let payload = number(&report, "row_bytes") + number(&report, "rounding_bytes");
        assert_eq!(payload, number(&report, "payload_bytes"), "{args:?}");
        assert_eq!(payload + framing, number(&report, "wire_bytes"), "{args:?}");
        let pages: u64 = report["groups"].as_array().unwrap().iter().map(|group| number(group, "pages")).sum();
        assert_eq!(pages * number(&report, "page_bytes"), payload, "{args:?}");
    }
}

#[test]
fn the_figures_of_muse_glimmer_30b_come_out_for_people_too() {
    let big = ["--geometry", "muse-glimmer-30b", "-ctk", "f16"];
    let whole = muser(&[&["plan", "130815"], &big[..]].concat()).done().stdout;
    assert!(whole.contains("rows            1823184896  bytes of exactly the rows"), "{whole}");
    assert!(whole.contains("group 0   13 layers, global: pages 0..2044, 2044 each, 26572 in all"), "{whole}");
    assert!(whole.contains("group 3   13 layers, window of 2048: pages 2011..2044, 33 each, 429 in all"), "{whole}");
    let delta = muser(&[&["plan", "65536", "--held-tokens", "32768"], &big[..]].concat()).done().stdout;
    assert!(delta.contains("delta     54.2851 % of the rows' bytes"), "{delta}");
}

#[test]
fn a_files_head_is_enough_and_held_tokens_count_by_whole_pages() {
    let folder = Folder::new();
    let model = folder.write("model.gguf", float_model(&llama_spec(64), WeightType::F16));
    let report = report(&["60", "-m", &model]);
    assert_eq!((number(&report, "rows"), &report["costs"]), (59, &json!(null)));
    let held = crate::plan::report(&["1000", "--held-tokens", "200"]);
    assert_eq!((number(&held, "held_pages"), number(&held, "held_tokens")), (3, 192));
    assert!(held["groups"].as_array().unwrap().iter().all(|group| number(group, "first_page") >= 3), "{held}");
}

#[test]
fn what_was_measured_says_who_would_be_quickest() {
    let folder = Folder::new();
    let digits = "ab".repeat(32);
    let rates = format!(
        "model = \"{digits}\"\n\n[[place]]\nposition_ms = [1.0]\nfixed_ms = 2.0\n\n[[place]]\n\
         address = \"192.0.2.1:9932\"\nnode = \"{digits}\"\nposition_ms = [0.25]\nbyte_ms = 1e-9\nfixed_ms = 300.0\n"
    );
    let file = folder.write("policy.toml", rates);
    let cluster = file.trim_end_matches("policy.toml").to_owned();
    for (tokens, place) in [("300", "local"), ("1001", "192.0.2.1:9932")] {
        let costs = report(&[tokens, "--cluster", &cluster])["costs"].take();
        assert_eq!((&costs["chosen"], &costs["model"]), (&json!(place), &json!(digits)));
    }
    let costs = report(&["1001", "--cluster", &cluster])["costs"].take();
    assert_eq!(costs["candidates"][0]["total_ms"], 1003.0);
    assert_eq!(costs["candidates"][1]["compute_ms"], 250.0);
    let shown = muser(&["plan", "1001", "--cluster", &cluster]).done().stdout;
    assert!(shown.contains("producer 192.0.2.1:9932: 550.0 ms") && shown.contains("chosen as the cheapest"), "{shown}");
    assert!(muser(&["plan", "300", "--cluster", &folder.at("absent")]).refused(1).contains("no server has measured"));
}

#[test]
fn what_cannot_be_planned_is_refused_with_its_numbers() {
    assert!(muser(&["plan", "1"]).refused(2).contains("a prompt of 1 tokens: it needs to have 2 to"));
    let long = muser(&["plan", "131073", "--geometry", "muse-glimmer-30b"]).refused(2);
    assert!(long.contains("2 to 131072"), "{long}");
    let held = muser(&["plan", "1000", "--held-tokens", "1024"]).refused(2);
    assert!(held.contains("at most 960"), "{held}");
}
