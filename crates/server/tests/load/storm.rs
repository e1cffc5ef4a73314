//! Many clients at once, some of which leave: every answer that is read to its end is the one that it has alone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cases::{CONTEXT, Case};
use crate::client::Pending;
use crate::footprint::{Footprint, resident_kib};
use muser_host::Totals;

use crate::world::{Setup, World, shipped};

/// Far longer than any storm takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Duration and load of a storm.
#[derive(Clone, Copy, Debug)]
pub struct Storm {
    pub clients: usize,
    pub slots: usize,
    pub cases: usize,
    /// The least; on a busy machine it lasts until `enough` has come of it.
    pub duration: Duration,
    /// Answers read to their end, and requests whose client left.
    pub enough: (u64, u64),
    pub seed: u64,
}

/// Results of a storm.
#[derive(Debug)]
pub struct Report {
    /// Answers read to their end.
    pub answers: u64,
    /// Requests whose client left before that.
    pub disconnects: u64,
    /// Requests that found the queue full: those of clients who left count until the server has noticed.
    pub turned_away: u64,
    /// Differences of wrong answers.
    pub wrong: Vec<String>,
    /// Footprints after each case was asked once, and after the storm.
    pub before: Footprint,
    pub after: Footprint,
    /// Memory at the end of each tenth of the time, in KiB.
    pub resident_kib: Vec<usize>,
    /// Sums of the whole time of the server.
    pub totals: Totals,
}

impl Storm {
    /// Runs it on a server of its own.
    pub fn run(self) -> Report {
        let cases = Case::all(&shipped(), self.cases, self.seed);
        let setup = Setup { context: CONTEXT, slots: self.slots, waiting_max: self.clients, ..Setup::of(shipped()) };
        let world = World::start(setup);
        let first_round =
            cases.iter().filter_map(|case| case.wrong(&world.post("/completion", &case.body(true, true))));
        let mut wrong: Vec<String> = first_round.collect();
        let before = Footprint::at_rest(&world);
        let counts = Counts::default();
        let began = Instant::now();
        let is_over = || {
            let elapsed = began.elapsed();
            elapsed >= self.duration && (counts.have(self.enough) || elapsed > PATIENCE)
        };
        let mut resident = Vec::new();
        thread::scope(|scope| {
            let clients: Vec<_> = (0..self.clients as u64)
                .map(|client| {
                    let random = fastrand::Rng::with_seed(self.seed ^ (client << 32));
                    let client = Client { world: &world, cases: &cases, random };
                    let (counts, is_over) = (&counts, &is_over);
                    scope.spawn(move || client.run(is_over, counts))
                })
                .collect();
            for _ in 0..10 {
                thread::sleep(self.duration / 10);
                resident.push(resident_kib());
            }
            wrong.extend(
                clients.into_iter().filter_map(|client| client.join().unwrap_or_else(|_| Some("panicked".into()))),
            );
        });
        let after = Footprint::back_at(&before, &world);
        Report {
            answers: counts.answers.into_inner(),
            disconnects: counts.disconnects.into_inner(),
            turned_away: counts.turned_away.into_inner(),
            wrong,
            before,
            after,
            resident_kib: resident,
            totals: world.status().totals,
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    answers: AtomicU64,
    disconnects: AtomicU64,
    turned_away: AtomicU64,
}

impl Counts {
    fn have(&self, (answers, disconnects): (u64, u64)) -> bool {
        self.answers.load(Ordering::Relaxed) >= answers && self.disconnects.load(Ordering::Relaxed) >= disconnects
    }
}

struct Client<'a> {
    world: &'a World,
    cases: &'a [Case],
    random: fastrand::Rng,
}

impl Client<'_> {
    /// Sends requests until the storm is over; the difference of the first wrong answer.
    fn run(mut self, is_over: impl Fn() -> bool, counts: &Counts) -> Option<String> {
        while !is_over() {
            let case = self.random.choice(self.cases)?;
            let stream = self.random.bool();
            let body = case.body(stream, self.random.u32(..8) > 0);
            let connection = self.world.send("POST", "/completion", &body);
            let stays = self.random.u32(..4) > 0;
            if stays {
                let answer = Pending::read_head(connection).finish();
                if answer.status == 429 {
                    counts.turned_away.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(self.random.u64(..50)));
                    continue;
                }
                let wrong = case.wrong(&answer);
                if wrong.is_some() {
                    return wrong;
                }
                counts.answers.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            // Leaves at once, a little later, or after some of the stream.
            match self.random.u32(..3) {
                0 => drop(connection),
                1 => {
                    thread::sleep(Duration::from_millis(self.random.u64(..20)));
                    drop(connection);
                }
                _ => {
                    let mut pending = Pending::read_head(connection);
                    if stream && pending.status == 200 {
                        // The stream may end before.
                        let chunks = self.random.usize(..4);
                        (0..chunks).take_while(|_| !pending.chunk().is_empty()).for_each(drop);
                    }
                }
            }
            counts.disconnects.fetch_add(1, Ordering::Relaxed);
        }
        None
    }
}
