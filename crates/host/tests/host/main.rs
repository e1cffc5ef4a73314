//! The engine's door: what goes through it, and audits.

mod audits;
mod door;
mod world;
