//! Attention through its public interface, on every implementation that this machine can run.

mod accuracy;
mod invariance;
mod sequence;
mod twins;
