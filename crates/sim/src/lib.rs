//! Deterministic simulation of handoffs: producers and decoders over the cores of `muser-handoff` and the replay ledger,
//! with a network, disks and a clock driven by a seed.
//!
//! [`run`] plays one seed and checks the invariants; [`run_seeds`] plays many and counts their events. The same seed
//! always gives the same story.
//!
//! - `shape` is the model: which pages a prompt has, and what is in each of them. It is the oracle of all checks.
//! - `pipe` is one direction of a connection, `fault` what goes wrong with a frame on it, `frame` takes frames apart.
//! - `disk` is the ledger's storage, which forgets, tears and fails.
//! - `trust` is what a decoder knows of its producers, `change` what happens to that at which step of a handoff, and `turn`
//!   the engine's: whether pages that came become visible is asked of the real judgement, and checked against what happened.
//! - `decoder` and `producer` carry out what the cores of the two ends ask for, and `lane` is a connection between them.
//! - `world` lets time pass and processes die, `coverage` counts, `runner` plays many seeds.
//!
//! There is no socket and no clock here, and no thread but to play seeds side by side.

#![forbid(unsafe_code)]

mod attempt;
mod change;
mod context;
mod coverage;
mod decoder;
mod disk;
mod fault;
mod frame;
mod happening;
mod keys;
mod lane;
mod pipe;
mod producer;
mod record;
mod runner;
mod schedule;
mod shape;
mod store;
mod trust;
mod turn;
mod violation;
mod world;

pub use coverage::{Coverage, Mark};
pub use runner::{SeedFailure, Summary, run_seeds};
pub use violation::Violation;
pub use world::{Story, Telling, run};
