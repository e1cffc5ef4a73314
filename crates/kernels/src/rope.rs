//! Rotary position embedding (rule 7): the table of angles, made once in f64, and the two ways heads pair their dimensions.
//!
//! The rotation itself is a row kernel: `RowKernels::rope` in [`crate::rows`].

use std::thread;

/// Fewer new rows than this are not worth a thread: they take some milliseconds.
const ROWS_PER_THREAD_MIN: usize = 1024;

/// Pairing of a head's dimensions for rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours: (0, 1), (2, 3), ...
    Norm,
    /// Halves: (i, i + rotated_dims / 2).
    Neox,
}

/// Rotation of head vectors by their position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Index of the angles among the device's tables.
    pub table: usize,
    /// Pairing of the rotated dimensions.
    pub style: RopeStyle,
}

/// Cosines and sines of one position, one per pair of dimensions.
#[derive(Clone, Copy, Debug)]
pub struct RopeAngles<'a> {
    /// `[rotated_dims / 2]`
    pub cos: &'a [f32],
    /// `[rotated_dims / 2]`
    pub sin: &'a [f32],
}

/// Reasons to refuse a table of angles.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RopeError {
    /// Dimensions rotate in pairs.
    #[error("{rotated_dims} rotated dimensions: need a positive even number")]
    OddDims {
        /// The number refused.
        rotated_dims: usize,
    },
    /// The base frequency is not a positive finite number.
    #[error("base frequency {base}: need a positive finite number")]
    BadBase {
        /// The number refused.
        base: f32,
    },
    /// There is one frequency factor per pair.
    #[error("{got} frequency factors for {pairs} pairs of dimensions")]
    FactorCount {
        /// Factors given.
        got: usize,
        /// Pairs of rotated dimensions.
        pairs: usize,
    },
    /// A frequency factor is not a positive finite number.
    #[error("frequency factor {index} is {factor}: need a positive finite number")]
    BadFactor {
        /// Index of the pair.
        index: usize,
        /// The number refused.
        factor: f32,
    },
}

/// Cosine and sine of every position up to a limit, rounded to f32 once: `8 * rotated_dims / 2` bytes a position.
///
/// Computed with a software mathematics library, so that every machine makes the same table.
#[derive(Clone, Debug)]
pub struct RopeTable {
    /// `base^(-2 i / rotated_dims)` of each pair.
    frequencies: Vec<f64>,
    /// Divisors of the angle of each pair, where the file gives them.
    factors: Option<Vec<f64>>,
    /// `[positions][2][pairs]`: cosines, then sines.
    rows: Vec<f32>,
}

impl RopeTable {
    /// The table of `positions` rows for heads of which the first `rotated_dims` dimensions rotate.
    ///
    /// `base` is the file's base frequency; `freq_factors` are the file's divisors of the angle, one per pair.
    ///
    /// # Errors
    /// If `rotated_dims` is odd or zero, there is not one factor per pair, or a number is not positive and finite.
    pub fn new(
        base: f32,
        rotated_dims: usize,
        positions: usize,
        freq_factors: Option<&[f32]>,
    ) -> Result<Self, RopeError> {
        if rotated_dims == 0 || !rotated_dims.is_multiple_of(2) {
            return Err(RopeError::OddDims { rotated_dims });
        }
        if !is_positive_finite(base) {
            return Err(RopeError::BadBase { base });
        }
        let pairs = rotated_dims / 2;
        if let Some(factors) = freq_factors {
            if factors.len() != pairs {
                return Err(RopeError::FactorCount { got: factors.len(), pairs });
            }
            if let Some((index, &factor)) = factors.iter().enumerate().find(|(_, f)| !is_positive_finite(**f)) {
                return Err(RopeError::BadFactor { index, factor });
            }
        }
        let frequency = |i: usize| libm::pow(f64::from(base), -((2 * i) as f64) / rotated_dims as f64);
        let mut table = Self {
            frequencies: (0..pairs).map(frequency).collect(),
            factors: freq_factors.map(|f| f.iter().copied().map(f64::from).collect()),
            rows: Vec::new(),
        };
        table.extend_to(positions, 1);
        Ok(table)
    }

    /// Makes sure that the table has at least `positions` rows, computed on up to `threads` threads. Existing rows keep their
    /// values. A sine takes some 20 ns in software: 16,384 rows for heads of 128 take 50 ms of one thread.
    pub fn extend_to(&mut self, positions: usize, threads: usize) {
        let (from, row_len) = (self.positions(), 2 * self.pairs());
        if positions <= from {
            return;
        }
        let Self { frequencies, factors, rows } = self;
        let angle = |position: usize, pair: usize| {
            let angle = position as f64 * frequencies[pair];
            factors.as_ref().map_or(angle, |f| angle / f[pair])
        };
        let fill = |first: usize, rows: &mut [f32]| {
            for (position, row) in (first..).zip(rows.chunks_exact_mut(row_len)) {
                let (cos, sin) = row.split_at_mut(row_len / 2);
                for (pair, (cos, sin)) in cos.iter_mut().zip(sin).enumerate() {
                    let angle = angle(position, pair);
                    (*cos, *sin) = (narrow(libm::cos(angle)), narrow(libm::sin(angle)));
                }
            }
        };
        rows.reserve_exact((positions - from) * row_len);
        rows.resize(positions * row_len, 0.0);
        let part = (positions - from).div_ceil(threads.max(1)).max(ROWS_PER_THREAD_MIN);
        let new = &mut rows[from * row_len..];
        if new.len() <= part * row_len {
            // Not even a scope, which allocates: a decode whose table grows is no other than before.
            return fill(from, new);
        }
        let mut parts = (from..).step_by(part).zip(new.chunks_mut(part * row_len));
        let own = parts.next();
        thread::scope(|scope| {
            parts.for_each(|(first, rows)| drop(scope.spawn(move || fill(first, rows))));
            own.into_iter().for_each(|(first, rows)| fill(first, rows));
        });
    }

    /// Rows in the table.
    pub fn positions(&self) -> usize {
        self.rows.len() / (2 * self.pairs())
    }

    /// Pairs of rotated dimensions.
    pub fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Every row, `[positions][2][pairs]`: cosines, then sines.
    pub fn values(&self) -> &[f32] {
        &self.rows
    }

    /// The angles of `position`.
    ///
    /// # Panics
    /// If the table has no such row.
    pub fn row(&self, position: usize) -> RopeAngles<'_> {
        let pairs = self.pairs();
        let (cos, sin) = self.rows[position * 2 * pairs..][..2 * pairs].split_at(pairs);
        RopeAngles { cos, sin }
    }
}

fn is_positive_finite(x: f32) -> bool {
    x > 0.0 && x.is_finite()
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the rule")]
fn narrow(x: f64) -> f32 {
    x as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_a_table_gives_the_rows_of_one_made_at_once() {
        let factors: Vec<f32> = (0..16).map(|i| 1.0 + i as f32).collect();
        let whole = RopeTable::new(10_000.0, 32, 5000, Some(&factors)).unwrap();
        let mut grown = RopeTable::new(10_000.0, 32, 7, Some(&factors)).unwrap();
        grown.extend_to(100, 1);
        grown.extend_to(50, 2);
        grown.extend_to(300, 3);
        // Three parts, the last shorter.
        grown.extend_to(5000, 3);
        assert_eq!(grown.rows, whole.rows);
        assert_eq!((grown.positions(), grown.pairs()), (5000, 16));
        let row = grown.row(299);
        assert_eq!(grown.values()[299 * 32..300 * 32], [row.cos, row.sin].concat());
        let angle = 299.0 * 10_000f64.powf(-6.0 / 32.0) / 4.0;
        assert!((f64::from(row.cos[3]) - angle.cos()).abs() < 1e-7);
        assert!((f64::from(row.sin[3]) - angle.sin()).abs() < 1e-7);
    }

    #[test]
    fn impossible_tables_are_refused() {
        let refused = |base, dims, factors: Option<&[f32]>| RopeTable::new(base, dims, 1, factors).unwrap_err();
        assert_eq!(refused(1e4, 0, None), RopeError::OddDims { rotated_dims: 0 });
        assert_eq!(refused(1e4, 7, None), RopeError::OddDims { rotated_dims: 7 });
        assert_eq!(refused(0.0, 8, None), RopeError::BadBase { base: 0.0 });
        assert_eq!(refused(1e4, 8, Some(&[1.0; 3])), RopeError::FactorCount { got: 3, pairs: 4 });
        assert_eq!(refused(1e4, 8, Some(&[1.0, 1.0, 0.0, 1.0])), RopeError::BadFactor { index: 2, factor: 0.0 });
    }
}
