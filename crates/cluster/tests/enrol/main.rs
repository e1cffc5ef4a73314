//! Enrolment over loopback sockets, between two engines with the model that ships with the program.

#[path = "../handoff/world.rs"]
#[allow(dead_code, reason = "the handoff tests use more of it")]
mod handoff_world;
mod refusals;
mod strangers;
mod succeeds;
mod world;
