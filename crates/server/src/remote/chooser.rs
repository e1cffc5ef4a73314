//! The placement policy in use: the work of each place, the measurements of requests, and the file that persists the
//! rates.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use muser_cluster::handoff::Handoff;
use muser_host::EngineStatus;
use muser_kv::PAGE_ROWS;
use muser_placement::{Candidate, Observation, Place, Policy, Trial};
use muser_wire::SenderTimes;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::source::Chosen;

/// Delay from a new measurement to the write of the policy file, which is also written at the end.
const SAVE_AFTER: Duration = Duration::from_secs(5);
/// Longest wait for the file at the end of a server.
const SAVE_LIMIT: Duration = Duration::from_secs(5);

/// Time for which a producer is not asked for as many rows as it refused as too many, ms.
const TOO_LONG_MS: u64 = 60_000;

/// Shortest busy time of sending that is used, microseconds: kernels count it in ticks of up to ten milliseconds.
const EXACT_BUSY_US: u64 = 50_000;

/// File of the learned rates, with the report of write errors.
#[derive(Clone)]
pub struct PolicyFile {
    /// The file.
    pub path: PathBuf,
    /// Receives the error of a write: once, until a write succeeds again.
    pub report: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Picks places, and feeds the policy with measurements.
pub struct Chooser {
    state: Mutex<State>,
    began: Instant,
    /// Locked during a write, so that no older state is written after a newer one.
    file: Mutex<File>,
    /// Rows below which a request is too short to measure a place.
    trial_rows_min: u64,
}

struct State {
    policy: Policy,
    under_way: HashMap<u64, Work>,
    next: u64,
    /// Queue time of each producer's last handoff, ms, and the time of that, ms.
    queues: HashMap<Place, (f64, u64)>,
    /// Fewest rows that a producer refused as too many, and the time of that, ms.
    too_long: HashMap<Place, (u64, u64)>,
    /// True if a measurement is not written yet.
    unsaved: bool,
}

/// Rows that a place was given by this server.
struct Work {
    place: Place,
    rows: Range<u64>,
    /// True if there are enough rows to measure the place.
    tells: bool,
    /// True if the engine here runs it, whose status counts it.
    runs_here: bool,
}

struct File {
    file: Option<PolicyFile>,
    is_reported: bool,
}

/// Work that a place was given. Dropped, it is done.
pub struct UnderWay {
    chooser: Arc<Chooser>,
    number: u64,
}

/// Measures a prompt that is computed here, for the policy.
pub struct LocalWatch {
    under_way: UnderWay,
    prompt: u64,
    started: Option<Started>,
}

struct Started {
    at: Instant,
    reused: u64,
    slot: usize,
    others: Vec<(u64, usize)>,
}

impl Chooser {
    /// One that begins with `policy`, and tries places only by prompts that lack `trial_rows_min` rows.
    pub fn new(policy: Policy, file: Option<PolicyFile>, trial_rows_min: u64) -> Self {
        let state = State {
            policy,
            under_way: HashMap::new(),
            next: 0,
            queues: HashMap::new(),
            too_long: HashMap::new(),
            unsaved: false,
        };
        let file = Mutex::new(File { file, is_reported: false });
        Self { state: Mutex::new(state), began: Instant::now(), file, trial_rows_min }
    }

    /// Chooses among places, each with the rows that it would compute and the bytes of its transfer; `None` if none of
    /// them may be used now.
    pub fn choose(&self, places: &[(Place, Range<u64>, u64)], status: &EngineStatus) -> Option<Chosen> {
        let (state, at_ms) = (self.lock(), self.now_ms());
        let candidate = |(place, rows, wire_bytes): &(Place, Range<u64>, u64)| {
            let is_tried = state.under_way.values().any(|work| work.place == *place && work.tells);
            let too_short = rows.end - rows.start < self.trial_rows_min;
            Candidate {
                place: *place,
                compute: rows.clone(),
                wire_bytes: *wire_bytes,
                queue_ms: state.queue_ms(*place, status, at_ms),
                trial: if is_tried || too_short { Trial::Barred } else { Trial::Allowed },
            }
        };
        let candidates: Vec<Candidate> = places.iter().map(candidate).collect();
        Some(Chosen { choice: state.policy.choose(&candidates, at_ms)?, at_ms })
    }

    /// Notes that a place was given these rows.
    pub fn begin(self: &Arc<Self>, place: Place, rows: Range<u64>) -> UnderWay {
        let tells = rows.end.saturating_sub(rows.start) >= self.trial_rows_min;
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.under_way.insert(number, Work { place, tells, rows, runs_here: false });
        UnderWay { chooser: Arc::clone(self), number }
    }

    /// Watches a prompt that is about to be computed here, of which the rows from `held` on are missing.
    pub fn watch(self: &Arc<Self>, held: u64, prompt: u64) -> LocalWatch {
        LocalWatch { under_way: self.begin(Place::Local, held..prompt), prompt, started: None }
    }

    /// Feeds a producer's handoff to the policy.
    pub fn brought(self: &Arc<Self>, place: Place, handoff: &Handoff) {
        let (stats, elapsed_ms) = (&handoff.stats, handoff.elapsed.as_secs_f64() * 1e3);
        let held = (handoff.held_pages * PAGE_ROWS) as u64;
        let rows = u64::from(stats.rows);
        // The times are the producer's own: none can exceed the whole.
        let within = |us: u64| (us as f64 / 1e3).min(elapsed_ms);
        let observation = Observation {
            place,
            compute: held.max(stats.reused_rows.into()).min(rows)..rows,
            compute_ms: within(stats.times.compute_us),
            // A choice knows the payload bytes of pages, not their size after packing: so packing is part of the wire's
            // rate.
            wire_bytes: stats.payload_bytes,
            wire_ms: within(wire_us(&stats.times)),
            queue_ms: within(stats.times.queue_us),
            total_ms: elapsed_ms,
        };
        let now_ms = self.now_ms();
        let mut state = self.lock();
        state.queues.insert(place, (observation.queue_ms, now_ms));
        state.policy.met(place, handoff.node);
        state.policy.observe(&observation, now_ms);
        self.save_soon(state);
    }

    /// Backs off from a producer after a failure; gives the time of that, ms.
    pub fn failed(&self, place: Place) -> u64 {
        let now_ms = self.now_ms();
        self.lock().policy.fail(place, now_ms).saturating_sub(now_ms)
    }

    /// Backs off from a busy producer for the time it asked for, at most the policy's longest back-off.
    pub fn busy(&self, place: Place, retry: Duration) {
        let now_ms = self.now_ms();
        self.lock().policy.busy(place, u64::try_from(retry.as_millis()).unwrap_or(u64::MAX), now_ms);
    }

    /// Records that a producer refused so many rows as too many.
    pub fn too_long(&self, place: Place, rows: u64) {
        let (now_ms, mut state) = (self.now_ms(), self.lock());
        let known = state.too_long.get(&place).map_or(u64::MAX, |(known, _)| *known);
        state.too_long.insert(place, (rows.min(known), now_ms));
    }

    /// True if a producer refused as many rows within the last [`TOO_LONG_MS`]. Later it is asked again, as it may have
    /// been restarted.
    pub fn is_too_long(&self, place: Place, rows: u64) -> bool {
        let now_ms = self.now_ms();
        let known = self.lock().too_long.get(&place).copied();
        known.is_some_and(|(fewest, at_ms)| rows >= fewest && now_ms.saturating_sub(at_ms) < TOO_LONG_MS)
    }

    /// Writes the policy file, if there are new measurements.
    pub fn save(&self) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(PolicyFile { path, report }) = file.file.clone() else { return };
        let policy = {
            let mut state = self.lock();
            if !std::mem::take(&mut state.unsaved) {
                return;
            }
            state.policy.clone()
        };
        let saved = policy.save(&path);
        if let (Err(error), false) = (&saved, file.is_reported) {
            report(&format!("what was learnt about producers cannot be kept: {error}"));
        }
        file.is_reported = saved.is_err();
    }

    /// As [`Self::save`], on a thread of its own that is waited for [`SAVE_LIMIT`] at most: a disk that does not answer
    /// must not keep the server from ending, which then loses the latest measurements.
    pub fn save_at_the_end(self: &Arc<Self>) {
        let (chooser, (done, ended)) = (Arc::clone(self), channel());
        let saving = move || {
            chooser.save();
            // The receiver may have timed out.
            let _ = done.send(());
        };
        if thread::Builder::new().name("policy".into()).spawn(saving).is_ok() {
            let _ = ended.recv_timeout(SAVE_LIMIT);
        }
    }

    /// Schedules a write of the policy file, off the tasks of requests.
    fn save_soon(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let is_first = !std::mem::replace(&mut state.unsaved, true);
        drop(state);
        // It is written with what the next seconds bring. Without a runtime, or with one that ends before, at the end.
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && is_first
        {
            let chooser = Arc::clone(self);
            runtime.spawn(async move {
                sleep(SAVE_AFTER).await;
                spawn_blocking(move || chooser.save());
            });
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Expected queue time of a place, ms, as far as it is known here. This node computes all prompts that run and
    /// wait; a producer's is its last queue time less the time that has passed since, or the expected time of the work
    /// that this server has given it, whichever is longer.
    fn queue_ms(&self, place: Place, status: &EngineStatus, now_ms: u64) -> f64 {
        let time = |rows: &Range<u64>| self.policy.compute_ms(place, rows).unwrap_or(0.0);
        let given = self.under_way.values().filter(|work| work.place == place && !work.runs_here);
        // An empty sum would be -0.0, which people would read.
        let given_ms = given.fold(0.0, |sum, work| sum + time(&work.rows));
        if place == Place::Local {
            let running = status.slots.iter().filter_map(|slot| slot.task);
            let rest =
                running.map(|task| task.computed_tokens.min(task.prompt_tokens) as u64..task.prompt_tokens as u64);
            return rest.fold(given_ms, |sum, rows| sum + time(&rows));
        }
        let last_ms =
            self.queues.get(&place).map_or(0.0, |(last_ms, at_ms)| last_ms - now_ms.saturating_sub(*at_ms) as f64);
        given_ms.max(last_ms)
    }
}

impl UnderWay {
    /// Rows below `done` are computed.
    pub fn progress(&self, done: u64) {
        if let Some(work) = self.chooser.lock().under_way.get_mut(&self.number) {
            work.rows.start = done.clamp(work.rows.start, work.rows.end);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.chooser.lock().under_way.remove(&self.number);
    }
}

impl LocalWatch {
    /// The prompt left the queue with `reused` rows.
    pub fn started(&mut self, at: Instant, reused: usize, slot: usize, status: &EngineStatus) {
        if let Some(work) = self.under_way.chooser.lock().under_way.get_mut(&self.under_way.number) {
            work.runs_here = true;
        }
        self.started = Some(Started { at, reused: reused as u64, slot, others: others(status, slot) });
    }

    /// Feeds a finished prefill to the policy, at the prompt's first token. The engine's time is shared by the rows of
    /// this prompt and of others; if others came or went meanwhile, their rows are not known, and the measurement is
    /// used only if there is none yet.
    pub fn first_token(self, at: Instant, status: &EngineStatus) {
        let chooser = &self.under_way.chooser;
        let Some(started) = self.started else { return };
        let rows = started.reused..self.prompt;
        // So few rows measure a step's fixed cost, not a row's.
        if rows.end.saturating_sub(rows.start) < PAGE_ROWS as u64 {
            return;
        }
        let (before, after) = (&started.others, others(status, started.slot));
        let same = before.iter().map(|(number, _)| number).eq(after.iter().map(|(number, _)| number));
        let (now_ms, mut state) = (chooser.now_ms(), chooser.lock());
        if !same && state.policy.knows(Place::Local) {
            return;
        }
        let of_others: usize = before.iter().zip(&after).map(|((_, from), (_, to))| to.saturating_sub(*from)).sum();
        let own = (rows.end - rows.start) as f64;
        let total_ms = at.saturating_duration_since(started.at).as_secs_f64() * 1e3;
        // The share is rounded first: at most 1, it leaves no less than nothing for the queue.
        let share = if same { own / (own + of_others as f64) } else { 1.0 };
        let compute_ms = total_ms * share;
        let observation = Observation {
            place: Place::Local,
            compute: rows,
            compute_ms,
            wire_bytes: 0,
            wire_ms: 0.0,
            queue_ms: total_ms - compute_ms,
            total_ms,
        };
        state.policy.observe(&observation, now_ms);
        chooser.save_soon(state);
    }
}

impl std::fmt::Debug for LocalWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalWatch").field("prompt", &self.prompt).finish_non_exhaustive()
    }
}

/// Sending time of a handoff, microseconds: the kernel's busy time, if that is long enough to be exact, and otherwise
/// the time from the first byte to the last, in which the producer may have waited for its own computing.
fn wire_us(times: &SenderTimes) -> u64 {
    match times.send_busy_us {
        Some(busy_us) if busy_us >= EXACT_BUSY_US => busy_us.min(times.send_wall_us),
        _ => times.send_wall_us,
    }
}

/// Requests that run in other slots, with the rows that each has.
fn others(status: &EngineStatus, slot: usize) -> Vec<(u64, usize)> {
    let slots = status.slots.iter().enumerate().filter(|(index, _)| *index != slot);
    slots.filter_map(|(_, slot)| slot.task).map(|task| (task.number, task.computed_tokens)).collect()
}

#[cfg(test)]
mod tests;
