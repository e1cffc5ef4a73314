//! Comparison of buffers on the device.

use super::Queue;
use crate::driver::{Arguments, DeviceBuffer, Launch};

pub(crate) const KERNELS: &[&str] = &["count_differences"];

impl Queue {
    /// Enqueues overwriting the memory that kernels use between each other with NaNs, so that a check sees a kernel that reads
    /// what it has not written.
    pub fn poison_workspace(&mut self) {
        if self.failed.is_none() {
            let filled = self.stream.fill(&mut self.hand_over.sums, 0xff);
            self.note(filled);
        }
    }

    /// Enqueues counting the floats in which two buffers differ by bits, two NaNs being equal: `found[0]` grows by the count
    /// and `found[1]` sinks to the first index.
    ///
    /// # Panics
    /// If the buffers differ in length or `found` has not two elements.
    pub fn count_differences(
        &mut self,
        left: &DeviceBuffer<f32>,
        right: &DeviceBuffer<f32>,
        found: &mut DeviceBuffer<u64>,
    ) {
        assert_eq!(left.len(), right.len(), "buffers to compare");
        assert_eq!(found.len(), 2, "a count and an index");
        let arguments = Arguments::new().buffer(left).buffer(right).structure(&[left.len() as u64]).buffer(found);
        // SAFETY: (left, right, words, found) as the kernel declares them; both buffers have `words` words.
        unsafe { self.launch("count_differences", &Launch::of(512, 256), arguments) };
    }
}
