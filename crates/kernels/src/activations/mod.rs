//! Activation rows as matrix multiplication reads them: quantised once per row and format (rule 2 of
//! `docs/numerics.md`), each row in memory of its own so that rows can be filled in parallel.

pub(crate) mod scalar;

/// Below this largest magnitude a group is all zero: 2^-100.
pub(crate) const SMALLEST_MAXIMUM: f32 = f32::from_bits((127 - 100) << 23);
/// The largest code.
pub(crate) const LARGEST_CODE: f32 = 127.0;

/// Format in which a matrix reads its activations: bits per code and codes per scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationFormat {
    /// 8-bit codes, one scale per 256: for weights with integer sub-scales.
    Int8x256,
    /// 8-bit codes, one scale per 32: for weights with one float scale per block.
    Int8x32,
    /// The f32 values themselves: for float weights.
    Float,
}

/// Set of the activation formats that the consumers of one vector read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FormatSet(u8);

impl FormatSet {
    /// No format.
    pub const EMPTY: Self = Self(0);
    /// Every format.
    pub const ALL: Self = Self(7);

    /// This set and `format`.
    #[must_use]
    pub const fn with(self, format: ActivationFormat) -> Self {
        Self(self.0 | 1 << format as u8)
    }

    /// True if `format` is in the set.
    pub const fn contains(self, format: ActivationFormat) -> bool {
        self.0 >> format as u8 & 1 == 1
    }
}

impl std::ops::BitOr for FormatSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// 256 codes with one scale.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Group256 {
    /// The codes; zeros after the last value of a short group.
    pub(crate) codes: [i8; 256],
    /// Sum of each 16 codes, for weights stored with an offset.
    pub(crate) sums16: [i16; 16],
    /// Sum of each 32 codes, for mins.
    pub(crate) sums32: [i16; 8],
    /// `dy`.
    pub(crate) scale: f32,
}

/// 32 codes with one scale.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Group32 {
    /// The codes; zeros after the last value of a short group.
    pub(crate) codes: [i8; 32],
    /// Sum of each 16 codes, for weights stored with an offset.
    pub(crate) sums16: [i16; 2],
    /// Sum of all codes, for mins.
    pub(crate) sum: f32,
    /// `dy`.
    pub(crate) scale: f32,
}

impl Group256 {
    const ZERO: Self = Self { codes: [0; 256], sums16: [0; 16], sums32: [0; 8], scale: 0.0 };
}

impl Group32 {
    const ZERO: Self = Self { codes: [0; 32], sums16: [0; 2], sum: 0.0, scale: 0.0 };
}

/// One activation row in every format; only those it was last quantised to are meaningful.
#[derive(Clone, Debug)]
pub struct ActivationRow {
    pub(crate) cols: usize,
    pub(crate) int8x256: Vec<Group256>,
    pub(crate) int8x32: Vec<Group32>,
    pub(crate) floats: Vec<f32>,
}

impl ActivationRow {
    fn new(cols_max: usize) -> Self {
        Self {
            cols: cols_max,
            int8x256: vec![Group256::ZERO; cols_max.div_ceil(256)],
            int8x32: vec![Group32::ZERO; cols_max.div_ceil(32)],
            floats: vec![0.0; cols_max],
        }
    }

    /// Number of values.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The codes of `format`, one per value; none for [`ActivationFormat::Float`].
    pub fn codes(&self, format: ActivationFormat) -> impl Iterator<Item = i8> {
        let (long, short) = self.groups(format);
        let codes = long.iter().flat_map(|group| group.codes).chain(short.iter().flat_map(|group| group.codes));
        codes.take(self.cols)
    }

    /// The scales of `format`, one per group; none for [`ActivationFormat::Float`].
    pub fn scales(&self, format: ActivationFormat) -> impl Iterator<Item = f32> {
        let (long, short) = self.groups(format);
        long.iter().map(|group| group.scale).chain(short.iter().map(|group| group.scale))
    }

    /// The values, if the row was quantised with [`ActivationFormat::Float`] among its formats.
    pub fn floats(&self) -> &[f32] {
        &self.floats[..self.cols]
    }

    /// The groups of 256.
    pub(crate) fn int8x256(&self) -> &[Group256] {
        &self.int8x256[..self.cols.div_ceil(256)]
    }

    /// The groups of 32.
    pub(crate) fn int8x32(&self) -> &[Group32] {
        &self.int8x32[..self.cols.div_ceil(32)]
    }

    /// The groups of `format`; those of the other length are none.
    fn groups(&self, format: ActivationFormat) -> (&[Group256], &[Group32]) {
        match format {
            ActivationFormat::Int8x256 => (self.int8x256(), &[]),
            ActivationFormat::Int8x32 => (&[], self.int8x32()),
            ActivationFormat::Float => (&[], &[]),
        }
    }

    /// Zeros in every format, for a row that held a NaN or an infinity.
    pub(crate) fn clear(&mut self) {
        self.int8x256[..self.cols.div_ceil(256)].fill(Group256::ZERO);
        self.int8x32[..self.cols.div_ceil(32)].fill(Group32::ZERO);
        self.floats[..self.cols].fill(0.0);
    }
}

/// Activation rows of one step. All memory is taken by [`Activations::new`].
#[derive(Clone, Debug)]
pub struct Activations {
    rows: Vec<ActivationRow>,
    used: usize,
    cols: usize,
    cols_max: usize,
}

impl Activations {
    /// Room for `rows_max` rows of `cols_max` values; starts at that size, all zero.
    pub fn new(rows_max: usize, cols_max: usize) -> Self {
        Self { rows: vec![ActivationRow::new(cols_max); rows_max], used: rows_max, cols: cols_max, cols_max }
    }

    /// Makes this `rows` rows of `cols` values. What the rows hold is undefined until they are quantised again.
    ///
    /// # Panics
    /// If that is more than the capacity.
    pub fn resize(&mut self, rows: usize, cols: usize) {
        assert!(
            rows <= self.rows.len() && cols <= self.cols_max,
            "{rows} x {cols} activations in room for {} x {}",
            self.rows.len(),
            self.cols_max
        );
        self.used = rows;
        self.cols = cols;
        for row in &mut self.rows[..rows] {
            row.cols = cols;
        }
    }

    /// Rows in use.
    pub fn rows(&self) -> usize {
        self.used
    }

    /// Values per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `row`.
    ///
    /// # Panics
    /// If there are not so many rows.
    pub fn row(&self, row: usize) -> &ActivationRow {
        &self.rows[..self.used][row]
    }

    /// All rows in use, to be filled; parts of the slice may be filled by different threads.
    pub fn rows_mut(&mut self) -> &mut [ActivationRow] {
        &mut self.rows[..self.used]
    }
}
