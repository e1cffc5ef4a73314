//! The language of templates: the same texts as jinja2 gives, and its refusals, for one template of each feature.

use crate::chat_support::chat_tokenizer;
use crate::random;
use muser_text::{ChatOptions, ChatTemplate, LocalTime};
use serde_json::Value;

const GOLDENS: &str = include_str!("../../../../golden/chat/expressions.json");

/// Templates that jinja2 refuses and that are filled here.
const MORE_LENIENT: [&str; 2] = ["{{ z|list }}", "{% do 1 %}"];

#[test]
fn every_operator_filter_method_and_statement_gives_what_jinja2_gives() {
    let goldens: Value = serde_json::from_str(GOLDENS).expect("well-formed JSON");
    let tokenizer = chat_tokenizer(random::bytes_only("gpt-2"));
    let options = ChatOptions {
        variables: goldens["values"].as_object().expect("an object").clone(),
        now: Some(LocalTime::from_seconds(1_709_212_829)),
        ..ChatOptions::default()
    };
    let cases = goldens["cases"].as_array().expect("a list");
    assert!(cases.len() >= 250, "{}", cases.len());
    let mut differences = Vec::new();
    for case in cases {
        let source = case[0].as_str().expect("a template");
        let rendered = ChatTemplate::new(source).and_then(|template| template.render(&tokenizer, &[], &options));
        let got = rendered.map(|rendered| rendered.text().to_owned());
        if got.as_ref().ok().map(String::as_str) != case[1].as_str() && !MORE_LENIENT.contains(&source) {
            differences.push(format!("{source}\n  expected {}\n  got      {got:?}", case[1]));
        }
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}
