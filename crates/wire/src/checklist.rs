//! Bitmap of the pages of a plan that were sent or have arrived.

use crate::plan::HandoffPlan;

/// Pages of a plan, marked once each.
#[derive(Debug)]
pub(crate) struct Checklist {
    /// Per layer, a bit per page of its range: set once the page is marked.
    layers: Vec<Vec<u64>>,
    left: u64,
}

impl Checklist {
    /// A checklist of `plan` without marked pages.
    pub(crate) fn new(plan: &HandoffPlan) -> Self {
        let layers = plan.layers().iter().map(|pages| vec![0; pages.len().div_ceil(64)]).collect();
        Self { layers, left: plan.page_count() }
    }

    /// Pages not marked yet.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// True if a page of the plan is marked.
    pub(crate) fn has(&self, plan: &HandoffPlan, layer: u16, page: u32) -> bool {
        let index = page - plan.layers()[usize::from(layer)].start;
        self.layers[usize::from(layer)][index as usize / 64] >> (index % 64) & 1 == 1
    }

    /// Marks a page of the plan that is not marked yet.
    pub(crate) fn mark(&mut self, plan: &HandoffPlan, layer: u16, page: u32) {
        let index = page - plan.layers()[usize::from(layer)].start;
        self.layers[usize::from(layer)][index as usize / 64] |= 1 << (index % 64);
        self.left -= 1;
    }
}
