//! Steps for which the device has no room, and a device that fails.
//!
//! A step that ends with an error has changed no cache, so its rows can be computed again, in other company: no bit depends on
//! it. What was told of the step stays told: a sequence whose token was chosen is not asked for it again.

use muser_model::{DeviceError, StepError};

use super::Engine;
use super::error::{RequestError, StepRefused};
use super::event::{OnEvent, RequestEvent};
use super::sequence::Running;

impl Engine {
    /// Runs the planned rows, or those of fewer sequences where the device has no room for all.
    pub(super) fn compute(&mut self, on_event: &mut OnEvent<'_>) -> Result<(), StepRefused> {
        loop {
            match self.forward(on_event) {
                Ok(()) => return Ok(()),
                Err(StepError::Device(error @ DeviceError::OutOfMemory { .. })) => self.shrink_step(error, on_event),
                Err(StepError::Device(error)) => {
                    self.fail_all(&error, on_event);
                    return Err(StepRefused::DeviceFailed(error));
                }
                Err(refused) => return Err(StepRefused::Planned(refused)),
            }
        }
    }

    /// Takes the sequence that started last out of the step, and its place and those of younger ones away; a sequence that is
    /// alone in the step ends. Each call leaves the step one sequence fewer.
    fn shrink_step(&mut self, error: DeviceError, on_event: &mut OnEvent<'_>) {
        // In the order in which they started.
        let Some(youngest) = self.running.iter_mut().rposition(|running| running.rows.take().is_some()) else { return };
        let is_alone = self.running.iter().all(|running| running.rows.is_none());
        // Its token has been told, and it would be told again after a pause.
        let is_told = self.running[youngest].chosen.is_some();
        if is_alone || is_told {
            let Running { sequence, .. } = self.remove(youngest);
            return on_event(sequence.id, RequestEvent::Failed(RequestError::DeviceMemory(error)));
        }
        while self.running.len() > youngest {
            self.pause(self.running.len() - 1, on_event);
        }
        self.places = self.running.len();
    }

    /// Takes away a running sequence that has ended: what the device had no room for may find some now.
    pub(super) fn remove(&mut self, index: usize) -> Running {
        self.places = self.settings.running_max.get();
        self.running.remove(index)
    }

    /// Ends every request: the device that would have computed it is gone.
    fn fail_all(&mut self, error: &DeviceError, on_event: &mut OnEvent<'_>) {
        let running = self.running.drain(..).map(|running| running.sequence);
        for sequence in running.chain(self.waiting.drain(..)) {
            on_event(sequence.id, RequestEvent::Failed(RequestError::DeviceFailed(error.clone())));
        }
    }
}
