//! `muser inspect`.

use muser_kernels::formats::WeightType;
use muser_weights::gguf::Value;
use serde_json::json;

use crate::common::{Folder, SHIPPED, float_model, llama_spec, muser, repository, with_keys};

fn report(args: &[&str]) -> serde_json::Value {
    let ended = muser(&[&["inspect", "--json"], args].concat()).done();
    assert_eq!(ended.stderr, "");
    serde_json::from_str(&ended.stdout).unwrap()
}

fn is_digest(value: &serde_json::Value) -> bool {
    value.as_str().is_some_and(|text| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[test]
fn a_model_is_described_for_machines() {
    let report = report(&[]);
    assert_eq!((&report["runs"], &report["problems"]), (&json!(true), &json!([])));
    assert_eq!(report["metadata"]["general.architecture"], "muse-glimmer");
    assert_eq!(report["metadata"]["tokenizer.ggml.tokens"].as_array().unwrap().len(), 4096);
    assert_eq!(report["file_bytes"], json!(std::fs::metadata(SHIPPED).unwrap().len()));
    let tensors = report["tensors"].as_array().unwrap();
    let embedding = tensors.iter().find(|tensor| tensor["name"] == "token_embd.weight").unwrap();
    assert_eq!(embedding["shape"].as_array().unwrap()[1], 4096);
    let elements = |tensor: &serde_json::Value| -> u64 {
        tensor["shape"].as_array().unwrap().iter().map(|length| length.as_u64().unwrap()).product()
    };
    assert_eq!(report["parameters"], tensors.iter().map(elements).sum::<u64>());
    assert!(is_digest(&report["tensor_digest"]));
    let identities = report["identities"].as_array().unwrap();
    assert_eq!([&identities[0]["kv"], &identities[1]["kv"]], ["q8", "f16"]);
    for identity in identities {
        assert!(is_digest(&identity["identity"]));
        assert_eq!(identity["components"].as_object().unwrap().len(), 5);
    }
    assert_ne!(identities[0]["identity"], identities[1]["identity"]);
    assert_eq!(identities[0]["components"]["tensors"], identities[1]["components"]["tensors"]);
}

#[test]
fn the_shipped_file_is_the_model_in_the_binary() {
    let folder = Folder::new();
    let path = folder.write("model.gguf", std::fs::read(SHIPPED).unwrap());
    let (inside, outside) = (report(&[]), report(&[&path]));
    assert_eq!(outside["files"], json!([path]));
    for key in ["tensor_digest", "identities", "metadata", "tensors", "kv_bytes_per_position"] {
        assert_eq!(inside[key], outside[key], "{key}");
    }
}

#[test]
fn an_identity_is_that_of_what_is_computed() {
    let folder = Folder::new();
    let file = float_model(&llama_spec(64), WeightType::F16);
    let identities = |name: &str, changes: &[(&str, Option<Value<'_>>)]| {
        let mut report = report(&[&folder.write(name, with_keys(&file, changes))]);
        report["identities"].take()
    };
    let plain = identities("plain.gguf", &[]);
    let name = [("general.name", Some(Value::String(b"another name")))];
    assert_eq!(identities("name.gguf", &name), plain);
    let base = [("llama.rope.freq_base", Some(Value::F32(20_000.0)))];
    let other = identities("base.gguf", &base);
    for layout in [0, 1] {
        let component = |of: &serde_json::Value, name: &str| of[layout]["components"][name].clone();
        assert_ne!(other[layout]["identity"], plain[layout]["identity"]);
        assert_ne!(component(&other, "configuration"), component(&plain, "configuration"));
        assert_eq!(component(&other, "tensors"), component(&plain, "tensors"));
    }
}

#[test]
fn bytes_per_position_are_those_of_a_run() {
    let bytes = &report(&[])["kv_bytes_per_position"];
    for kv in ["q8", "f16"] {
        let ended = muser(&["run", "-n", "1", "-ctk", kv, "-ctv", kv, "Once upon a time"]).done();
        // One page of 64 positions per layer.
        let expected = format!("{} bytes of", 64 * bytes[kv].as_u64().unwrap());
        assert!(ended.stderr.contains(&expected), "{expected}: {}", ended.stderr);
    }
}

#[test]
fn all_parts_of_a_split_model_are_described() {
    let folder = Folder::new();
    for number in 1..=3 {
        let name = format!("split-0000{number}-of-00003.gguf");
        folder.write(&name, std::fs::read(repository("golden/gguf").join(&name)).unwrap());
    }
    let report = report(&[&folder.at("split-00001-of-00003.gguf")]);
    assert_eq!(report["files"].as_array().unwrap().len(), 3);
    // Made to be read, not to be run.
    assert_eq!(report["runs"], false);
    assert!(!report["problems"].as_array().unwrap().is_empty());
}

#[test]
fn people_read_the_same_in_lines() {
    let text = muser(&["inspect"]).done().stdout;
    for words in [
        "(the model that ships with muser)",
        "general.architecture = \"muse-glimmer\"",
        "runs        yes",
        "identity    ",
    ] {
        assert!(text.contains(words), "{words}");
    }
    let identity = report(&[])["identities"][0]["identity"].as_str().unwrap().to_owned();
    assert!(text.contains(&identity));
    // Long values are cut.
    assert!(text.lines().all(|line| line.len() < 400));
}
