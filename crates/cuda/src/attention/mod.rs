//! Attention of one step on the device: the rows of each sequence, where their pages are, and the work cut into items.
//!
//! An [`AttentionPlan`] is made once per step and window and serves every layer with that window; the layers differ in their
//! page tables only. How the work is cut follows from the step's shape; no result depends on it.

mod items;
mod plan;
mod prefill;
mod scratch;
mod standalone;

pub use plan::{AttentionPlan, DeviceLayerPages, PlanLimits, StepSequence};
pub use scratch::AttentionWorkspace;
pub use standalone::{StandaloneSpec, StandaloneStep};

pub(crate) use items::TILE_QUERIES;
pub(crate) use plan::PrefillPlan;
pub(crate) use prefill::PREFILL_QUERIES;
