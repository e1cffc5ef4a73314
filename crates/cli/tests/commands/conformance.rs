//! `muser conformance`.

use serde_json::Value;

use crate::common::{SHIPPED, muser};

/// Sum of a column over the rows of a record.
fn sum(record: &Value, column: &str) -> u64 {
    record["rows"].as_array().unwrap().iter().map(|row| row[column].as_u64().unwrap()).sum()
}

#[test]
fn every_operation_of_the_cpu_has_the_references_bits() {
    let table = muser(&["conformance", "--device", "cpu", "--only", "operations", "--repeats", "1"]).done().stdout;
    let rows: Vec<Vec<&str>> = table.lines().skip(4).map(|line| line.split('|').map(str::trim).collect()).collect();
    let names: Vec<&str> = rows.iter().map(|row| row[2]).collect();
    assert_eq!(names, ["quantise", "matmul", "rows", "heads", "attend", ""], "{table}");
    for row in rows {
        assert!(row[4].parse::<u64>().unwrap() > 10_000 && row[5] == "0", "{table}");
    }
}

#[test]
fn a_record_has_its_circumstances_and_its_sums() {
    let only = ["--only", "muse-glimmer, Q8_0", "--commit", "abc", "-o", "json", "-t", "1"];
    let ended = muser(&[&["conformance", "--device", "cpu"][..], &only].concat()).done();
    let record: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&record["device"], &record["commit"]), (&"cpu".into(), &"abc".into()));
    assert!(record["command"].as_str().unwrap().starts_with("muser conformance --device cpu"), "{record}");
    assert!(record["machine"]["cpus"].as_u64().unwrap() > 0 && !record["levels"].as_array().unwrap().is_empty());
    assert_eq!(record["rows"].as_array().unwrap().len(), 1);
    for column in ["cases", "values", "wrong"] {
        assert_eq!(record["totals"][column], sum(&record, column), "{column}");
    }
    assert!(sum(&record, "values") > 1_000_000 && record["totals"]["first_wrong"].is_null(), "{record}");
}

#[test]
fn a_case_of_the_suite_and_a_model_file_are_chosen_by_their_names() {
    let args = ["conformance", "--device", "cpu", "--only", "nobody wants", "-t", "2"];
    let table = muser(&args).done().stdout;
    assert!(table.contains("| suite | logits that nobody wants fail nothing | 1 | 1 | 0 |"), "{table}");
    // Damaged files are refused before anything is compared.
    let line = muser(&["conformance", "--device", "cpu", SHIPPED, "/nowhere/model.gguf"]).refused(3);
    assert!(line.contains("/nowhere/model.gguf"), "{line}");
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let line = muser(&["conformance", "--device", "cpu", "--only", "nothing of this name"]).refused(2);
    assert!(line.contains("nothing of this name"), "{line}");
    for flag in ["--rounds", "--repeats"] {
        for number in ["0", "-1", "100001", "x"] {
            assert!(muser(&["conformance", &format!("{flag}={number}")]).wrong_usage().contains("1 to 100000"));
        }
    }
    if cfg!(not(feature = "cuda")) {
        let line = muser(&["conformance", "--device", "cuda"]).refused(4);
        assert!(line.contains("--features cuda"), "{line}");
    }
}
