//! The rows of a step: their positions, and the first place in the graph where each of them failed.

use super::Cpu;

/// Outcome of one row of a step so far. `repr(transparent)`: devices keep it as a u32, `u32::MAX` for a row that is fine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct RowStatus(u32);

impl RowStatus {
    /// No value of the row has been NaN or infinite.
    pub const FINE: Self = Self(u32::MAX);

    /// The row failed at site `site` of the graph, below `u32::MAX`. Sites ascend in the order in which a step reaches them.
    pub const fn failed_at(site: u32) -> Self {
        Self(site)
    }

    /// The site where the row failed, if it did.
    pub fn site(self) -> Option<u32> {
        (self != Self::FINE).then_some(self.0)
    }
}

/// Rows of the current step.
#[derive(Debug, Default)]
pub(super) struct StepRows {
    pub(super) positions: Vec<u32>,
    status: Vec<RowStatus>,
    site: u32,
}

impl StepRows {
    /// Rows of the step.
    pub(super) fn count(&self) -> usize {
        self.positions.len()
    }

    /// Records that `row` failed at the current site, unless it failed at an earlier one.
    pub(super) fn fail(&mut self, row: usize) {
        let status = &mut self.status[row];
        *status = (*status).min(RowStatus::failed_at(self.site));
    }
}

impl Cpu {
    /// Begins a step: one row per position. All rows are fine, and the site is 0.
    ///
    /// # Panics
    /// If a position lies outside the context that this device was made for.
    pub fn begin_step(&mut self, positions: &[u32]) {
        let rows = &mut self.rows;
        rows.positions.clear();
        rows.positions.extend_from_slice(positions);
        rows.status.clear();
        rows.status.resize(positions.len(), RowStatus::FINE);
        rows.site = 0;
        let needed = positions.iter().max().map_or(0, |last| *last as usize + 1);
        assert!(needed <= self.context, "position {needed} of a context of {}", self.context);
        for table in self.angles.iter_mut().filter(|table| needed > table.positions()) {
            // Doubling, so that decode seldom waits for the table.
            let positions = needed.max(2 * table.positions()).min(self.context);
            table.extend_to(positions, self.pool.threads());
        }
    }

    /// Sets the site that rows failing from here on are recorded with.
    pub fn set_site(&mut self, site: u32) {
        self.rows.site = site;
    }

    /// Status of each row of the step.
    pub fn row_status(&self) -> &[RowStatus] {
        &self.rows.status
    }
}
