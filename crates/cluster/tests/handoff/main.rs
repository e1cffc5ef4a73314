//! Handoffs between two engines over real lanes, on the model that ships with the program.

mod bits;
mod failures;
mod pace;
mod world;
