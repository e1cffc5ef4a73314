//! One file per command.

pub mod bench;
pub mod chat;
pub mod cluster;
pub mod completions;
pub mod config;
pub mod conformance;
pub mod demo;
pub mod doctor;
pub mod enroll;
pub mod inspect;
pub mod logits;
pub mod make_model;
pub mod plan;
pub mod produce;
pub mod pull;
pub mod quantize;
pub mod run;
pub mod serve;
pub mod tokenize;
