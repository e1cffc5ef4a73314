//! One token stream has one set of logits: the same bits for every way of computing them.
//!
//! Whole prompt or chunks of any size, one thread or three, portable code or the widest instructions, alone or in a batch,
//! straight ahead or after a rewind: the suite compares all logits, and the cache's pages, bit by bit with one portable,
//! single-threaded pass over the whole prompt. The models are random and tiny, and between them use every weight type, both
//! architectures, windows, GQA, biases, a tied head and rotary factors.
//!
//! - `models` generates them, `runs` computes and compares.
//! - `pairwise` makes the covering array that `cover` goes through.
//! - `borders`: windows, pages and segments of attention, and what a window means.
//! - `rewinds`, `batches`, `stages`: the other ways through an executor.
//! - `failures`: what is refused changes nothing, what is not finite concerns its own sequence alone.

mod batches;
mod borders;
mod cover;
mod failures;

mod models;
mod pairwise;
mod rewinds;
mod runs;
mod stages;
