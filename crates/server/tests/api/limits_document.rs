//! `docs/limits.md` has a row for whatever a request may hold.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::openapi::schema::Document;

const PAGE: &str = include_str!("../../../../docs/limits.md");
const DESCRIPTION: &str = include_str!("../../openapi.json");

/// What stands between backticks in the first column of the tables of a section.
fn rows_of(section: &str) -> BTreeSet<&'static str> {
    let text = PAGE.split("\n## ").find(|part| part.starts_with(section)).unwrap_or_else(|| panic!("no {section}"));
    let cells = text.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn every_field_of_a_request_has_a_row_and_every_row_a_field() {
    let document = Document(serde_json::from_str(DESCRIPTION).unwrap());
    let mut fields = BTreeSet::new();
    let requests = document.operations().into_iter().filter_map(|operation| document.request(operation));
    for schema in requests.chain(["StreamOptions", "Message", "TextPart"].map(|name| document.named(name))) {
        fields.extend(schema["properties"].as_object().unwrap().keys().cloned());
    }
    let rows = rows_of("Fields of requests");
    let without: Vec<&String> = fields.iter().filter(|field| !rows.contains(field.as_str())).collect();
    assert!(without.is_empty(), "docs/limits.md has no row for {without:?}");
    let stale: Vec<&&str> = rows.iter().filter(|row| !fields.contains(**row) && **row != "/tokenize").collect();
    assert!(stale.is_empty(), "no route takes {stale:?}, which docs/limits.md has");
}

#[test]
fn every_parameter_of_a_query_has_a_row() {
    let document = Document(serde_json::from_str(DESCRIPTION).unwrap());
    let rows = rows_of("Heads");
    for operation in document.operations() {
        for parameter in operation.says["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap();
            assert!(rows.contains(name), "docs/limits.md has no row for the query {name}");
        }
    }
}

#[test]
fn the_numbers_of_the_description_are_those_of_the_page() {
    let document: Value = serde_json::from_str(DESCRIPTION).unwrap();
    let of = |schema: &str, field: &str, keyword: &str| {
        let field = &document["components"]["schemas"][schema]["properties"][field];
        field[keyword].as_u64().unwrap_or_else(|| panic!("{schema} {field} {keyword}"))
    };
    let row = |field: &str| {
        let begin = format!("| `{field}`");
        PAGE.lines()
            .find(|line| line.starts_with(&begin))
            .unwrap_or_else(|| panic!("no row of {field}"))
            .replace(',', "")
    };
    for (schema, field, keyword) in [
        ("CompletionRequest", "n_probs", "maximum"),
        ("TextCompletionRequest", "logprobs", "maximum"),
        ("ChatCompletionRequest", "top_logprobs", "maximum"),
        ("ChatCompletionRequest", "messages", "maxItems"),
        ("CompletionRequest", "response_fields", "maxItems"),
        ("DetokenizeRequest", "tokens", "maxItems"),
        ("CompletionRequest", "cache_salt", "maxLength"),
    ] {
        let limit = of(schema, field, keyword).to_string();
        assert!(row(field).contains(&format!(" {limit}")), "{field}: {limit} is not in {:?}", row(field));
    }
}
