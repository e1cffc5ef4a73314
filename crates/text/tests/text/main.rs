//! Tests of the public API.

#[path = "../support/chat.rs"]
mod chat_support;
#[path = "../support/hostile_corpus.rs"]
mod corpus;
#[path = "../support/mod.rs"]
mod support;

mod chat;
mod expressions;
mod golden;
mod hostile;
mod hostile_templates;
mod loading;
mod naive;
mod properties;
mod random;
mod sentence_piece;
mod stop_strings;
mod stream;
