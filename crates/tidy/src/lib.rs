//! Rules about the source itself, enforced as tests.
