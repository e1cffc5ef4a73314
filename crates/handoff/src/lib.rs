//! Both ends of a handoff as pure state machines: events in, effects out.
//!
//! `muser-wire` defines the messages of a lane. This crate defines what an end does about them, and in which order: the
//! [`DecoderCore`] has an accepted handoff recorded before it hands out a page, and its producer judged again before the
//! pages count; the [`ProducerCore`] judges the peer before it computes, and once more before it commits. `muser-cluster`
//! carries the effects out with sockets, files and an engine, `muser-sim` in simulated worlds.
//!
//! There is no socket, file, thread or clock here; a moment is an argument, in milliseconds from any fixed point.

#![forbid(unsafe_code)]

mod decoder;
mod producer;

pub use decoder::{DecoderCore, DecoderEffect, HandoffError, Order, PendingEntry};
pub use producer::{CacheShape, ProducerCore, ProducerEffect, ReadyPages, SendStep};
