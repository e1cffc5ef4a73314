//! Counts of compared values, and the first difference.

use std::fmt::{Debug, Display};

/// Counts of results and values compared so far, and the first difference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BitTally {
    /// Results compared, each of many values.
    pub cases: u64,
    /// Values compared.
    pub compared: u64,
    /// Values that differ.
    pub wrong: u64,
    /// Case and place of the first difference.
    pub first_wrong: Option<String>,
}

/// A value that is compared by bits. Two NaNs are the same, whatever their payloads.
pub trait Bits: Copy + Debug {
    /// True if both have the same bits.
    fn same(self, other: Self) -> bool;
}

impl Bits for f32 {
    fn same(self, other: Self) -> bool {
        self.to_bits() == other.to_bits() || self.is_nan() && other.is_nan()
    }
}

impl Bits for i8 {
    fn same(self, other: Self) -> bool {
        self == other
    }
}

impl Bits for u8 {
    fn same(self, other: Self) -> bool {
        self == other
    }
}

impl Bits for u32 {
    fn same(self, other: Self) -> bool {
        self == other
    }
}

impl BitTally {
    /// Counts the case `what`: `got` against `expected`, both in rows of `width` elements. Results of different lengths differ
    /// in every value.
    pub fn compare<T: Bits>(&mut self, what: &dyn Display, width: usize, expected: &[T], got: &[T]) {
        self.cases += 1;
        self.compared += got.len() as u64;
        if expected.len() != got.len() {
            self.differ(got.len().max(1), || format!("{what}: {} values instead of {}", got.len(), expected.len()));
            return;
        }
        let mut wrong = expected.iter().zip(got).enumerate().filter(|(_, (want, got))| !want.same(**got));
        if let Some((at, (want, got))) = wrong.next() {
            let (row, column) = (at / width.max(1), at % width.max(1));
            self.differ(1 + wrong.count(), || {
                format!("{what}: row {row}, column {column}: {got:?} instead of {want:?}")
            });
        }
    }

    /// Counts the case `what` of one value.
    pub fn equal<T: PartialEq + Debug>(&mut self, what: &dyn Display, expected: &T, got: &T) {
        self.cases += 1;
        self.compared += 1;
        if expected != got {
            self.differ(1, || format!("{what}: {got:?} instead of {expected:?}"));
        }
    }

    /// Counts the case `what` of `compared` values, of which the caller has found `wrong` to differ, the first at `first`.
    pub fn count(&mut self, what: &dyn Display, compared: usize, wrong: usize, first: u64) {
        self.cases += 1;
        self.compared += compared as u64;
        if wrong > 0 {
            self.differ(wrong, || format!("{what}: {wrong} values differ, the first at {first}"));
        }
    }

    /// Counts a case that could not be compared as one wrong value.
    pub fn failed(&mut self, what: &dyn Display, reason: &dyn Display) {
        self.cases += 1;
        self.differ(1, || format!("{what}: {reason}"));
    }

    /// Adds what another tally counted after this one.
    pub fn add(&mut self, other: Self) {
        self.cases += other.cases;
        self.compared += other.compared;
        self.wrong += other.wrong;
        self.first_wrong = self.first_wrong.take().or(other.first_wrong);
    }

    /// For tests.
    ///
    /// # Panics
    /// If anything differed, or nothing was compared.
    #[track_caller]
    pub fn assert_clean(&self) {
        let Self { cases, compared, wrong, first_wrong } = self;
        assert_eq!(*wrong, 0, "{cases} cases, {compared} values: {}", first_wrong.as_deref().unwrap_or("unknown"));
        assert!(*compared > 0, "nothing was compared");
    }

    fn differ(&mut self, count: usize, first: impl FnOnce() -> String) {
        self.wrong += count as u64;
        self.first_wrong.get_or_insert_with(first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named_and_all_are_counted() {
        let mut tally = BitTally::default();
        tally.compare(&"same", 2, &[1.0, f32::NAN], &[1.0, -f32::NAN]);
        assert_eq!((tally.cases, tally.compared, tally.wrong), (1, 2, 0));
        tally.compare(&"zeros", 2, &[1.0, 2.0, 0.0, 4.0], &[1.0, 2.0, -0.0, 5.0]);
        tally.equal(&"later", &1, &2);
        assert_eq!((tally.cases, tally.compared, tally.wrong), (3, 7, 3));
        assert_eq!(tally.first_wrong.as_deref(), Some("zeros: row 1, column 0: -0.0 instead of 0.0"));
    }

    #[test]
    fn results_of_another_length_differ_even_where_nothing_came() {
        let mut tally = BitTally::default();
        tally.compare(&"missing", 1, &[1u32], &[]);
        assert_eq!((tally.wrong, tally.first_wrong.as_deref()), (1, Some("missing: 0 values instead of 1")));
    }

    #[test]
    fn the_first_difference_of_several_tallies_is_that_of_the_first() {
        let mut sum = BitTally::default();
        for (name, wrong) in [("a", 0), ("b", 2), ("c", 1)] {
            let mut tally = BitTally::default();
            tally.count(&name, 10, wrong, 7);
            sum.add(tally);
        }
        assert_eq!((sum.cases, sum.compared, sum.wrong), (3, 30, 3));
        assert_eq!(sum.first_wrong.as_deref(), Some("b: 2 values differ, the first at 7"));
    }
}
