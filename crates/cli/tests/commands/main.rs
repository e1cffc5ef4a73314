//! The commands as users run them: what they print, which files they leave, and with which exit code they end.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../hub/tests/support/mod.rs"]
mod server;

mod audit;
mod bench;
mod chat;
mod cluster;
mod config;
mod conformance;
mod descriptors;
mod draining;
mod enroll;
mod folder_files;
mod handoff_clients;
mod handoff_strangers;
mod handoff_trouble;
mod inspect;
mod interrupts;
mod logits;
mod machine;
mod plan;
mod prefill;
mod produce;
mod pull;
mod quantize;
mod run;
mod sampler;
mod serve;
mod serving;
mod stops;
mod streams;
mod usage;
