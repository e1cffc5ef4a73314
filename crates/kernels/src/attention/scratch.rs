//! Buffers of one thread's attention work, allocated once.

use super::{AttentionError, AttentionShape};

/// Buffers for jobs of up to a number of rows of one shape. One thread uses it at a time.
#[derive(Debug)]
pub struct AttentionScratch {
    rows_max: usize,
}

impl AttentionScratch {
    /// Buffers for jobs of up to `rows_max` query rows.
    pub fn new(_shape: &AttentionShape, rows_max: usize) -> Self {
        Self { rows_max }
    }

    /// Fails if a job of `rows` rows does not fit.
    pub(super) fn check(&self, rows: usize) -> Result<(), AttentionError> {
        if rows > self.rows_max {
            return Err(AttentionError::Length { what: "scratch rows", need: rows, have: self.rows_max });
        }
        Ok(())
    }
}
