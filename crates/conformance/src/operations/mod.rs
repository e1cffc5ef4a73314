//! Operations of the CPU on every instruction set that this machine has, against the scalar references.

mod attention;
mod dot;
mod rows;
pub mod sequence;

use crate::tally::BitTally;

/// A family of cases.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Operations of the family, for reports.
    pub name: &'static str,
    /// Runs the family's cases with as many seeds each as given.
    pub run: fn(u64, &mut BitTally),
}

/// Every family.
pub const FAMILIES: &[Family] = &[
    Family { name: "quantise", run: dot::quantise },
    Family { name: "matmul", run: dot::matmul },
    Family { name: "rows", run: rows::rows },
    Family { name: "heads", run: rows::heads },
    Family { name: "attend", run: attention::attend },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_compares_something_and_finds_no_difference() {
        for family in FAMILIES {
            let mut tally = BitTally::default();
            (family.run)(1, &mut tally);
            assert!(tally.cases > 10, "{}", family.name);
            tally.assert_clean();
        }
    }
}
