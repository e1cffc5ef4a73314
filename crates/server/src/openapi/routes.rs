//! The table of routes, of which both the router and the document are made.

use axum::http::Method;

use super::fields::{self, Group};
use crate::error::ErrorKind::{
    self, ExceedContextSize, InvalidRequest, NotSupported, RateLimit, Server, Timeout, TooLarge, Unavailable,
    UnsupportedMedia,
};

/// Action of a route, which the router maps to its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Readiness.
    Health,
    /// Lists the model.
    Models,
    /// Default settings.
    Props,
    /// State of the slots.
    Slots,
    /// Counts.
    Metrics,
    /// Gives this description.
    Document,
    /// Ends the server.
    Drain,
    /// Continues text in llama.cpp's shape.
    Completion,
    /// Continues text in OpenAI's shape.
    Texts,
    /// Continues a conversation.
    Chat,
    /// Turns a conversation into text.
    ApplyTemplate,
    /// Turns text into tokens.
    Tokenize,
    /// Turns tokens into text.
    Detokenize,
}

/// A route under all of its paths.
#[derive(Debug)]
pub struct Operation {
    /// Its handler's action.
    pub action: Action,
    /// Its paths, the main one first.
    pub paths: &'static [&'static str],
    /// Summary, in one line.
    pub says: &'static str,
    /// Its request.
    pub input: Input,
    /// Its answer.
    pub output: Output,
    /// Refusals of the route itself, besides those of the guard in front of all.
    pub refusals: &'static [ErrorKind],
}

/// Request of a route.
#[derive(Debug)]
pub enum Input {
    /// Nothing, with GET.
    Get,
    /// Whole numbers in the query, with GET: names and meanings.
    Query(&'static [(&'static str, &'static str)]),
    /// Nothing, with POST.
    Post,
    /// A JSON body, with POST: the name of its schema, and its groups of fields.
    Fields(&'static str, &'static [Group]),
}

/// Answer of a route.
#[derive(Debug)]
pub enum Output {
    /// An object.
    Object(&'static str),
    /// An object, or events with such objects until one ends it.
    Answer {
        /// The name of the object.
        whole: &'static str,
        /// The name of the object in an event.
        event: &'static str,
        /// Data of the last event.
        end: &'static str,
    },
    /// Text of a media type.
    Text(&'static str),
    /// This description.
    Document,
}

/// Refusals of routes that generate.
const GENERATES: &[ErrorKind] = &[
    InvalidRequest,
    ExceedContextSize,
    Timeout,
    TooLarge,
    UnsupportedMedia,
    RateLimit,
    NotSupported,
    Server,
    Unavailable,
];
/// Refusals of routes that read a body and do not generate.
const READS: &[ErrorKind] = &[InvalidRequest, Timeout, TooLarge, UnsupportedMedia, Server, Unavailable];

/// The fields within `stream_options` have a name of their own.
pub const STREAM_OPTIONS: (&str, &[Group]) = ("StreamOptions", &[fields::of_stream_options]);

/// All routes but the page's files.
pub const OPERATIONS: &[Operation] = &[
    Operation {
        action: Action::Health,
        paths: &["/health", "/v1/health"],
        says: "Readiness of the server; never waits for the engine.",
        input: Input::Get,
        output: Output::Object("Health"),
        refusals: &[Server, Unavailable],
    },
    Operation {
        action: Action::Models,
        paths: &["/v1/models", "/models"],
        says: "Lists the one model.",
        input: Input::Get,
        output: Output::Object("Models"),
        refusals: &[],
    },
    Operation {
        action: Action::Props,
        paths: &["/props"],
        says: "Default settings of requests, and properties of the model.",
        input: Input::Get,
        output: Output::Object("Props"),
        refusals: &[Unavailable],
    },
    Operation {
        action: Action::Slots,
        paths: &["/slots"],
        says: "State of the slots, without prompts or answers. A server may be started without it.",
        input: Input::Query(&[("fail_on_no_slot", "If 1, a server without an idle slot answers 503.")]),
        output: Output::Object("Slots"),
        refusals: &[InvalidRequest, NotSupported, Unavailable],
    },
    Operation {
        action: Action::Metrics,
        paths: &["/metrics"],
        says: "Counts, in Prometheus's text format. A server may be started without it.",
        input: Input::Get,
        output: Output::Text("text/plain; version=0.0.4; charset=utf-8"),
        refusals: &[NotSupported, Unavailable],
    },
    Operation {
        action: Action::Document,
        paths: &["/openapi.json"],
        says: "This description.",
        input: Input::Get,
        output: Output::Document,
        refusals: &[],
    },
    Operation {
        action: Action::Drain,
        paths: &["/admin/drain"],
        says: "Stops accepting requests, and ends the server when those under way are done.",
        input: Input::Post,
        output: Output::Object("Stopping"),
        refusals: &[Unavailable],
    },
    Operation {
        action: Action::Completion,
        paths: &["/completion", "/completions"],
        says: "Continues raw text, in llama.cpp's shape.",
        input: Input::Fields(
            "CompletionRequest",
            &[
                fields::prompt,
                fields::sampling,
                fields::options,
                fields::probabilities,
                fields::probabilities_after_sampling,
                fields::native,
                fields::other_samplers,
            ],
        ),
        output: Output::Answer {
            whole: "Completions",
            event: "CompletionEvent",
            end: "the last object of each answer",
        },
        refusals: GENERATES,
    },
    Operation {
        action: Action::Texts,
        paths: &["/v1/completions"],
        says: "Continues raw text, in OpenAI's shape.",
        input: Input::Fields(
            "TextCompletionRequest",
            &[
                fields::prompt,
                fields::sampling,
                fields::options,
                fields::texts,
                fields::probabilities,
                fields::stream_options,
                fields::meaningless,
                fields::other_samplers,
            ],
        ),
        output: Output::Answer { whole: "TextCompletion", event: "TextCompletionEvent", end: "[DONE]" },
        refusals: GENERATES,
    },
    Operation {
        action: Action::Chat,
        paths: &["/v1/chat/completions", "/chat/completions"],
        says: "Answers a conversation, through the model's own template.",
        input: Input::Fields(
            "ChatCompletionRequest",
            &[
                fields::conversation,
                fields::sampling,
                fields::options,
                fields::chat,
                fields::probabilities,
                fields::probabilities_after_sampling,
                fields::stream_options,
                fields::meaningless,
                fields::other_samplers,
            ],
        ),
        output: Output::Answer { whole: "ChatCompletion", event: "ChatCompletionEvent", end: "[DONE]" },
        refusals: GENERATES,
    },
    Operation {
        action: Action::ApplyTemplate,
        paths: &["/apply-template"],
        says: "Renders a conversation by the chat template; nothing is generated.",
        input: Input::Fields("ApplyTemplateRequest", &[fields::conversation, fields::meaningless]),
        output: Output::Object("TemplatedPrompt"),
        refusals: &[InvalidRequest, Timeout, TooLarge, UnsupportedMedia, NotSupported, Server, Unavailable],
    },
    Operation {
        action: Action::Tokenize,
        paths: &["/tokenize"],
        says: "Tokenizes a text.",
        input: Input::Fields("TokenizeRequest", &[fields::tokenize]),
        output: Output::Object("Tokens"),
        refusals: READS,
    },
    Operation {
        action: Action::Detokenize,
        paths: &["/detokenize"],
        says: "Decodes token ids; bytes that are not UTF-8 become U+FFFD.",
        input: Input::Fields("DetokenizeRequest", &[fields::detokenize]),
        output: Output::Object("Text"),
        refusals: READS,
    },
];

/// True if a request has a body that its route reads.
pub fn takes_fields(route: &str, method: &Method) -> bool {
    let of_route = OPERATIONS.iter().find(|operation| operation.paths.contains(&route));
    method == Method::POST && of_route.is_some_and(|operation| matches!(operation.input, Input::Fields(..)))
}
