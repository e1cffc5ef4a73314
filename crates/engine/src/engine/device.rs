//! Steps for which the device has no room, and a device that fails.
//!
//! A step that ends with an error has changed no cache, so its rows can be computed again, in other company: no bit depends on
//! it. What was told of the step stays told: a sequence whose token was chosen is not asked for it again.

use muser_model::DeviceError;

use super::Engine;
use super::error::RequestError;
use super::event::{OnEvent, RequestEvent};
use super::sequence::Running;

impl Engine {
    /// Takes the sequence that started last out of the step, and its place and those of younger ones away; a sequence that is
    /// alone in the step ends. Each call leaves the step one sequence fewer.
    pub(super) fn shrink_step(&mut self, error: DeviceError, on_event: &mut OnEvent<'_>) {
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

    /// Ends every request: the device that would have computed it is gone.
    pub(super) fn fail_all(&mut self, error: &DeviceError, on_event: &mut OnEvent<'_>) {
        let running = self.running.drain(..).map(|running| running.sequence);
        for sequence in running.chain(self.waiting.drain(..)) {
            on_event(sequence.id, RequestEvent::Failed(RequestError::DeviceFailed(error.clone())));
        }
    }
}
