//! The server as its clients see it, through HTTP.

mod access;
mod client;
mod completion;
mod metrics;
mod openai;
mod stopping;
mod page;
mod routes;
mod said;
mod world;
