//! The engine as its callers see it, on small random models of every architecture and both KV layouts.

mod company;
mod failures;
mod memory;
mod prefixes;
mod scheduling;
mod world;
