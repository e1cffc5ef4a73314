//! Heads of a layer, the errors of attention, and the checks that a job passes before any arithmetic.

use super::AttentionJob;

/// Largest supported head; bounds the kernels' buffers.
pub(super) const HEAD_DIM_MAX: usize = 256;

/// Query heads that share one key-value head are at most this many.
const GROUP_MAX: usize = 256;

/// Heads of one layer, checked once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    query_heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl AttentionShape {
    /// `query_heads` heads of `head_dim` dimensions, in equal groups on `kv_heads` key-value heads.
    ///
    /// # Errors
    /// If `head_dim` is not 32, 64, ... 256, or the heads do not divide into groups of 1 to 256.
    pub fn new(query_heads: usize, kv_heads: usize, head_dim: usize) -> Result<Self, AttentionError> {
        if head_dim == 0 || !head_dim.is_multiple_of(32) || head_dim > HEAD_DIM_MAX {
            return Err(AttentionError::HeadDim { head_dim });
        }
        let groups = kv_heads > 0 && query_heads > 0 && query_heads.is_multiple_of(kv_heads);
        if !groups || query_heads / kv_heads > GROUP_MAX {
            return Err(AttentionError::HeadGroups { query_heads, kv_heads });
        }
        Ok(Self { query_heads, kv_heads, head_dim })
    }

    /// Heads of a query row.
    pub fn query_heads(&self) -> usize {
        self.query_heads
    }

    /// Heads of a stored row.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Dimensions of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Query heads that share one key-value head.
    pub fn heads_per_kv(&self) -> usize {
        self.query_heads / self.kv_heads
    }

    /// The f32 nearest to `log2(e) / sqrt(head_dim)`, which turns a dot product into an exponent of two.
    pub fn score_scale(&self) -> f32 {
        // For every supported head_dim the f64 quotient is far enough from the middle of two f32 that rounding twice
        // equals rounding once; the goldens cover all eight.
        #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the rule")]
        let scale = (std::f64::consts::LOG2_E / (self.head_dim as f64).sqrt()) as f32;
        scale
    }
}

/// Reasons to refuse attention. No failure changes a page's other rows or another job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttentionError {
    /// The head is no multiple of 32, or too large.
    #[error("head of {head_dim} dimensions: need 32, 64, ... {HEAD_DIM_MAX}")]
    HeadDim {
        /// The number refused.
        head_dim: usize,
    },
    /// Query heads do not divide into groups.
    #[error("{query_heads} query heads on {kv_heads} key-value heads: need equal groups of 1 to {GROUP_MAX}")]
    HeadGroups {
        /// Query heads given.
        query_heads: usize,
        /// Key-value heads given.
        kv_heads: usize,
    },
    /// A slice has the wrong length.
    #[error("{what}: need {need} elements, have {have}")]
    Length {
        /// Name of the slice.
        what: &'static str,
        /// Elements needed.
        need: usize,
        /// Elements given.
        have: usize,
    },
    /// An index is past the end.
    #[error("{what} {index} of {count}")]
    OutOfRange {
        /// Name of the index.
        what: &'static str,
        /// The index given.
        index: usize,
        /// Number of elements; the index must be below it.
        count: usize,
    },
    /// A window that shows nothing.
    #[error("a window of 0 positions shows nothing")]
    EmptyWindow,
    /// A page that some query sees was not given.
    #[error("page {page} is needed but missing")]
    MissingPage {
        /// Absolute page index.
        page: usize,
    },
    /// A number that must be finite is not.
    #[error("{what} {row} is not finite")]
    NotFinite {
        /// `key`, `value` (of a stored row) or `query row` (its query, a score or its result).
        what: &'static str,
        /// Row within the page, or query row within the job.
        row: usize,
    },
    /// A visible value's scale is negative or not finite: the page is damaged.
    #[error("page {page} row {row}: value scale is negative or not finite")]
    BadValueScale {
        /// Absolute page index.
        page: usize,
        /// Row within the page.
        row: usize,
    },
}

/// Fails unless `what` has exactly `need` elements.
pub(super) fn check_length(what: &'static str, have: usize, need: usize) -> Result<(), AttentionError> {
    if have == need { Ok(()) } else { Err(AttentionError::Length { what, need, have }) }
}

impl<'a> AttentionJob<'a> {
    /// Checks every length of the job and of its output.
    pub(crate) fn check(&self, out: &[f32]) -> Result<(), AttentionError> {
        let (shape, rows) = (&self.shape, self.positions.len());
        if self.kv_head >= shape.kv_heads {
            return Err(AttentionError::OutOfRange { what: "kv_head", index: self.kv_head, count: shape.kv_heads });
        }
        if self.window == Some(0) {
            return Err(AttentionError::EmptyWindow);
        }
        check_length("queries", self.queries.len(), rows * shape.query_heads * shape.head_dim)?;
        check_length("out", out.len(), rows * shape.heads_per_kv() * shape.head_dim)
    }

    /// The query vectors of one row, one after the other: `[heads_per_kv * head_dim]`.
    pub(crate) fn query_row(&self, row: usize) -> &'a [f32] {
        let columns = self.shape.heads_per_kv() * self.shape.head_dim;
        &self.queries[row * self.shape.query_heads * self.shape.head_dim + self.kv_head * columns..][..columns]
    }

    /// The bytes of the page with an absolute index.
    pub(crate) fn page_bytes(&self, index: usize) -> Result<&'a [u8], AttentionError> {
        let page = (self.page)(index).ok_or(AttentionError::MissingPage { page: index })?;
        check_length("page", page.len(), self.layout.page_bytes(&self.shape))?;
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn score_scales_match_exact_arithmetic() {
        let golden = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/attention/attention.json"));
        let golden: serde_json::Value = serde_json::from_str(golden).unwrap();
        for head_dim in (32..=HEAD_DIM_MAX).step_by(32) {
            let scale = AttentionShape::new(1, 1, head_dim).unwrap().score_scale();
            let expected = golden["score_scales"][head_dim.to_string()].as_str().unwrap();
            assert_eq!(format!("{:08x}", scale.to_bits()), expected, "head_dim {head_dim}");
        }
    }

    #[test]
    fn impossible_shapes_are_refused() {
        for head_dim in [0, 16, 33, 288] {
            assert_eq!(AttentionShape::new(1, 1, head_dim), Err(AttentionError::HeadDim { head_dim }));
        }
        for (query_heads, kv_heads) in [(0, 1), (1, 0), (3, 2), (2, 3), (257, 1), (0, 0)] {
            let refused = Err(AttentionError::HeadGroups { query_heads, kv_heads });
            assert_eq!(AttentionShape::new(query_heads, kv_heads, 32), refused);
        }
    }
}
