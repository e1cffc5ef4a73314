//! The server as its clients see it, through HTTP.

mod access;
mod client;
mod completion;
mod openai;
mod metrics;
mod stopping;
mod world;
