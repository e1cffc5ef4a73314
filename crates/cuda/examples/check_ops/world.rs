//! A device, a queue on it, and the table of what was compared.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use muser_cuda::driver::Plain;
use muser_cuda::kernels::Kernels;
use muser_cuda::self_test::{SelfTestError, self_test};
use muser_cuda::{Context, DeviceBuffer, DriverError, Queue};

/// Differences shown per family.
const SHOWN_MAX: usize = 12;

/// Everything a family of cases works with.
pub struct World {
    pub context: Context,
    pub queue: Queue,
    pub repeats: usize,
    kernels: Arc<Kernels>,
    family: &'static str,
    started: Instant,
    tally: Tally,
    failed: bool,
    /// Count and first index of differences found on the device since the last look.
    found: DeviceBuffer<u64>,
    /// The comparison on the device that runs now, and its values.
    repeated: Option<(String, usize)>,
}

#[derive(Default)]
struct Tally {
    cases: usize,
    compared: usize,
    wrong: usize,
    shown: usize,
}

impl World {
    pub fn open(repeats: usize) -> Result<Self, DriverError> {
        let started = Instant::now();
        let context = Context::open(0)?;
        let kernels = Arc::new(Kernels::load(&context)?);
        let queue = Queue::new(&context, kernels.clone())?;
        println!(
            "{} {:?}, kernels loaded in {:.2} s",
            context.name(),
            context.capability(),
            started.elapsed().as_secs_f32()
        );
        let found = DeviceBuffer::new(&context, 2)?;
        let (tally, repeated) = (Tally::default(), None);
        let mut world =
            Self { context, queue, repeats, kernels, family: "", started, tally, failed: false, found, repeated };
        world.queue.stream().upload(&[0, u64::MAX], &mut world.found, 0)?;
        Ok(world)
    }

    /// The self-test that opens a device for exact work.
    pub fn self_test(&mut self) -> Result<(), SelfTestError> {
        let started = Instant::now();
        self_test(&self.context, self.kernels.clone())?;
        println!("self-test passed in {:.2} s", started.elapsed().as_secs_f32());
        Ok(())
    }

    pub fn start_family(&mut self, name: &'static str) {
        self.end_family();
        (self.family, self.started, self.tally) = (name, Instant::now(), Tally::default());
    }

    fn end_family(&mut self) {
        let Tally { cases, compared, wrong, .. } = self.tally;
        if cases > 0 {
            let seconds = self.started.elapsed().as_secs_f32();
            println!("{:24} {cases:6} cases {compared:12} values {wrong:9} wrong {seconds:7.1} s", self.family);
        }
        self.failed |= wrong > 0;
    }

    pub fn finish(mut self) -> ExitCode {
        self.end_family();
        if self.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    /// A device copy of `values`.
    pub fn upload<T: Plain>(&mut self, values: &[T]) -> DeviceBuffer<T> {
        let mut buffer = self.room(values.len());
        self.queue.stream().upload(values, &mut buffer, 0).expect("upload");
        buffer
    }

    /// Room for `len` elements, all bytes 0xff: NaN as floats.
    pub fn room<T: Plain>(&mut self, len: usize) -> DeviceBuffer<T> {
        let mut buffer = DeviceBuffer::new(&self.context, len).expect("device memory");
        self.queue.fill(&mut buffer, 0xff);
        buffer
    }

    /// The first `len` elements of `buffer`, once everything enqueued has run.
    pub fn download<T: Plain + Default>(&mut self, buffer: &DeviceBuffer<T>, len: usize) -> Vec<T> {
        self.queue.sync().expect("the queue");
        let mut values = vec![T::default(); len];
        self.queue.stream().download(buffer, 0, &mut values).expect("download");
        values
    }

    /// Counts a case: `got` against `expected`, rows of `width` elements; two NaNs are equal.
    pub fn compare<T: Bits>(&mut self, what: &str, width: usize, expected: &[T], got: &[T]) {
        assert_eq!(expected.len(), got.len(), "{what}");
        self.tally.cases += 1;
        self.tally.compared += got.len();
        let wrong = expected.iter().zip(got).enumerate().filter(|(_, (left, right))| !left.same(**right));
        let mut count = 0;
        for (at, (left, right)) in wrong {
            if count == 0 && self.tally.shown < SHOWN_MAX {
                self.tally.shown += 1;
                let (row, col) = (at / width.max(1), at % width.max(1));
                println!("  {what}: [{row}, {col}] expected {left:?} got {right:?}");
            }
            count += 1;
        }
        self.tally.wrong += count;
    }
}

impl World {
    /// Enqueues a comparison of two results on the device; [`World::end_repeats`] counts what was found.
    pub fn compare_on_device(&mut self, what: &str, left: &DeviceBuffer<f32>, right: &DeviceBuffer<f32>) {
        self.queue.count_differences(left, right, &mut self.found);
        let compared = self.repeated.take().map_or(0, |(_, compared)| compared);
        self.repeated = Some((what.to_owned(), compared + left.len()));
    }

    /// Counts the comparisons enqueued since the last call as one case.
    pub fn end_repeats(&mut self) {
        let Some((what, compared)) = self.repeated.take() else { return };
        self.queue.sync().expect("the queue");
        let mut found = [0; 2];
        self.queue.stream().download(&self.found, 0, &mut found).expect("download");
        self.queue.stream().upload(&[0, u64::MAX], &mut self.found, 0).expect("upload");
        self.tally.cases += 1;
        self.tally.compared += compared;
        self.tally.wrong += usize::try_from(found[0]).expect("a count");
        if found[0] > 0 {
            println!("  {what}: {} values differ from the first run, the first at {}", found[0], found[1]);
        }
    }
}

/// Elements that are compared by bits.
pub trait Bits: Copy + std::fmt::Debug {
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

impl Bits for u32 {
    fn same(self, other: Self) -> bool {
        self == other
    }
}
