//! Rules about the source itself, enforced as tests.

#![forbid(unsafe_code)]
