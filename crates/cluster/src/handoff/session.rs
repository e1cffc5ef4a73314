//! One lane of a producer: what its core asks for is carried out here, with a socket, an engine and the node's lists.

use std::future::pending;
use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use muser_engine::engine::{ReadyPage, RequestEvent};
use muser_handoff::{ProducerCore, ProducerEffect, ReadyPages, SendStep};
use muser_host::{Answer, TimedEvent};
use muser_lane::accounting::SendAccount;
use muser_lane::pacing::LanePace;
use muser_lane::{Lane, linger};
use muser_trust::judgement::TrustError;
use muser_wire::{CancelReason, PagePacker, RefuseCode, Sender, SenderTimes, Sent};
use tokio::io::{AsyncWriteExt, split};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::yield_now;
use tokio::time::{interval, sleep, timeout};

use super::compression::Flow;
use super::inbox::Inbox;
use super::lanes::Place;
use super::producer::{Producer, Tell};
use super::report::{HandoffReport, KeptPace, ProducerNews};
use super::timeline::Timeline;
use super::trust::{Keys, Standing};
use super::{Clock, FRAME_BYTES, push, socket};

/// Buffer of one read, bytes.
const READ_BYTES: usize = 64 << 10;
/// Most bytes of one write: encrypted and counted in one go.
const WRITE_BYTES: usize = 64 << 10;
/// Bounds of the bytes given to the kernel and not sent yet: what the pace allows in 10 ms, clamped to these, bytes.
const UNSENT_BYTES: u32 = 512 << 10;
const UNSENT_BYTES_MIN: u32 = 32 << 10;
/// Interval at which the state machine checks its deadlines.
const TICK: Duration = Duration::from_millis(500);
/// Time limit for sending the refusal of a surplus lane.
const TURN_AWAY_LIMIT: Duration = Duration::from_secs(5);
/// Time after which a receiver that was refused for load may try again, ms.
const RETRY_MS: u32 = 1000;

/// One lane of a producer, with its core and the handoff under way.
pub(super) struct Session<'a> {
    producer: &'a Producer,
    tell: Tell,
    lane: Lane,
    place: Place,
    standing: Standing,
    inbox: Inbox,
    pace: Option<LanePace>,
    clock: Clock,
    core: ProducerCore,
    packer: PagePacker,
    /// Bound of the bytes given to the kernel and not sent yet.
    unsent_bytes: u32,
    /// Keys given to `core`.
    keys: Option<Arc<Keys>>,
    work: Option<Work>,
    /// True if the last write was not flushed yet.
    unflushed: bool,
}

/// A handoff under way, as far as its core does not know it.
pub(super) struct Work {
    answer: Answer,
    timeline: Timeline,
    /// Leading rows that the engine reused.
    reused_rows: u32,
    /// True if other lanes sent at the same time.
    shared_pace: bool,
    /// Counts and times sent with the commit.
    committed: Option<(Sent, SenderTimes)>,
    _permit: OwnedSemaphorePermit,
}

/// Pages that the engine completed together.
#[derive(Debug)]
struct Completed(Vec<ReadyPage>);

/// Event that wakes the lane's loop.
enum Happened {
    Read(io::Result<()>),
    Pushed(io::Result<usize>),
    Waited,
    Engine(Option<TimedEvent>),
    Tick,
    /// Another lane needs this one's place.
    Ended,
}

impl<'a> Session<'a> {
    /// A lane on which nothing was sent yet.
    pub(super) fn new(producer: &'a Producer, lane: Lane, place: Place, tell: Tell) -> Self {
        let clock = Clock::start();
        let pace = producer.pace.as_ref().map(|pace| pace.lane());
        let in_10_ms = producer.pace.as_ref().map_or(u64::MAX, |pace| pace.bytes_per_s() / 100);
        let unsent_bytes = u32::try_from(in_10_ms).unwrap_or(u32::MAX).clamp(UNSENT_BYTES_MIN, UNSENT_BYTES);
        socket::watch(&lane);
        socket::bound_unsent(&lane, unsent_bytes);
        let settings = producer.sender_settings(&lane);
        let core = ProducerCore::new(settings, lane.peer().id.0, FRAME_BYTES, clock.now_ms());
        let (inbox, packer, keys, work) = (Inbox::new(READ_BYTES), PagePacker::default(), None, None);
        Self {
            producer,
            tell,
            standing: Standing::of(&producer.member, &lane, None),
            lane,
            place,
            inbox,
            pace,
            clock,
            core,
            packer,
            unsent_bytes,
            keys,
            work,
            unflushed: false,
        }
    }

    /// Runs the lane to its end. A handoff under way is cancelled then.
    pub(super) async fn run(mut self) {
        let (mut tick, mut closed_at) = (interval(TICK), None);
        loop {
            if self.take().await.is_break() {
                return;
            }
            let has_more_to_say = self.say().await;
            let wants_event = self.core.wants_event();
            if self.core.is_closed() {
                let closed_at = *closed_at.get_or_insert_with(Instant::now);
                if self.has_kernel_all() || closed_at.elapsed() > self.producer.stall_limit() {
                    return;
                }
            }
            let wait = self.keep_pace();
            let happened = {
                let (mut reading, mut writing) = split(&mut self.lane);
                let output = self.core.output();
                let output = &output[..output.len().min(WRITE_BYTES)];
                let may_read = self.inbox.is_empty() && !self.core.is_closed();
                let may_push = wait.is_zero() && (!output.is_empty() || self.unflushed);
                tokio::select! {
                    // Not before everything was taken: what a peer sends waits with the kernel, and then with the peer.
                    read = self.inbox.fill(&mut reading), if may_read => Happened::Read(read),
                    pushed = push(&mut writing, output), if may_push => Happened::Pushed(pushed),
                    () = sleep(wait), if !wait.is_zero() => Happened::Waited,
                    () = yield_now(), if has_more_to_say => Happened::Waited,
                    event = next_event(&mut self.work, wants_event) => Happened::Engine(event),
                    _ = tick.tick() => Happened::Tick,
                    () = self.place.is_needed() => Happened::Ended,
                }
            };
            match happened {
                Happened::Read(Ok(())) => {
                    if self.work.is_none() {
                        // It may be a request. If there are no keys, that is said when it has been read.
                        let _ = self.renew_keys().await;
                    }
                }
                Happened::Pushed(Ok(bytes)) => {
                    self.core.output_sent(bytes, self.clock.now_ms());
                    self.unflushed = bytes > 0;
                    if let Some(pace) = &mut self.pace {
                        pace.sent(bytes as u64, self.producer.clock.now());
                    }
                }
                Happened::Waited => {}
                // The peer has left, and everything with it.
                Happened::Read(Err(_)) | Happened::Pushed(Err(_)) | Happened::Ended => return,
                Happened::Engine(event) => self.heed(event),
                Happened::Tick => {
                    self.core.tick(self.clock.now_ms());
                    if self.work.is_none() && self.place.is_forgotten(Instant::now()) {
                        return;
                    }
                }
            }
        }
    }

    /// Takes what was read, frame by frame, until all is taken or the rest has to wait.
    async fn take(&mut self) -> ControlFlow<()> {
        loop {
            let taken = self.core.take_bytes(self.inbox.unread(), self.clock.now_ms());
            self.inbox.took(taken);
            while let Some(effect) = self.core.poll_effect() {
                self.carry_out(effect).await?;
            }
            if self.work.is_none() {
                self.place.rest();
            }
            if taken == 0 || self.inbox.is_empty() {
                return ControlFlow::Continue(());
            }
        }
    }

    /// Wait before the next write, by the pace.
    fn keep_pace(&mut self) -> Duration {
        let Some(pace) = &mut self.pace else { return Duration::ZERO };
        if self.core.output().is_empty() {
            pace.end(self.producer.clock.now());
            return Duration::ZERO;
        }
        let wait = pace.begin(self.producer.clock.now(), |rate| socket::set_pacing_rate(&self.lane, rate));
        if let Some(work) = &mut self.work {
            work.shared_pace |= pace.is_shared();
        }
        wait
    }

    /// True if all output was written and flushed to the socket.
    fn has_kernel_all(&self) -> bool {
        self.core.output().is_empty() && !self.unflushed
    }

    /// Gives this node's current keys to the state machine, if the receiver is still admitted.
    async fn renew_keys(&mut self) -> Result<(), TrustError> {
        let keys = self.standing.current(None).await?;
        if self.keys.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &keys)) {
            self.core.set_keys(keys.macs.clone());
            self.keys = Some(keys);
        }
        Ok(())
    }

    /// Carries out an effect of the core. Breaks if the lane is to end.
    async fn carry_out(&mut self, effect: ProducerEffect) -> ControlFlow<()> {
        match effect {
            ProducerEffect::AskTrust => return self.begin().await,
            ProducerEffect::Installed => {
                if let Some(work) = self.work.take() {
                    // Told before the work is dropped, which lets a producer that ends go.
                    self.report(&work).into_iter().for_each(|report| (self.tell)(ProducerNews::Sent(report)));
                }
            }
            ProducerEffect::Over(_) => self.work = None,
        }
        ControlFlow::Continue(())
    }

    /// Begins the requested handoff, unless this node's keys or deny-list do not allow it. Breaks if the lane is to end.
    async fn begin(&mut self) -> ControlFlow<()> {
        let renewed = self.renew_keys().await;
        let is_trusted = renewed.is_ok();
        if let Err(error) = renewed {
            let is_of_peer = matches!(error, TrustError::Revoked { .. } | TrustError::OutOfTime { .. });
            (self.tell)(ProducerNews::Untrusted(error));
            if is_of_peer {
                // With a new lane it will be told.
                return ControlFlow::Break(());
            }
        }
        if !self.place.begin() {
            // The place was given to another lane just now.
            return ControlFlow::Break(());
        }
        if !is_trusted {
            self.core.refuse(RefuseCode::Internal, 0, "the producer cannot read its keys or its deny-list");
            return ControlFlow::Continue(());
        }
        let Some(request) = self.core.trusted(&self.producer.shape) else { return ControlFlow::Continue(()) };
        match self.producer.begin(self.lane.peer().id, request).await {
            Ok((nonce, begun)) => {
                self.core.submitted(nonce);
                // What was sent before counts no more.
                if let Some(pace) = &mut self.pace {
                    pace.take_sending(self.producer.clock.now());
                }
                self.work = Some(begun);
            }
            Err((code, detail)) => {
                let retry_ms = if code == RefuseCode::Busy { RETRY_MS } else { 0 };
                self.core.refuse(code, retry_ms, &detail);
            }
        }
        ControlFlow::Continue(())
    }

    /// Report of a handoff that the receiver has installed.
    fn report(&mut self, work: &Work) -> Option<HandoffReport> {
        let (sent, times) = work.committed?;
        let kernel = socket::kernel_times(&self.lane);
        let account: SendAccount = work.timeline.account(sent.stored_bytes, Instant::now(), &kernel);
        account.busy.into_iter().for_each(|busy| self.producer.sent(sent.stored_bytes, busy));
        let sending = self.pace.as_mut().and_then(|pace| pace.take_sending(self.producer.clock.now()));
        let time = sending.or(account.busy).unwrap_or(account.wall);
        let pace = self.producer.pace.as_ref();
        let pace = pace.map(|pace| KeptPace { bytes_per_s: pace.bytes_per_s(), shared: work.shared_pace, time });
        let (decoder, reused_rows) = (self.lane.peer().name.as_str().to_owned(), work.reused_rows);
        Some(HandoffReport { decoder, sent, reused_rows, times, account, pace })
    }

    /// Passes an event of the engine on to the core.
    fn heed(&mut self, timed: Option<TimedEvent>) {
        let Some(work) = &mut self.work else { return };
        match timed.map(|timed| (timed.at, timed.event)) {
            Some((at, RequestEvent::Started { reused, .. })) => {
                work.timeline.started(at);
                work.reused_rows = u32::try_from(reused).unwrap_or(u32::MAX);
                if self.core.started(work.reused_rows, self.clock.now_ms()).is_err() {
                    self.work = None;
                }
            }
            Some((_, RequestEvent::Progress { computed, pages, .. })) => {
                let (pace, unsent_bytes) = (self.producer.pace.as_ref(), self.unsent_bytes.into());
                let frame_bytes = self.core.frame_bytes();
                let flow = Flow { pace: pace.map(|pace| pace.bytes_per_s()), frame_bytes, unsent_bytes };
                let codecs = self.producer.codecs(&pages, &mut self.packer, &flow);
                let pages = Completed(pages);
                self.core.computed(u32::try_from(computed).unwrap_or(u32::MAX), pages.range(), Arc::new(pages), codecs);
            }
            Some((at, RequestEvent::Finished(_))) => {
                work.timeline.computed(at);
                self.core.finished();
            }
            Some((_, RequestEvent::Failed(_))) | None => self.give_up(),
            Some(_) => {}
        }
    }

    /// Sends what there is room for, up to one frame of pages, so that other lanes get their turn. Returns true if more
    /// can be sent now.
    async fn say(&mut self) -> bool {
        let began = Instant::now();
        match self.core.send(self.has_kernel_all(), self.clock.now_ms()) {
            SendStep::Idle => false,
            SendStep::Frame { has_more } => {
                let now = Instant::now();
                if let Some(work) = &mut self.work {
                    work.timeline.packed(now - began, now, || socket::kernel_times(&self.lane));
                }
                has_more
            }
            SendStep::Commit => {
                self.commit().await;
                false
            }
            SendStep::GaveUp(_) => {
                self.work = None;
                false
            }
        }
    }

    /// Sends the signed commit, if keys and deny-list still allow it.
    async fn commit(&mut self) {
        if let Err(error) = self.renew_keys().await {
            (self.tell)(ProducerNews::Untrusted(error));
            return self.give_up();
        }
        let Some(work) = &mut self.work else { return };
        let times = work.timeline.times(Instant::now(), &socket::kernel_times(&self.lane));
        match self.core.commit(times, self.clock.now_ms()) {
            Ok(sent) => work.committed = Some((sent, times)),
            Err(_) => self.work = None,
        }
    }

    /// Cancels the handoff under way.
    fn give_up(&mut self) {
        self.work = None;
        self.core.give_up(CancelReason::Internal, self.clock.now_ms());
    }
}

impl Work {
    /// Work that the engine was given.
    pub(super) fn new(answer: Answer, requested: Instant, permit: OwnedSemaphorePermit) -> Self {
        Self {
            answer,
            timeline: Timeline::new(requested),
            reused_rows: 0,
            shared_pace: false,
            committed: None,
            _permit: permit,
        }
    }
}

impl Completed {
    /// Range of their absolute indices.
    fn range(&self) -> Range<u32> {
        let pages = || self.0.iter().map(|ready| u32::try_from(ready.page).unwrap_or(u32::MAX));
        pages().min().unwrap_or(0)..pages().max().map_or(0, |last| last.saturating_add(1))
    }
}

impl ReadyPages for Completed {
    fn bytes(&self, layer: u16, page: u32) -> Option<&[u8]> {
        let is_it = |ready: &&ReadyPage| ready.layer == usize::from(layer) && ready.page == page as usize;
        self.0.iter().find(is_it).map(|ready| ready.bytes.as_ref())
    }
}

/// Refuses a surplus lane of a node, and closes it.
pub(super) async fn turn_away(producer: &Producer, mut lane: Lane) {
    let mut sender = Sender::new(producer.sender_settings(&lane), 0);
    sender.turn_away(RefuseCode::Busy, RETRY_MS, "all lanes that this node may have are busy");
    // It hears it or not.
    let _ = timeout(TURN_AWAY_LIMIT, lane.write_all(sender.output())).await;
    linger(lane).await;
}

/// The engine's next event on the handoff under way; pending for ever if none is wanted.
async fn next_event(work: &mut Option<Work>, is_wanted: bool) -> Option<TimedEvent> {
    match work {
        Some(work) if is_wanted => work.answer.next().await,
        _ => pending().await,
    }
}
