//! For tests: a device that fails in chosen steps, and otherwise computes what the one behind it computes.

use std::fmt;
use std::sync::Arc;

use crate::device::{DeviceDescription, DeviceError};
use crate::executor::Forward;
use crate::graph::LogitsRow;
use crate::load::ModelSpec;
use crate::step::{SequenceInput, StepError};

/// Chooses the fault of a step by its sequences; `None` lets it run.
pub type Faults = Arc<dyn Fn(&[SequenceInput<'_>]) -> Option<Fault> + Send + Sync>;

/// Failure of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Before anything is computed.
    Early(DeviceError),
    /// After all logits have been handed out.
    Late(DeviceError),
}

/// An executor whose device fails.
pub struct Faulty<F> {
    forward: F,
    faults: Faults,
}

impl Fault {
    /// The device has no room for `bytes` bytes, which is noticed when the step begins.
    pub fn out_of_memory(bytes: usize) -> Self {
        Self::Early(DeviceError::OutOfMemory { device: "the faulty device", bytes })
    }

    /// The device is lost.
    pub fn lost() -> Self {
        Self::Early(DeviceError::Failed { device: "the faulty device", reason: "it was taken away".into() })
    }
}

impl<F: Forward> Faulty<F> {
    /// `forward` with the failures that `faults` chooses.
    pub fn new(forward: F, faults: Faults) -> Self {
        Self { forward, faults }
    }
}

impl<F: Forward> fmt::Debug for Faulty<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("forward", &self.forward).finish_non_exhaustive()
    }
}

impl<F: Forward> Forward for Faulty<F> {
    fn spec(&self) -> &Arc<ModelSpec> {
        self.forward.spec()
    }

    fn rows_max(&self) -> usize {
        self.forward.rows_max()
    }

    fn weight_bytes(&self) -> usize {
        self.forward.weight_bytes()
    }

    fn device(&self) -> DeviceDescription {
        self.forward.device()
    }

    fn forward_pending(
        &mut self,
        batch: &mut [SequenceInput<'_>],
        on_logits: &mut dyn FnMut(LogitsRow, &[f32]),
    ) -> Result<(), StepError> {
        match (self.faults)(batch) {
            None => self.forward.forward_pending(batch, on_logits),
            Some(Fault::Early(error)) => Err(error.into()),
            Some(Fault::Late(error)) => {
                self.forward.forward_pending(batch, on_logits)?;
                batch.iter_mut().for_each(|input| input.cache.abandon());
                Err(error.into())
            }
        }
    }
}
