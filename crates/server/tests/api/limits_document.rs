//! `docs/limits.md` has a row for each field of a request.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::openapi::schema::Document;

const PAGE: &str = include_str!("../../../../docs/limits.md");
const DESCRIPTION: &str = include_str!("../../openapi.json");

/// The names in backticks in the first column of a section's tables.
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

/// The numbers of `limits.rs`, each with the begin of its row.
const ROWS: &[(&str, &str)] = &[
    ("FIELDS_MAX", "fields of the body"),
    ("NAMES_MAX", "names of an object within an ignored field"),
    ("TEXT_BYTES_MAX", "`prompt`"),
    ("MESSAGES_MAX", "`messages`"),
    ("MESSAGE_VALUES_MAX", "`messages`"),
    ("TEMPLATE_VALUES_MAX", "`chat_template_kwargs`"),
    ("TEMPLATE_TEXT_BYTES_MAX", "`chat_template_kwargs`"),
    ("DETOKENIZED_MAX", "`tokens`"),
    ("STOPS_MAX", "`stop`"),
    ("STOP_BYTES_MAX", "`stop`"),
    ("RESPONSE_FIELDS_MAX", "`response_fields`"),
    ("SHORT_TEXT_BYTES_MAX", "`response_fields`"),
    ("BIAS_TEXT_BYTES_MAX", "`logit_bias`"),
    ("BIAS_TEXTS_BYTES_MAX", "`logit_bias`"),
    ("TOP_LOGPROBS_MAX", "`top_logprobs`"),
    ("TEXT_LOGPROBS_MAX", "`logprobs`"),
    ("N_PROBS_MAX", "`n_probs`"),
    ("ANSWER_BYTES_MAX", "`n_probs`"),
    ("WHOLE_PROBABILITY_BYTES", "`n_probs`"),
    ("STREAMED_PROBABILITY_BYTES", "`n_probs`"),
    ("PROMPT_TOKEN_BYTES", "`prompt`"),
    ("BODY_CHARGE", "body |"),
    ("TOKENIZED_CHARGE", "`content`"),
];

/// The value of `a` or `a << b`.
fn value_of(expression: &str) -> u64 {
    let mut parts = expression.split(" << ").map(|part| part.parse::<u64>().unwrap());
    let first = parts.next().unwrap();
    first << parts.next().unwrap_or(0)
}

/// A number as the page has it: `16,384`, `8 KiB` or `4 MiB`.
fn spellings(value: u64) -> Vec<String> {
    let digits = value.to_string();
    let grouped = digits.as_bytes().rchunks(3).rev().map(|group| str::from_utf8(group).unwrap());
    let mut spellings = vec![grouped.collect::<Vec<_>>().join(",")];
    let units = [(10, "KiB"), (20, "MiB")].into_iter().filter(|(shift, _)| value.is_multiple_of(1 << shift));
    spellings.extend(units.map(|(shift, unit)| format!("{} {unit}", value >> shift)));
    spellings
}

#[test]
fn every_number_of_the_module_of_limits_is_in_its_row() {
    let constants = include_str!("../../src/limits.rs").lines().filter_map(|line| line.strip_prefix("pub const "));
    let mut known = BTreeSet::new();
    for constant in constants {
        let (name, rest) = constant.split_once(": ").unwrap();
        let expression = rest.split_once(" = ").unwrap().1.trim_end_matches(';');
        let (_, begin) = ROWS.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name} has no row"));
        let begin = format!("| {begin}");
        let row = PAGE.lines().find(|line| line.starts_with(&begin)).unwrap_or_else(|| panic!("no row {begin}"));
        let is_number = |character: char| character.is_ascii_digit() || character == ',';
        let says = |spelling: &String| {
            row.match_indices(spelling.as_str()).any(|(at, _)| {
                let after = row[at + spelling.len()..].chars().next();
                !row[..at].ends_with(is_number) && !after.is_some_and(|next| next.is_ascii_alphanumeric())
            })
        };
        let spellings = spellings(value_of(expression));
        assert!(spellings.iter().any(says), "{name} is {spellings:?}, which is not in {row:?}");
        known.insert(name);
    }
    assert_eq!(known.len(), ROWS.len(), "rows of numbers that are gone");
}
