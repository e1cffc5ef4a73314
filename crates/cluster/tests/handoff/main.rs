//! Handoffs between two engines over real lanes, on the model that ships with the program and on small random ones.

mod audits;
mod bits;
mod bytes;
mod corruption;
mod delta;
mod disconnects;
mod failures;
mod hostile;
mod middle;
mod models;
mod pace;
mod proxy;
#[cfg(target_os = "linux")]
mod sockets;
mod stalls;
mod streaming;
mod trust;
mod world;
