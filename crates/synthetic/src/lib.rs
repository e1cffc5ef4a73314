//! Model files made from a seed: no training, no download.
//!
//! [`published`] has the geometries of real models, for measurements without their weights (`muser make-model`). [`small`]
//! models exercise every tensor of an architecture in little time: `muser conformance`, the check of a GPU before it is used
//! and the tests compute with them. [`scripted`] models continue a prompt as a test chooses.

#![forbid(unsafe_code)]

pub mod published;
pub mod scripted;
pub mod small;
