//! Compression of pages before they are sent: always, never, or where measured rates predict a shorter transfer.

use std::time::Duration;

use muser_wire::Codecs;

/// Compression setting of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compress {
    /// Compress where measured rates predict a shorter transfer, with hysteresis.
    Auto,
    /// Never.
    Never,
    /// Compress every page that gets smaller.
    Always,
}

/// Compression setting, with the measured rates that decide under [`Compress::Auto`].
#[derive(Debug)]
pub(super) struct Compression {
    setting: Compress,
    /// Pages seen so far, for sampling.
    pages: u64,
    packing: Option<Packing>,
    wire_bytes_per_s: Option<f64>,
    packs: bool,
}

/// Measured cost of compression per input byte: seconds, and output bytes.
#[derive(Clone, Copy, Debug)]
struct Packing {
    seconds: f64,
    bytes: f64,
}

/// Rates and buffer sizes of one lane's frames on their way to the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// Pacing rate, bytes per second.
    pub(super) pace: Option<u64>,
    /// Bytes of a frame before packing.
    pub(super) frame_bytes: u64,
    /// Most bytes that the kernel sends while the next frame is packed.
    pub(super) unsent_bytes: u64,
}

/// One page in 128 is packed as a measurement, even where pages are sent unpacked: less than 1 % of them.
const SAMPLE_EVERY: u64 = 128;
/// Weight of a new measurement.
const NEW: f64 = 0.25;
/// Packing begins when it leaves less than this part of the time, and ends when it leaves more than that.
const BEGIN: f64 = 0.9;
const END: f64 = 0.97;
/// The kernel counts its time in ticks of up to 10 ms; less than this gives no rate.
const MEASURABLE: Duration = Duration::from_millis(50);

impl Compression {
    pub(super) fn new(setting: Compress) -> Self {
        Self { setting, pages: 0, packing: None, wire_bytes_per_s: None, packs: false }
    }

    /// Codecs announced to receivers.
    pub(super) fn offered(&self) -> Codecs {
        if self.setting == Compress::Never { Codecs::NONE_ONLY } else { Codecs::ALL }
    }

    /// Counts pages to be sent, and returns the index of the one to measure, if there is one among them.
    pub(super) fn sample(&mut self, pages: usize) -> Option<usize> {
        let to_next = (SAMPLE_EVERY - self.pages % SAMPLE_EVERY) % SAMPLE_EVERY;
        self.pages += pages as u64;
        let index = usize::try_from(to_next).ok().filter(|index| *index < pages);
        index.filter(|_| self.setting == Compress::Auto)
    }

    /// Takes in a measurement: `raw` bytes were packed to `packed` bytes in `time`.
    pub(super) fn packed(&mut self, raw: usize, packed: usize, time: Duration) {
        let measured = Packing { seconds: time.as_secs_f64() / raw as f64, bytes: packed as f64 / raw as f64 };
        let known = self.packing.unwrap_or(measured);
        let mixed = |old: f64, new: f64| old + (new - old) * NEW;
        self.packing = (raw > 0).then(|| Packing {
            seconds: mixed(known.seconds, measured.seconds),
            bytes: mixed(known.bytes, measured.bytes),
        });
    }

    /// Takes in a measurement: the kernel was busy for `busy` with sending `bytes`.
    pub(super) fn sent(&mut self, bytes: u64, busy: Duration) {
        if busy >= MEASURABLE && bytes > 0 {
            let measured = bytes as f64 / busy.as_secs_f64();
            let known = self.wire_bytes_per_s.unwrap_or(measured);
            self.wire_bytes_per_s = Some(known + (measured - known) * NEW);
        }
    }

    /// The codecs for the pages that are sent next.
    pub(super) fn codecs(&mut self, flow: &Flow) -> Codecs {
        self.packs = match self.setting {
            Compress::Never => false,
            Compress::Always => true,
            Compress::Auto => self.gain(flow).is_some_and(|left| left < if self.packs { END } else { BEGIN }),
        };
        if self.packs { Codecs::ALL } else { Codecs::NONE_ONLY }
    }

    /// Time per byte with packing, relative to without; below 1 packing pays. `None` while either rate is unknown.
    fn gain(&self, flow: &Flow) -> Option<f64> {
        let Packing { seconds, bytes } = self.packing?;
        let pace = flow.pace.map(|pace| pace as f64);
        let wire = match (self.wire_bytes_per_s, pace) {
            (Some(measured), Some(pace)) => measured.min(pace),
            (measured, pace) => measured.or(pace)?,
        };
        // While a frame is packed the kernel sends what it has of the frame before.
        let overlap = (flow.unsent_bytes as f64 / flow.frame_bytes.max(1) as f64).min(1.0);
        let sending = bytes / wire;
        Some((seconds + sending - seconds.min(sending) * overlap) * wire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: Flow = Flow { pace: None, frame_bytes: 1 << 19, unsent_bytes: 1 << 19 };
    const PACKED: Codecs = Codecs::ALL;
    const RAW: Codecs = Codecs::NONE_ONLY;

    /// After measuring: packing at `pack` MB/s leaves `left` percent, the wire takes `wire` MB/s.
    fn measured(pack: u64, left: usize, wire: u64) -> Compression {
        let mut compression = Compression::new(Compress::Auto);
        compression.packed(1_000_000, left * 10_000, Duration::from_micros(1_000_000 / pack));
        compression.sent(wire * 1_000_000, Duration::from_secs(1));
        compression
    }

    #[test]
    fn nothing_is_packed_before_both_rates_are_known() {
        let mut compression = Compression::new(Compress::Auto);
        assert_eq!(compression.codecs(&FLOW), RAW);
        compression.sent(1_000_000, Duration::from_secs(1));
        assert_eq!(compression.codecs(&FLOW), RAW);
        compression.packed(1000, 500, Duration::from_micros(1));
        assert_eq!(compression.codecs(&FLOW), PACKED);
        let mut compression = Compression::new(Compress::Auto);
        compression.packed(1000, 500, Duration::from_micros(1));
        assert_eq!(compression.codecs(&FLOW), RAW);
        // Too short a time is no measurement.
        compression.sent(1000, MEASURABLE / 2);
        assert_eq!(compression.codecs(&FLOW), RAW);
        // A pace is a rate that is known.
        assert_eq!(compression.codecs(&Flow { pace: Some(1_000_000), ..FLOW }), PACKED);
    }

    #[test]
    fn pages_are_packed_where_that_is_faster_than_the_wire_and_saves_bytes() {
        for (pack, left, wire, codecs) in [
            (400, 70, 100, PACKED),
            (400, 95, 100, RAW),
            (400, 100, 10, RAW),
            (400, 50, 1000, RAW),
            (400, 50, 300, PACKED),
            (400, 50, 390, RAW),
        ] {
            assert_eq!(measured(pack, left, wire).codecs(&FLOW), codecs, "{pack} {left} {wire}");
        }
        // Frames that are longer than what the kernel has are packed while it has nothing to send.
        let long = Flow { frame_bytes: 1 << 23, ..FLOW };
        assert_eq!(measured(400, 50, 300).codecs(&long), RAW);
        assert_eq!(measured(400, 50, 50).codecs(&long), PACKED);
        // A pace above what the wire takes changes nothing, one below it does.
        let paced = |pace: u64| Flow { pace: Some(pace * 1_000_000), ..FLOW };
        assert_eq!(measured(400, 50, 1000).codecs(&paced(2000)), RAW);
        assert_eq!(measured(400, 50, 1000).codecs(&paced(100)), PACKED);
    }

    #[test]
    fn it_notices_when_packing_begins_and_ceases_to_pay() {
        let mut compression = measured(400, 60, 1000);
        assert_eq!(compression.codecs(&FLOW), RAW);
        for _ in 0..20 {
            compression.sent(50_000_000, Duration::from_secs(1));
        }
        assert_eq!(compression.codecs(&FLOW), PACKED);
        for _ in 0..20 {
            compression.packed(1_000_000, 1_000_000, Duration::from_micros(2500));
        }
        assert_eq!(compression.codecs(&FLOW), RAW);
        // A gain of a twentieth does not begin it, and does not end it.
        let mut little = measured(400, 95, 50);
        assert_eq!(little.codecs(&FLOW), RAW);
        little.packs = true;
        assert_eq!(little.codecs(&FLOW), PACKED);
    }

    #[test]
    fn less_than_a_hundredth_of_the_pages_is_measured_and_the_first_is() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut compression = Compression::new(Compress::Auto);
        assert_eq!(compression.sample(0), None);
        let (mut pages, mut samples) = (0, Vec::new());
        while pages < 100_000 {
            let batch = random.usize(1..100);
            samples.extend(compression.sample(batch).map(|index| pages + index));
            pages += batch;
        }
        assert!((700..1000).contains(&samples.len()), "{}", samples.len());
        assert!(samples[0] == 0 && samples.windows(2).all(|pair| pair[1] - pair[0] == 128));
        for setting in [Compress::Never, Compress::Always] {
            assert_eq!(Compression::new(setting).sample(10), None);
        }
    }

    #[test]
    fn always_and_never_ask_nothing() {
        for (setting, codecs) in [(Compress::Always, PACKED), (Compress::Never, RAW)] {
            let mut compression = Compression::new(setting);
            assert_eq!((compression.offered(), compression.codecs(&FLOW)), (codecs, codecs));
        }
        assert_eq!(Compression::new(Compress::Auto).offered(), PACKED);
    }
}
