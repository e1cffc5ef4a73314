//! `muser bench`.

use serde_json::Value;

use crate::common::muser;

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
        assert!(lines[0].contains("t/s") && lines[2].contains(names[0]) && lines[2].contains("f16"), "{table}");
    }
    let line = muser(&["bench", "-p", "0", "-n", "0"]).refused(2);
    assert!(line.contains("nothing to measure"), "{line}");
}

#[test]
fn a_test_beyond_the_context_is_refused_with_the_numbers() {
    let largest = usize::MAX.to_string();
    for args in [["-p", "2000", "-d", "49"], ["-p", "1", "-d", &largest], ["-p", &largest, "-d", "0"]] {
        let line = muser(&[&["bench", "-n", "1"], &args[..]].concat()).refused(2);
        assert!(line.contains("2048") && line.contains(args[1]) && line.contains(args[3]), "{line}");
    }
}
