//! Tests of the engine's host: requests, audits, and devices that fail.

mod audits;
mod device;
mod door;
mod world;
