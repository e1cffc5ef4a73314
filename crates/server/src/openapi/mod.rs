//! The description of all routes, as an OpenAPI 3.1 document at `GET /openapi.json`.
//!
//! - `routes` is the table of routes, of which the router is made as well.
//! - `fields` are the fields of requests, each in one place.
//! - `objects` are the objects of answers.
//!
//! The document is checked in as `crates/server/openapi.json`, so that a change of what clients see is seen in reviews.
//! Keys of our own begin with `x-muser-`: `ignored` fields change nothing, whatever they say; `unsupported` ones may only
//! have the values that it lists, or such as its schema allows; `default` names where a default is told; `event` is the
//! object in the data of an event; `alias-of` is the main path of the same route.

mod fields;
mod objects;
mod routes;

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::access::{is_open, scope_of};
use crate::error::ErrorKind;
use crate::routes::page;
use fields::Group;
use objects::{array, described, integer, named, object, text as string};
use routes::{Input, Operation, Output, STREAM_OPTIONS};

pub use routes::{Action, OPERATIONS, takes_fields};

/// The document, indented, with a line break at its end.
pub fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| format!("{:#}\n", document()));
    &TEXT
}

fn document() -> Value {
    let mut paths = Map::new();
    for operation in OPERATIONS {
        for path in operation.paths {
            paths.insert((*path).to_owned(), path_item(operation, path));
        }
    }
    paths.extend(page::FILES.iter().map(|file| (file.path.to_owned(), page_file(file))));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "muser",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "An LLM inference engine over HTTP, on llama.cpp's and OpenAI's routes. A field of a request that is \
                null counts as absent; a field that is not listed is refused. HEAD is answered where GET is.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "responses": refusals(),
            "securitySchemes": {
                "Bearer": {"type": "http", "scheme": "bearer", "description": format!("A key of the server. {SCOPES}")},
                "XApiKey": {"type": "apiKey", "in": "header", "name": "X-Api-Key",
                            "description": format!("The same key, where there is no Authorization. {SCOPES}")},
            },
        },
    })
}

const SCOPES: &str = "Keys have scopes: use opens what generates or reads text, metrics what counts, and admin everything. \
                      A server without keys asks for none, and gives nobody admin.";

fn path_item(operation: &Operation, path: &str) -> Value {
    let (method, mut item) = match operation.input {
        Input::Get => ("get", json!({})),
        Input::Query(parameters) => {
            let parameter = |(name, says): &(&str, &str)| {
                json!({"name": name, "in": "query", "description": says,
                       "schema": {"type": "integer", "minimum": 0, "maximum": u8::MAX}})
            };
            ("get", json!({"parameters": parameters.iter().map(parameter).collect::<Vec<_>>()}))
        }
        Input::Post => ("post", json!({})),
        Input::Fields(name, _) => {
            let content = json!({"application/json": {"schema": named(name)}});
            ("post", json!({"requestBody": {"required": true, "content": content}}))
        }
    };
    item["operationId"] = operation_id(method, path).into();
    item["summary"] = operation.says.into();
    if path != operation.paths[0] {
        item["x-muser-alias-of"] = operation.paths[0].into();
    }
    item["security"] = security(path);
    let mut responses = json!({"200": success(&operation.output)});
    // Foreign hosts and origins are refused everywhere, keys where one is needed.
    let guards: &[ErrorKind] =
        if is_open(path) { &[ErrorKind::Permission] } else { &[ErrorKind::Permission, ErrorKind::Authentication] };
    for kind in ErrorKind::ALL.iter().filter(|kind| guards.contains(kind) || operation.refusals.contains(kind)) {
        let (code, _) = kind.code_and_name();
        let reference = format!("#/components/responses/{}", response_name(*kind));
        responses[code.as_str()] = json!({"$ref": reference});
    }
    item["responses"] = responses;
    json!({method: item})
}

fn page_file(file: &page::File) -> Value {
    json!({"get": {
        "operationId": operation_id("get", file.path),
        "summary": "A file of the page to talk to the model in a browser.",
        "security": [],
        "responses": {
            "200": {"description": "The file.", "content": {file.media_type: {"schema": string()}}},
            "304": {"description": "The client has it, by its If-None-Match."},
            "403": {"$ref": format!("#/components/responses/{}", response_name(ErrorKind::Permission))},
        },
    }})
}

fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<&str> = std::iter::once(method).chain(words).collect();
    if words.len() == 1 { format!("{method}_page") } else { words.join("_") }
}

fn security(path: &str) -> Value {
    if is_open(path) {
        return json!([]);
    }
    let scope = scope_of(Some(path)).name();
    json!([{"Bearer": [scope]}, {"XApiKey": [scope]}])
}

fn success(output: &Output) -> Value {
    let (says, content) = match output {
        Output::Object(name) => ("The answer.".to_owned(), json!({"application/json": {"schema": named(name)}})),
        Output::Answer { whole, event, end } => {
            let events =
                "Server-sent events; the data of each is a JSON object. A comment comes where a stream is long silent.";
            let stream = json!({"schema": described(string(), events), "x-muser-event": named(event)});
            (
                format!(
                    "The whole answer, or a stream of events where the request says so. It ends with {end}, or with an error."
                ),
                json!({"application/json": {"schema": named(whole)}, "text/event-stream": stream}),
            )
        }
        Output::Text(media_type) => ("The counts.".to_owned(), json!({*media_type: {"schema": string()}})),
        Output::Document => ("This document.".to_owned(), json!({"application/json": {"schema": {"type": "object"}}})),
    };
    json!({"description": says, "content": content})
}

/// One response for each status, with the types that it may have.
fn refusals() -> Value {
    let mut responses = json!({});
    for kind in ErrorKind::ALL {
        let (code, name) = kind.code_and_name();
        let response = &mut responses[response_name(kind)];
        if response.is_null() {
            let content = json!({"application/json": {"schema": named("Error")}});
            *response =
                json!({"description": format!("Status {} with the type {name}", code.as_u16()), "content": content});
        } else if let Some(known) = response["description"].as_str() {
            response["description"] = format!("{known} or {name}").into();
        }
    }
    responses
}

/// The status's own name, without spaces.
fn response_name(kind: ErrorKind) -> String {
    let (code, _) = kind.code_and_name();
    code.canonical_reason().unwrap_or(code.as_str()).split(' ').collect()
}

fn schemas() -> Map<String, Value> {
    let mut schemas = Map::new();
    for operation in OPERATIONS {
        if let Input::Fields(name, groups) = operation.input {
            schemas.insert(name.to_owned(), request(groups));
        }
    }
    let (name, groups) = STREAM_OPTIONS;
    schemas.insert(name.to_owned(), request(groups));
    schemas.extend(objects::all());
    schemas.insert("Error".to_owned(), error());
    schemas
}

/// The object that is made of groups of fields.
fn request(groups: &[Group]) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for field in groups.iter().flat_map(|group| group()) {
        if field.is_required {
            required.push(field.name);
        }
        properties.insert(field.name.to_owned(), field.schema);
    }
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

fn error() -> Value {
    let codes_and_names = ErrorKind::ALL.map(ErrorKind::code_and_name);
    let mut codes: Vec<u16> = codes_and_names.iter().map(|(code, _)| code.as_u16()).collect();
    let mut names: Vec<&str> = codes_and_names.iter().map(|(_, name)| *name).collect();
    codes.sort_unstable();
    codes.dedup();
    names.sort_unstable();
    names.dedup();
    let error = object(&json!({
        "code": described(json!({"enum": codes}), "The status."),
        "message": described(string(), "For people: which field, what is wrong, what is needed."),
        "type": {"enum": names},
        "param?": described(fields::or_null(string()), "With code 400: the field that it is about, or null."),
        "known_fields?": described(array(string()), "All fields that the route takes, if the request has an unknown one."),
        "n_prompt_tokens?": described(integer(), "Tokens of a prompt that does not fit."),
        "n_ctx?": described(integer(), "Tokens that the context holds."),
    }));
    described(
        object(&json!({"error": error})),
        "A refusal, on every route, and the last event of a stream that failed.",
    )
}
