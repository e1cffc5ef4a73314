//! `muser bench`.

use serde_json::Value;

use crate::common::muser;

/// Weights of the shipped model: eight layers of 512 by 512 three times, by 256 twice and by 1536 three times; 4,096 tokens.
const LAYER_WEIGHTS: f64 = 27_262_976.0;
const HEAD_WEIGHTS: f64 = 2_097_152.0;

#[test]
fn json_has_the_fields_of_the_usual_table() {
    let ended = muser(&["bench", "-o", "json", "-p", "16", "-n", "4", "-r", "2", "-d", "3", "-t", "2"]).done();
    let rows: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(rows.len(), 2);
    for (row, (prompt, generated)) in rows.iter().zip([(16, 0), (0, 4)]) {
        assert_eq!((&row["n_prompt"], &row["n_gen"], &row["n_depth"]), (&prompt.into(), &generated.into(), &3.into()));
        assert_eq!((&row["n_threads"], &row["kv"]), (&2.into(), &"q8".into()));
        let samples: Vec<f64> =
            row["samples_ts"].as_array().unwrap().iter().map(|speed| speed.as_f64().unwrap()).collect();
        let mean = row["avg_ts"].as_f64().unwrap();
        assert!(samples.len() == 2 && samples.iter().all(|speed| *speed > 0.0));
        assert!((mean - (samples[0] + samples[1]) / 2.0).abs() < 1e-6 * mean);
        // Products are nearly all of the arithmetic, and weights of 4 to 6 bits nearly all of the traffic, once a step. A step
        // of prefill has one row of logits.
        let tokens_per_step = if prompt > 0 { 16.0 } else { 1.0 };
        let [tops, gbs] = ["avg_tops", "avg_gbs"].map(|name| row[name].as_f64().unwrap() / mean);
        let products = 2.0 * (LAYER_WEIGHTS + HEAD_WEIGHTS / tokens_per_step);
        assert!((1.0..1.05).contains(&(tops * 1e12 / products)), "{row}");
        let least = 0.5625 * (LAYER_WEIGHTS + HEAD_WEIGHTS) / tokens_per_step;
        assert!((1.0..2.0).contains(&(gbs * 1e9 / least)), "{row}");
        assert!(row["stddev_ts"].as_f64().unwrap() >= 0.0);
        assert!(!row["model"].as_str().unwrap().is_empty() && !row["kernels"].as_str().unwrap().is_empty());
    }
}

#[test]
fn a_test_of_no_tokens_is_left_out() {
    for (args, names) in [(["-p", "4", "-n", "0"], ["pp4"]), (["-p", "0", "-n", "2"], ["tg2"])] {
        let table = muser(&[&["bench", "-r", "1", "--kv", "f16"], &args[..]].concat()).done().stdout;
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3, "{table}");
        assert!(
            lines[0].contains("| t/s | TOP/s | GB/s |") && lines[2].contains(names[0]) && lines[2].contains("f16"),
            "{table}"
        );
    }
    let line = muser(&["bench", "-p", "0", "-n", "0"]).refused(2);
    assert!(line.contains("nothing to measure"), "{line}");
}

#[test]
fn every_test_runs_at_every_depth_and_with_every_number_of_sequences() {
    let args = ["bench", "-o", "json", "-r", "1", "-p", "5,0,70", "-n", "2", "-d", "130,0,64", "-np", "1,3"];
    let rows: Vec<Value> = serde_json::from_str(&muser(&args).done().stdout).unwrap();
    let numbers = |row: &Value| ["n_depth", "n_prompt", "n_gen", "n_parallel"].map(|name| row[name].as_u64().unwrap());
    let got: Vec<[u64; 4]> = rows.iter().map(numbers).collect();
    let at = |depth| [[depth, 5, 0, 1], [depth, 70, 0, 1], [depth, 0, 2, 1], [depth, 0, 2, 3]];
    assert_eq!(got, [at(0), at(64), at(130)].concat());

    let table = muser(&["bench", "-r", "1", "-p", "0", "-n", "1", "-d", "65", "-np", "2"]).done().stdout;
    assert!(table.contains("tg1 x 2 @ d65"), "{table}");
    let many = (0..600).map(|depth| depth.to_string()).collect::<Vec<_>>().join(",");
    let line = muser(&["bench", "-p", "1", "-n", "1", "-d", &many]).refused(2);
    assert!(line.contains("600 depths of 2 tests") && line.contains("1000"), "{line}");
    let line = muser(&["bench", "-p", "0", "-n", "1", "-np", "513"]).refused(2);
    assert!(line.contains("513 sequences") && line.contains("512"), "{line}");
    let line = muser(&["bench", "-p", "1", "-n", "0", "-np", "2"]).refused(2);
    assert!(line.contains("--parallel") && line.contains("-n is 0"), "{line}");
}

#[test]
fn a_test_beyond_the_context_is_refused_with_the_numbers() {
    let largest = usize::MAX.to_string();
    for args in [["-p", "2000", "-d", "49"], ["-p", "1", "-d", &largest], ["-p", &largest, "-d", "0"]] {
        let line = muser(&[&["bench", "-n", "1"], &args[..]].concat()).refused(2);
        assert!(line.contains("2048") && line.contains(args[1]) && line.contains(args[3]), "{line}");
    }
}
