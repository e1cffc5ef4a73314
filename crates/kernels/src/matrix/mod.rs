//! Weight matrices in the kernels' layout: 16 output rows side by side, so that one SIMD lane is one output row.
//!
//! A [`Scan`] looks at the tensor as it lies in the file, a [`MatrixPlan`] knows how many bytes the packed form takes
//! and fills it panel by panel, and a [`Matrix`] is the finished form inside an [`Arena`]. Packing changes no value:
//! every element of a product is still the one of `docs/numerics.md`, rules 1 to 4b.

pub(crate) mod format;
mod pack;
mod scan;

use std::sync::Arc;

pub use format::PANEL_ROWS;
pub use scan::{Form, Scan};

use crate::activations::ActivationFormat;
use crate::arena::{Arena, ArenaRange};
use crate::formats::{WeightClass, WeightType};
use format::{Format, with_format};

/// Reasons for which a tensor cannot be a matrix. Each is a fault of the file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MatrixError {
    /// There is nothing to multiply, or not a whole number of blocks.
    #[error("{cols} columns are not one or more whole blocks of {ty}")]
    Columns {
        /// Type of the tensor.
        ty: WeightType,
        /// Its columns.
        cols: usize,
    },
    /// The tensor's bytes do not fit its shape.
    #[error("{got} bytes where the shape asks for {expected}")]
    Bytes {
        /// Bytes that the shape asks for; `usize::MAX` stands for more than that.
        expected: usize,
        /// Bytes there are.
        got: usize,
    },
    /// A scale, min or float weight is NaN or infinite.
    #[error("row {row} of a {ty} matrix has a NaN or infinite value in block {block}")]
    NonFinite {
        /// Type of the tensor.
        ty: WeightType,
        /// Row of the value.
        row: usize,
        /// Block within the row.
        block: usize,
    },
}

/// The packed form of a tensor, before it has memory.
#[derive(Clone, Debug)]
pub struct MatrixPlan {
    ty: WeightType,
    rows: usize,
    cols: usize,
    form: Form,
    raw_row_bytes: usize,
    panel_bytes: usize,
}

impl MatrixPlan {
    /// Plans a matrix of `rows` output rows by `cols` inputs, stored row by row in `raw` as in the file.
    ///
    /// # Errors
    /// If `raw` does not fit the shape or holds a scale that is NaN or infinite.
    pub fn new(ty: WeightType, rows: usize, cols: usize, raw: &[u8]) -> Result<Self, MatrixError> {
        let plan = Self::with_scan(ty, rows, cols, Scan { form: Form::HalfSteps })?;
        plan.check_length(raw)?;
        Self::with_scan(ty, rows, cols, Scan::of(ty, cols, 0, raw)?)
    }

    /// As [`MatrixPlan::new`] where `scan` is the merged scan of the **whole** tensor as stored in the file, of which
    /// the matrix may be a part (one expert of many).
    ///
    /// # Errors
    /// If the shape is impossible.
    pub fn with_scan(ty: WeightType, rows: usize, cols: usize, scan: Scan) -> Result<Self, MatrixError> {
        let raw_row_bytes = ty.row_bytes(cols).filter(|&bytes| bytes > 0).ok_or(MatrixError::Columns { ty, cols })?;
        let too_large = MatrixError::Bytes { expected: usize::MAX, got: 0 };
        let row_order = raw_row_bytes.checked_mul(PANEL_ROWS);
        let panel_bytes = match scan.form {
            Form::General => row_order,
            _ => with_format!(ty, F => (cols / F::UNIT_COLS).checked_mul(F::UNIT_BYTES), row_order),
        };
        let panel_bytes = panel_bytes.filter(|bytes| bytes.checked_mul(rows.div_ceil(PANEL_ROWS)).is_some());
        let panel_bytes = panel_bytes.filter(|_| raw_row_bytes.checked_mul(rows).is_some()).ok_or(too_large)?;
        Ok(Self { ty, rows, cols, form: scan.form, raw_row_bytes, panel_bytes })
    }

    /// Output rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Panels of 16 output rows; the last may be partly padding.
    pub fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL_ROWS)
    }

    /// Bytes of one panel.
    pub fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// Bytes of all panels: the size of the matrix's arena range.
    pub fn bytes(&self) -> usize {
        self.panels() * self.panel_bytes
    }

    /// Packs panel `panel` of `raw`, the whole tensor as in the file, into `out`. Different panels may be filled by
    /// different threads; panel `i` belongs at byte `i * panel_bytes()` of the range.
    ///
    /// # Panics
    /// If `raw` or `out` has not the planned size or there are not so many panels.
    pub fn fill_panel(&self, raw: &[u8], panel: usize, out: &mut [u8]) {
        assert!(self.check_length(raw).is_ok(), "{} bytes are not the planned tensor", raw.len());
        assert_eq!(out.len(), self.panel_bytes, "bytes of a panel");
        let first = panel * PANEL_ROWS;
        let last = self.rows.min(first + PANEL_ROWS);
        let rows = &raw[first * self.raw_row_bytes..last * self.raw_row_bytes];
        match self.form {
            Form::General => pack::copy_rows(rows, out),
            form => with_format!(
                self.ty,
                F => pack::fill_panel::<F>(rows, self.raw_row_bytes, form, out),
                pack::copy_rows(rows, out)
            ),
        }
    }

    fn check_length(&self, raw: &[u8]) -> Result<(), MatrixError> {
        let expected = self.rows * self.raw_row_bytes;
        if raw.len() == expected { Ok(()) } else { Err(MatrixError::Bytes { expected, got: raw.len() }) }
    }
}

/// A packed weight matrix: `rows` output rows by `cols` inputs, in panels of 16 rows.
#[derive(Clone, Debug)]
pub struct Matrix {
    plan: MatrixPlan,
    arena: Arc<Arena>,
    range: ArenaRange,
    scale: Option<f32>,
}

impl Matrix {
    /// The matrix of `plan`, whose panels were filled into `range` of `arena`.
    ///
    /// # Panics
    /// If `range` has not the planned size.
    pub fn new(plan: MatrixPlan, arena: Arc<Arena>, range: ArenaRange) -> Self {
        assert_eq!(range.bytes(), plan.bytes(), "bytes of a matrix and of its range");
        Self { plan, arena, range, scale: None }
    }

    /// This matrix with every finished output element multiplied by `scale`: the `.scale` of `NVFP4` tensors.
    #[must_use]
    pub fn with_scale(self, scale: f32) -> Self {
        Self { scale: Some(scale), ..self }
    }

    /// A matrix in an arena of its own, packed by the calling thread: for tests and tools.
    ///
    /// # Errors
    /// If `raw` does not fit the shape or holds a scale that is NaN or infinite.
    ///
    /// # Panics
    /// If the system has not enough memory.
    pub fn packed(ty: WeightType, rows: usize, cols: usize, raw: &[u8]) -> Result<Self, MatrixError> {
        let plan = MatrixPlan::new(ty, rows, cols, raw)?;
        let mut ranges = crate::arena::ArenaPlan::new();
        let range = ranges.add(plan.bytes());
        let mut builder = ranges.allocate().unwrap_or_else(|error| panic!("{error}"));
        for slice in builder.slices_mut() {
            for (panel, out) in slice.chunks_exact_mut(plan.panel_bytes()).enumerate() {
                plan.fill_panel(raw, panel, out);
            }
        }
        Ok(Self::new(plan, builder.freeze(), range))
    }

    /// Output rows.
    pub fn rows(&self) -> usize {
        self.plan.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.plan.cols
    }

    /// Panels of 16 output rows; the last may be partly padding.
    pub fn panels(&self) -> usize {
        self.plan.panels()
    }

    /// The type as stored in the file.
    pub fn weight_type(&self) -> WeightType {
        self.plan.ty
    }

    /// Bytes of the packed form, all of which one token reads.
    pub fn bytes(&self) -> usize {
        self.plan.bytes()
    }

    /// Activation format that this matrix reads.
    pub fn activation(&self) -> ActivationFormat {
        match self.plan.ty.class() {
            WeightClass::IntegerScales => ActivationFormat::Int8x256,
            WeightClass::FloatScales => ActivationFormat::Int8x32,
            WeightClass::Float => ActivationFormat::Float,
        }
    }

    pub(crate) fn scale(&self) -> Option<f32> {
        self.scale
    }

    pub(crate) fn form(&self) -> Form {
        self.plan.form
    }

    /// Output rows of `panel` that are not padding.
    pub(crate) fn panel_rows(&self, panel: usize) -> usize {
        PANEL_ROWS.min(self.plan.rows - panel * PANEL_ROWS)
    }

    /// The packed bytes of `panel`.
    pub(crate) fn panel(&self, panel: usize) -> &[u8] {
        &self.arena.bytes(self.range)[panel * self.plan.panel_bytes..][..self.plan.panel_bytes]
    }
}
