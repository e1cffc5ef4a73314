//! The server as its clients see it, through HTTP.

mod access;
mod blame;
mod budgets;
mod cases;
mod client;
mod clients;
mod completion;
mod connections;
mod exact;
mod limits;
mod limits_document;
mod metrics;
mod openai;
mod openapi;
mod page;
mod pool;
mod probabilities;
mod producers;
mod realms;
mod routes;
mod said;
mod solo;
mod stopping;
mod tls;
mod world;
