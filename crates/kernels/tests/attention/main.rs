//! Attention through its public interface, on every implementation that this machine can run.

mod accuracy;
mod goldens;
mod invariance;
mod refusals;
mod sequence;
mod twins;
