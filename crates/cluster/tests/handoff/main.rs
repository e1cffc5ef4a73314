//! Handoffs between two engines over real lanes, on the model that ships with the program and on small random ones.

mod bits;
mod delta;
mod disconnects;
mod failures;
mod models;
mod pace;
mod proxy;
mod stalls;
mod world;
