//! One lane of a producer: its state machine, the handoff under way, and the bytes in both directions.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use muser_engine::engine::{ReadyPage, RequestEvent};
use muser_host::{Answer, TimedEvent};
use muser_lane::accounting::SendAccount;
use muser_lane::pacing::LanePace;
use muser_lane::{Lane, linger};
use muser_trust::judgement::TrustError;
use muser_wire::{
    Acceptance, CancelReason, Codecs, HandoffPlan, PagePacker, RefuseCode, Request, Sender, SenderEvent, SenderTimes,
    Sent,
};
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

/// One lane of a producer, with its state machine and the handoff under way.
pub(super) struct Session<'a> {
    producer: &'a Producer,
    tell: Tell,
    lane: Lane,
    place: Place,
    standing: Standing,
    inbox: Inbox,
    pace: Option<LanePace>,
    clock: Clock,
    sender: Sender,
    packer: PagePacker,
    /// Bound of the bytes given to the kernel and not sent yet.
    unsent_bytes: u32,
    /// Keys given to `sender`.
    keys: Option<Arc<Keys>>,
    work: Option<Work>,
    /// True if the last write was not flushed yet.
    unflushed: bool,
}

/// A handoff under way.
pub(super) struct Work {
    answer: Answer,
    plan: HandoffPlan,
    held_pages: u32,
    nonce: [u8; 32],
    timeline: Timeline,
    /// True once the receiver was sent the acceptance, which waits for the engine to begin.
    accepted: bool,
    /// Leading rows that the engine reused.
    reused_rows: u32,
    /// Messages to the receiver that wait for room.
    outbox: VecDeque<Outgoing>,
    /// True once the engine has finished the prompt.
    computed: bool,
    /// True if other lanes sent at the same time.
    shared_pace: bool,
    /// Counts and times sent with the commit.
    committed: Option<(Sent, SenderTimes)>,
    _permit: OwnedSemaphorePermit,
}

/// Message to the receiver, sent once there is room for it.
enum Outgoing {
    /// A frame of pages of a layer group, out of those that were completed together, and how to pack them.
    Pages(u8, Range<u32>, Arc<[ReadyPage]>, Codecs),
    /// Number of computed rows.
    Progress(u32),
    /// Commit of all pages. Sent once the kernel has all bytes before it, so that its times are complete.
    Commit,
}

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
        let sender = Sender::new(producer.sender_settings(&lane), clock.now_ms()).admitting(lane.peer().id.0);
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
            sender,
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
            if self.sender.is_closed() {
                let closed_at = *closed_at.get_or_insert_with(Instant::now);
                if self.has_kernel_all() || closed_at.elapsed() > self.producer.stall_limit() {
                    return;
                }
            }
            let wait = self.keep_pace();
            let happened = {
                let (mut reading, mut writing) = split(&mut self.lane);
                let output = self.sender.output();
                let output = &output[..output.len().min(WRITE_BYTES)];
                let may_push = wait.is_zero() && (!output.is_empty() || self.unflushed);
                tokio::select! {
                    // Not before everything was taken: what a peer sends waits with the kernel, and then with the peer.
                    read = self.inbox.fill(&mut reading), if self.inbox.is_empty() && !self.sender.is_closed() => Happened::Read(read),
                    pushed = push(&mut writing, output), if may_push => Happened::Pushed(pushed),
                    () = sleep(wait), if !wait.is_zero() => Happened::Waited,
                    () = yield_now(), if has_more_to_say => Happened::Waited,
                    event = next_event(&mut self.work) => Happened::Engine(event),
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
                    self.sender.output_sent(bytes, self.clock.now_ms());
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
                    self.sender.tick(self.clock.now_ms());
                    if self.work.is_none() && self.place.is_forgotten(Instant::now()) {
                        return;
                    }
                    // A long chunk, or a place in the engine's queue, is no silence.
                    if self.work.is_some() {
                        self.sender.ping(0);
                    }
                }
            }
        }
    }

    /// Takes what was read, frame by frame, until all is taken or the rest has to wait.
    async fn take(&mut self) -> ControlFlow<()> {
        loop {
            let taken = self.sender.take_bytes(self.inbox.unread(), self.clock.now_ms());
            self.inbox.took(taken);
            while let Some(event) = self.sender.poll_event() {
                self.hear(event).await?;
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
        if self.sender.output().is_empty() {
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
        self.sender.output().is_empty() && !self.unflushed
    }

    /// Gives this node's current keys to the state machine, if the receiver is still admitted.
    async fn renew_keys(&mut self) -> Result<(), TrustError> {
        let keys = self.standing.current(None).await?;
        if self.keys.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &keys)) {
            self.sender.set_keys(keys.macs.clone());
            self.keys = Some(keys);
        }
        Ok(())
    }

    /// Begins the requested handoff, unless this node's keys or deny-list do not allow it.
    async fn begin(&mut self, request: &Request) -> Result<Work, (RefuseCode, String)> {
        match self.renew_keys().await {
            Ok(()) => self.producer.begin(self.lane.peer().id, request).await,
            Err(error) => {
                (self.tell)(ProducerNews::Untrusted(error));
                Err((RefuseCode::Internal, "the producer cannot read its keys or its deny-list".into()))
            }
        }
    }

    /// Handles an event of the receiver. Breaks if the lane is to end.
    async fn hear(&mut self, event: SenderEvent) -> ControlFlow<()> {
        if matches!(event, SenderEvent::Request(_))
            && let Err(error @ (TrustError::Revoked { .. } | TrustError::OutOfTime { .. })) = self.renew_keys().await
        {
            // With a new lane it will be told.
            (self.tell)(ProducerNews::Untrusted(error));
            return ControlFlow::Break(());
        }
        match event {
            // The place was given to another lane just now.
            SenderEvent::Request(_) if !self.place.begin() => return ControlFlow::Break(()),
            SenderEvent::Request(request) => match self.begin(&request).await {
                Ok(begun) => {
                    // What was sent before counts no more.
                    if let Some(pace) = &mut self.pace {
                        pace.take_sending(self.producer.clock.now());
                    }
                    self.work = Some(begun);
                }
                Err((code, detail)) => {
                    let retry_ms = if code == RefuseCode::Busy { RETRY_MS } else { 0 };
                    // The request is the one under way, so it can be refused.
                    let _ = self.sender.refuse(code, retry_ms, &detail);
                }
            },
            SenderEvent::Installed(_) => {
                if let Some(work) = self.work.take() {
                    // Told before the work is dropped, which lets a producer that ends go.
                    self.report(&work).into_iter().for_each(|report| (self.tell)(ProducerNews::Sent(report)));
                }
            }
            SenderEvent::Cancelled(_) | SenderEvent::Failed(_) => self.work = None,
            SenderEvent::Hello(_) | SenderEvent::Pong(_) => {}
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

    /// Handles an event of the engine.
    fn heed(&mut self, timed: Option<TimedEvent>) {
        let Some(work) = &mut self.work else { return };
        match timed.map(|timed| (timed.at, timed.event)) {
            Some((at, RequestEvent::Started { reused, .. })) => {
                work.timeline.started(at);
                work.reused_rows = u32::try_from(reused).unwrap_or(u32::MAX);
                let acceptance = Acceptance {
                    nonce: work.nonce,
                    first_page: work.held_pages,
                    reused_rows: work.reused_rows,
                    plan: work.plan.clone(),
                };
                match self.sender.accept(acceptance, self.clock.now_ms()) {
                    Ok(()) => work.accepted = true,
                    Err(_) => self.give_up(),
                }
            }
            Some((_, RequestEvent::Progress { computed, pages, .. })) => {
                let frame_bytes = u64::from(FRAME_BYTES).max(work.plan.body_bytes_min());
                let (pace, unsent_bytes) = (self.producer.pace.as_ref(), self.unsent_bytes.into());
                let flow = Flow { pace: pace.map(|pace| pace.bytes_per_s()), frame_bytes, unsent_bytes };
                let codecs = self.producer.codecs(&pages, &mut self.packer, &flow);
                let bytes_max = self.sender.frame_bytes_max().min(FRAME_BYTES);
                work.outbox.extend(frames(&work.plan, (pages.into(), codecs), bytes_max));
                work.outbox.push_back(Outgoing::Progress(u32::try_from(computed).unwrap_or(u32::MAX)));
            }
            Some((at, RequestEvent::Finished(_))) => {
                work.timeline.computed(at);
                work.computed = true;
                work.outbox.push_back(Outgoing::Commit);
            }
            Some((_, RequestEvent::Failed(_))) | None => self.give_up(),
            Some(_) => {}
        }
    }

    /// Sends what there is room for, up to one frame of pages, so that other lanes get their turn. Returns true if more
    /// can be sent now.
    async fn say(&mut self) -> bool {
        while let Some(work) = &mut self.work
            && self.sender.wants_more()
            && let Some(next) = work.outbox.pop_front()
        {
            let said = match next {
                Outgoing::Commit => {
                    self.commit().await;
                    return false;
                }
                Outgoing::Progress(rows) => self.sender.progress(rows),
                Outgoing::Pages(group, range, ready, codecs) => {
                    let began = Instant::now();
                    self.sender.use_codecs(codecs);
                    let said = self.sender.send_pages(group, range, |layer, page| bytes_of(&ready, layer, page));
                    let now = Instant::now();
                    work.timeline.packed(now - began, now, || socket::kernel_times(&self.lane));
                    if said.is_ok() {
                        return !work.outbox.is_empty();
                    }
                    said
                }
            };
            if said.is_err() {
                self.give_up();
            }
        }
        false
    }

    /// Sends the signed commit: once the kernel has all pages, and if keys and deny-list still allow it.
    async fn commit(&mut self) {
        if !self.has_kernel_all() {
            self.work.iter_mut().for_each(|work| work.outbox.push_front(Outgoing::Commit));
            return;
        }
        if let Err(error) = self.renew_keys().await {
            (self.tell)(ProducerNews::Untrusted(error));
            return self.give_up();
        }
        let Some(work) = &mut self.work else { return };
        let times = work.timeline.times(Instant::now(), &socket::kernel_times(&self.lane));
        work.committed = Some((self.sender.sent(), times));
        if self.sender.commit(times, self.clock.now_ms()).is_err() {
            self.give_up();
        }
    }

    /// Cancels the handoff under way and tells the receiver; if it cannot be told, the stall limit ends the lane.
    fn give_up(&mut self) {
        if let Some(work) = self.work.take() {
            let _ = if work.accepted {
                self.sender.cancel(CancelReason::Internal, self.clock.now_ms())
            } else {
                self.sender.refuse(RefuseCode::Internal, 0, "the engine gave up")
            };
        }
    }
}

impl Work {
    /// Work that the engine was given.
    pub(super) fn new(
        answer: Answer,
        (plan, held_pages): (HandoffPlan, u32),
        nonce: [u8; 32],
        requested: Instant,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            answer,
            plan,
            held_pages,
            nonce,
            timeline: Timeline::new(requested),
            accepted: false,
            reused_rows: 0,
            outbox: VecDeque::new(),
            computed: false,
            shared_pace: false,
            committed: None,
            _permit: permit,
        }
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

/// The engine's next event on the handoff under way, once the last one was passed on; pending for ever if none is
/// expected.
async fn next_event(work: &mut Option<Work>) -> Option<TimedEvent> {
    match work {
        Some(work) if !work.computed && work.outbox.is_empty() => work.answer.next().await,
        _ => pending().await,
    }
}

/// The bytes of a page; empty if it is not there, which makes its frame invalid.
fn bytes_of(ready: &[ReadyPage], layer: u16, page: u32) -> &[u8] {
    let is_it = |ready: &&ReadyPage| ready.layer == usize::from(layer) && ready.page == page as usize;
    ready.iter().find(is_it).map_or(&[][..], |ready| ready.bytes.as_ref())
}

/// The frames for pages that were completed together, group by group.
fn frames(plan: &HandoffPlan, (ready, codecs): (Arc<[ReadyPage]>, Codecs), frame_bytes_max: u32) -> Vec<Outgoing> {
    let number = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
    let pages = || ready.iter().map(|ready| number(ready.page));
    let (Some(first), Some(last)) = (pages().min(), pages().max()) else { return Vec::new() };
    let groups = (0u8..=u8::MAX).take(plan.groups().len());
    let of_group = |group| {
        let ranges = plan.frames(group, first..last.saturating_add(1), frame_bytes_max);
        let frame = |range| Outgoing::Pages(group, range, Arc::clone(&ready), codecs);
        ranges.into_iter().map(frame).collect::<Vec<_>>()
    };
    groups.flat_map(of_group).collect()
}
