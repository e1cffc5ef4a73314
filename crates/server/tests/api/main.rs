//! The server as its clients see it, through HTTP.

mod client;
mod completion;
mod openai;
mod world;
