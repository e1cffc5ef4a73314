//! The engine's door: what goes through it, audits, and devices that fail.

mod audits;
mod device;
mod door;
mod world;
