//! One file per command.

pub mod bench;
pub mod inspect;
pub mod logits;
pub mod quantize;
pub mod run;
