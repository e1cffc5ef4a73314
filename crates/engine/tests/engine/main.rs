//! The engine as its callers see it, on the shipped model and on small random ones of every architecture, in both KV layouts.

mod audits;
mod company;
mod device;
mod failures;
mod installation;
mod memory;
mod prefixes;
mod provenance;
mod scheduling;
mod shipped;
mod suppression;
mod turns;
mod world;
