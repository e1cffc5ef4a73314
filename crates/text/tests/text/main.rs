//! Tests of the public API.

#[path = "../support/mod.rs"]
mod support;

mod golden;
mod hostile;
mod loading;
mod naive;
mod properties;
mod random;
mod sentence_piece;
mod stream;
