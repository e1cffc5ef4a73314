//! A published number comes with how it was measured: every record says the command, the commit and the machine.

use serde_json::Value;

use super::repository::Repository;

const REQUIRED: [&str; 3] = ["command", "commit", "machine"];

/// Every `.json` file under `bench/records/` parses as an object that has the [`REQUIRED`] fields, none of them empty.
pub fn incomplete(repository: &Repository) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, text) in repository.texts_ending_in(".json") {
        if !path.starts_with("bench/records/") {
            continue;
        }
        let record: Value = match serde_json::from_str(text) {
            Ok(record) => record,
            Err(error) => {
                broken.push(format!("{path}: {error}"));
                continue;
            }
        };
        let missing = REQUIRED.iter().filter(|field| is_empty(&record[**field]));
        broken.extend(missing.map(|field| format!("{path}: no `{field}`")));
    }
    broken
}

/// An absent field reads as null.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Null | Value::Bool(_) => true,
        Value::Number(_) => false,
    }
}

#[test]
fn a_record_without_its_circumstances_is_reported() {
    let complete = r#"{"command": "muser bench", "commit": "abc", "machine": {"cpu": "x"}, "tokens_per_second": 1.5}"#;
    let broken = |text: &str| incomplete(&Repository::of(&[("bench/records/a/b.json", text)]));
    assert!(broken(complete).is_empty());
    assert_eq!(broken(&complete.replace("command", "comand")), ["bench/records/a/b.json: no `command`"]);
    assert_eq!(broken(&complete.replace("abc", " ")), ["bench/records/a/b.json: no `commit`"]);
    assert_eq!(broken(&complete.replace(r#""cpu": "x""#, "")), ["bench/records/a/b.json: no `machine`"]);
    assert_eq!(broken("[1]").len(), 3);
    assert!(broken("{")[0].starts_with("bench/records/a/b.json: EOF"));
    assert!(incomplete(&Repository::of(&[("golden/a.json", "{}")])).is_empty());
}
