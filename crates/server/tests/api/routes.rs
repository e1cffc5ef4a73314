//! The same question on every route that generates text, streamed and whole, with its answers.

use muser_synthetic::scripted::{Script, Then, scripted};
use serde_json::{Value, json};

use crate::client::Answer;
use crate::world::{Setup, World, load};

/// A route that generates text, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub route: Route,
    pub stream: bool,
}

/// A route that generates text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Native,
    Texts,
    Chat,
}

/// An answer, whatever its shape was.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    pub text: String,
    /// OpenAI's word, which llama.cpp's are translated to.
    pub finish: String,
    pub generated: u64,
    /// The objects that it came in.
    pub objects: Vec<Value>,
}

pub const WAYS: [Way; 6] = [
    Way { route: Route::Native, stream: false },
    Way { route: Route::Native, stream: true },
    Way { route: Route::Texts, stream: false },
    Way { route: Route::Texts, stream: true },
    Way { route: Route::Chat, stream: false },
    Way { route: Route::Chat, stream: true },
];

/// A server whose model says `tokens` to every conversation, and to every prompt that ends in a line break.
pub fn saying(tokens: &[&[u8]], then: Then) -> World {
    World::start(setup_saying(tokens, then))
}

pub fn setup_saying(tokens: &[&[u8]], then: Then) -> Setup {
    Setup::of(load(scripted(&[Script { trigger: b'\n', tokens, then }], 65536).unwrap()))
}

impl Route {
    pub fn path(self) -> &'static str {
        match self {
            Self::Native => "/completion",
            Self::Texts => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }
}

impl Way {
    /// `options` with a question, or with the prompt `text` where the route takes one.
    pub fn body(self, text: &str, options: &Value) -> Value {
        let mut body = options.clone();
        body["stream"] = self.stream.into();
        match self.route {
            Route::Native | Route::Texts => body["prompt"] = text.into(),
            Route::Chat => body["messages"] = json!([{"role": "user", "content": text}]),
        }
        if self.stream && self.route != Route::Native {
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    }

    /// The server's answer to `text`, which ends in a line break.
    #[track_caller]
    pub fn ask(self, world: &World, text: &str, options: &Value) -> Said {
        self.read(&world.post(self.route.path(), &self.body(text, options)))
    }

    #[track_caller]
    pub fn read(self, answer: &Answer) -> Said {
        let objects = if self.stream { answer.chunks() } else { vec![answer.ok()] };
        let parts = objects.iter().filter_map(|object| self.text(object).as_str());
        let (text, last) = (parts.collect(), objects.last().unwrap());
        let finishes: Vec<&str> = objects.iter().filter_map(|object| self.finish(object)).collect();
        let [finish] = *finishes else { panic!("not one end: {objects:?}") };
        let generated = match self.route {
            Route::Native => &last["tokens_predicted"],
            Route::Texts | Route::Chat => &last["usage"]["completion_tokens"],
        };
        let generated = generated.as_u64().unwrap_or_else(|| panic!("no count of tokens in {last}"));
        Said { text, finish: finish.into(), generated, objects }
    }

    fn text(self, object: &Value) -> &Value {
        match self.route {
            Route::Native => &object["content"],
            Route::Texts => &object["choices"][0]["text"],
            Route::Chat if self.stream => &object["choices"][0]["delta"]["content"],
            Route::Chat => &object["choices"][0]["message"]["content"],
        }
    }

    fn finish(self, object: &Value) -> Option<&str> {
        match self.route {
            Route::Native => match object["stop_type"].as_str()? {
                "eos" | "word" => Some("stop"),
                "limit" => Some("length"),
                other => panic!("no stop type of a finished answer: {other}"),
            },
            Route::Texts | Route::Chat => object["choices"][0]["finish_reason"].as_str(),
        }
    }
}
