//! Activation rows as matrix multiplication reads them: quantised once per row and format (rule 2 of
//! `docs/numerics.md`), each row in memory of its own so that rows can be filled in parallel.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
pub(crate) mod scalar;

/// Codes in the longest group; every row is padded with zero codes to a multiple of it.
const PADDING: usize = 256;
/// Below this largest magnitude a group is all zero: 2^-100.
pub(crate) const SMALLEST_MAXIMUM: f32 = f32::from_bits((127 - 100) << 23);
/// The largest code.
pub(crate) const LARGEST_CODE: f32 = 127.0;

/// What a matrix wants its activations as: bits per code and codes per scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationFormat {
    /// 8-bit codes, one scale per 256: for weights with integer sub-scales.
    Int8x256,
    /// 8-bit codes, one scale per 32: for weights with one float scale per block.
    Int8x32,
    /// The f32 values themselves: for float weights.
    Float,
}

/// The formats that the consumers of one vector want.
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

    /// Whether `format` is in the set.
    pub const fn contains(self, format: ActivationFormat) -> bool {
        self.0 >> format as u8 & 1 == 1
    }
}

impl FromIterator<ActivationFormat> for FormatSet {
    fn from_iter<I: IntoIterator<Item = ActivationFormat>>(formats: I) -> Self {
        formats.into_iter().fold(Self::EMPTY, Self::with)
    }
}

/// One row as 8-bit codes with a scale per group.
#[derive(Clone, Debug)]
pub(crate) struct QuantisedRow {
    /// Codes, zero-padded to a multiple of 256.
    pub(crate) codes: Vec<i8>,
    /// One scale per group.
    pub(crate) scales: Vec<f32>,
    /// Sum of each 16 codes, for weights stored with an offset.
    pub(crate) sums16: Vec<i16>,
    /// Sum of each 32 codes, for integer mins.
    pub(crate) sums32: Vec<i16>,
    /// The same as f32, for float mins.
    pub(crate) float_sums32: Vec<f32>,
}

impl QuantisedRow {
    fn new(padded: usize, group: usize) -> Self {
        Self {
            codes: vec![0; padded],
            scales: vec![0.0; padded / group],
            sums16: vec![0; padded / 16],
            sums32: vec![0; padded / 32],
            float_sums32: vec![0.0; padded / 32],
        }
    }

    /// The codes of group `group`, of `N` codes.
    #[inline]
    pub(crate) fn group<const N: usize>(&self, group: usize) -> &[i8; N] {
        &self.codes.as_chunks().0[group]
    }

    /// The sums of 16 codes that belong to group `group`, which has `N` of them.
    #[inline]
    pub(crate) fn group_sums16<const N: usize>(&self, group: usize) -> &[i16; N] {
        &self.sums16.as_chunks().0[group]
    }

    /// The sums of 32 codes that belong to group `group`, which has `N` of them.
    #[inline]
    pub(crate) fn group_sums32<const N: usize>(&self, group: usize) -> &[i16; N] {
        &self.sums32.as_chunks().0[group]
    }

    /// Zeros in place of the first `padded` codes and all that belongs to them.
    fn clear(&mut self, padded: usize) {
        let group = self.codes.len() / self.scales.len().max(1);
        self.codes[..padded].fill(0);
        self.scales[..padded / group.max(1)].fill(0.0);
        self.sums16[..padded / 16].fill(0);
        self.sums32[..padded / 32].fill(0);
        self.float_sums32[..padded / 32].fill(0.0);
    }
}

/// One activation row in every format; only those it was last quantised to are meaningful.
#[derive(Clone, Debug)]
pub struct ActivationRow {
    pub(crate) cols: usize,
    pub(crate) int8x256: QuantisedRow,
    pub(crate) int8x32: QuantisedRow,
    pub(crate) floats: Vec<f32>,
}

impl ActivationRow {
    fn new(cols_max: usize) -> Self {
        let padded = cols_max.next_multiple_of(PADDING);
        Self {
            cols: cols_max,
            int8x256: QuantisedRow::new(padded, 256),
            int8x32: QuantisedRow::new(padded, 32),
            floats: vec![0.0; cols_max],
        }
    }

    /// Number of values.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The codes of `format`, one per value; none for [`ActivationFormat::Float`].
    pub fn codes(&self, format: ActivationFormat) -> &[i8] {
        self.quantised(format).map_or(&[], |row| &row.codes[..self.cols])
    }

    /// The scales of `format`, one per group; none for [`ActivationFormat::Float`].
    pub fn scales(&self, format: ActivationFormat) -> &[f32] {
        let group = if format == ActivationFormat::Int8x256 { 256 } else { 32 };
        self.quantised(format).map_or(&[], |row| &row.scales[..self.cols.div_ceil(group)])
    }

    /// The sum of each 16 codes of `format`; none for [`ActivationFormat::Float`].
    pub fn sums16(&self, format: ActivationFormat) -> &[i16] {
        self.quantised(format).map_or(&[], |row| &row.sums16[..self.cols.div_ceil(16)])
    }

    /// The sum of each 32 codes of `format`; none for [`ActivationFormat::Float`].
    pub fn sums32(&self, format: ActivationFormat) -> &[i16] {
        self.quantised(format).map_or(&[], |row| &row.sums32[..self.cols.div_ceil(32)])
    }

    /// The values, if the row was quantised with [`ActivationFormat::Float`] among its formats.
    pub fn floats(&self) -> &[f32] {
        &self.floats[..self.cols]
    }

    fn quantised(&self, format: ActivationFormat) -> Option<&QuantisedRow> {
        match format {
            ActivationFormat::Int8x256 => Some(&self.int8x256),
            ActivationFormat::Int8x32 => Some(&self.int8x32),
            ActivationFormat::Float => None,
        }
    }

    /// Zeros in every format, for a row that held a NaN or an infinity.
    pub(crate) fn clear(&mut self) {
        let padded = self.cols.next_multiple_of(PADDING);
        self.int8x256.clear(padded);
        self.int8x32.clear(padded);
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
