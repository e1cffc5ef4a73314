//! The producer, driven as by its real caller: it accepts or refuses requests, sends pages in any order once their last
//! row is computed, and ends with the commit.

use std::collections::BTreeMap;
use std::ops::Range;

use muser_kv::{KvIdentity, PrefixScope};
use muser_trust::identity::NodeId;
use muser_wire::{
    Acceptance, CancelReason, Codecs, HandoffPlan, Identity, Node, RefuseCode, Request, SendError, Sender, SenderEvent,
    SenderSettings, SenderTimes,
};

use crate::attempt::Excuse;
use crate::context::{Context, TICK_MS};
use crate::coverage::{Mark, mark_of_failure};
use crate::keys::KeyTable;
use crate::lane::{Lane, SenderEnd, binding};
use crate::shape::PageName;
use crate::store::rows_of;
use crate::violation::Violation;

/// Send backlog above which no more pages are taken, in bytes.
pub(crate) const BACKLOG_BYTES_MAX: usize = 2000;

/// A process that computes prompts for others.
pub(crate) struct Producer {
    pub(crate) node: Node,
    pub(crate) keys: KeyTable,
    /// End of its downtime.
    pub(crate) down_until_ms: u64,
    pub(crate) frozen_until_ms: u64,
    concurrent_max: usize,
    codecs: Codecs,
    /// Computed pages by realm identity and name, with the asker; `None` if that was a recording.
    known: BTreeMap<KvIdentity, BTreeMap<PageName, Option<Asker>>>,
    scope: PrefixScope,
    /// It sends wrong pages.
    pub(crate) lies: bool,
}

/// A decoder's index, and the number of the realm of its request.
type Asker = (usize, u32);

/// Model identity from which page names are derived.
pub(crate) const MODEL: KvIdentity = KvIdentity::PROCESS_LOCAL;

/// Node id of a decoder, as used to derive realms.
fn node_of(decoder: usize) -> NodeId {
    NodeId([u8::try_from(decoder).unwrap_or(u8::MAX); 32])
}

/// A handoff under way.
#[derive(Debug)]
pub(crate) struct Work {
    request: Request,
    asker: Option<Asker>,
    plan: HandoffPlan,
    pages: BTreeMap<(u16, u32), Vec<u8>>,
    pub(crate) began_ms: u64,
    /// Start of the computation; `row_ms` is the time for each row.
    starts_ms: u64,
    row_ms: u64,
    reused_rows: u32,
    rows_done: u32,
    rows_told: u32,
    is_accepted: bool,
    /// Frames not sent yet: layer group and page range.
    frames: Vec<(u8, Range<u32>)>,
    /// Row at which the engine fails; `None` if it does not.
    fails_at_row: Option<u32>,
}

impl Work {
    pub(crate) fn expires_in_ms(&self) -> u64 {
        self.request.expires_in_ms.into()
    }
}

impl Producer {
    pub(crate) fn new(identity: Identity, context: &mut Context) -> Self {
        Self {
            node: Node { boot_id: context.bytes(), node_id: context.bytes(), identity },
            keys: KeyTable::default(),
            down_until_ms: 0,
            frozen_until_ms: 0,
            concurrent_max: context.random.usize(1..5),
            codecs: if context.once_in(4) { Codecs::NONE_ONLY } else { Codecs::ALL },
            known: BTreeMap::new(),
            scope: PrefixScope::Cluster,
            lies: false,
        }
    }

    /// Limits reuse of computed pages to the decoder that they were computed for.
    pub(crate) fn keep_apart(&mut self) {
        self.scope = PrefixScope::Node;
    }

    /// Drops all computed pages, as a new process does.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }

    /// Ends a freeze.
    pub(crate) fn wake(&mut self, now_ms: u64) {
        self.frozen_until_ms = self.frozen_until_ms.min(now_ms);
    }

    /// Takes the connection with this number.
    pub(crate) fn accept(&self, lane: u32, context: &mut Context) -> SenderEnd {
        let least = context.shape.plan(1, 0).map_or(0, |plan| plan.body_bytes_min());
        let settings = SenderSettings {
            node: self.node,
            lane: binding(lane),
            keys: self.keys.mac_keys(),
            codecs: self.codecs,
            concurrent_max: u32::try_from(self.concurrent_max).unwrap_or(u32::MAX),
            context_max: 1000,
            pages_bytes_max: u32::try_from(least).unwrap_or(u32::MAX) + context.random.u32(0..2000),
            backlog_bytes_max: context.random.usize(0..BACKLOG_BYTES_MAX),
            stall_limit_ms: context.stall_limit_ms,
        };
        let (moved_ms, tick_at_ms) = (context.now_ms, context.now_ms);
        SenderEnd { machine: Sender::new(settings, context.now_ms), work: None, moved_ms, tick_at_ms }
    }

    /// Drives the sender of a lane; `busy` handoffs are under way over all lanes.
    pub(crate) fn drive(&mut self, lane: &mut Lane, busy: usize, context: &mut Context) -> Result<(), Violation> {
        if lane.key_id().is_some_and(|key_id| !self.keys.serves(key_id)) {
            lane.excuse_attempt(Excuse::Keys);
        }
        self.read(lane, busy, context)?;
        self.compute(lane, context)?;
        self.send(lane, context)?;
        let Some(end) = &mut lane.sender else { return Ok(()) };
        if end.tick_at_ms <= context.now_ms {
            end.tick_at_ms = context.now_ms + TICK_MS;
            end.machine.tick(context.now_ms);
            if end.work.is_some() {
                end.machine.ping(context.now_ms);
            }
        }
        lane.carry_to_receiver(context);
        let is_done = lane.sender.as_ref().is_some_and(|end| {
            end.machine.is_closed() && (end.machine.output().is_empty() || lane.to_receiver.room() == 0)
        });
        if is_done {
            lane.sender = None;
            lane.to_receiver.finish();
        }
        Ok(())
    }

    fn read(&mut self, lane: &mut Lane, busy: usize, context: &mut Context) -> Result<(), Violation> {
        loop {
            while let Some(event) = lane.sender.as_mut().and_then(|end| end.machine.poll_event()) {
                self.hear(event, lane, busy, context)?;
            }
            let Some(end) = &mut lane.sender else { return Ok(()) };
            let arrived = &mut lane.to_sender.arrived;
            if arrived.is_empty() {
                if lane.to_sender.is_drained() && !end.machine.is_closed() {
                    end.machine.ended();
                    continue;
                }
                return Ok(());
            }
            let bite = arrived.len().min(context.random.usize(1..=lane.bite));
            let taken = end.machine.take_bytes(&arrived[..bite], context.now_ms);
            arrived.drain(..taken);
            if taken == 0 {
                return Ok(());
            }
            end.moved_ms = context.now_ms;
        }
    }

    fn hear(
        &mut self,
        event: SenderEvent,
        lane: &mut Lane,
        busy: usize,
        context: &mut Context,
    ) -> Result<(), Violation> {
        let asker = asker_of(lane);
        let Some(end) = &mut lane.sender else { return Ok(()) };
        match event {
            SenderEvent::Request(request) => match self.judge(&request, (lane.decoder, busy), context) {
                Ok(work) => {
                    end.work = Some(Work { asker, ..work });
                    lane.lies = self.lies;
                    return self.check_scope(&request, lane, context);
                }
                Err((code, excuse)) => {
                    let refused = end.machine.refuse(code, 100, "not now");
                    refused.map_err(|error| Violation::Call { call: "refuse", error: error.to_string() })?;
                    excuse.into_iter().for_each(|excuse| lane.excuse_attempt(excuse));
                }
            },
            SenderEvent::Installed(_) | SenderEvent::Cancelled(_) => end.work = None,
            SenderEvent::Failed(failure) => {
                context.say(|| format!("lane {}: the sender failed: {failure}", lane.id));
                mark_of_failure(&failure).into_iter().for_each(|mark| context.mark(mark));
                end.work = None;
            }
            SenderEvent::Hello(_) | SenderEvent::Pong(_) => {}
        }
        Ok(())
    }

    /// Begins the work on a request, or returns the code to refuse it with and the excuse that this gives the attempt.
    fn judge(
        &self,
        request: &Request,
        (decoder, busy): (usize, usize),
        context: &mut Context,
    ) -> Result<Work, (RefuseCode, Option<Excuse>)> {
        let shape = context.shape.clone();
        let (rows, held) = (rows_of(&request.tokens), request.held_pages);
        let names = shape.names(&request.tokens);
        let is_claim_right = held <= rows / shape.page_rows
            && held.checked_sub(1).is_none_or(|last| names[last as usize] == request.held_name);
        if !is_claim_right {
            return Err((RefuseCode::StaleClaim, None));
        }
        if busy >= self.concurrent_max {
            return Err((RefuseCode::Busy, Some(Excuse::Busy)));
        }
        let Ok(plan) = shape.plan(rows, held) else { return Err((RefuseCode::TooLong, None)) };
        let scope = self.scope_of(decoder, request);
        let known = self.known.get(&scope);
        let known = names.iter().take_while(|name| known.is_some_and(|known| known.contains_key(*name))).count();
        let reused_rows = rows.min(u32::try_from(known).unwrap_or(u32::MAX) * shape.page_rows);
        let pages = (0u16..).zip(plan.layers()).flat_map(|(layer, range)| range.clone().map(move |page| (layer, page)));
        let pages = pages.map(|(layer, page)| {
            let name = &names[page as usize];
            ((layer, page), if self.lies { shape.wrong_page(layer, name) } else { shape.page(layer, name) })
        });
        let pages = pages.collect();
        let fails = context.fault_in(20);
        Ok(Work {
            request: request.clone(),
            asker: None,
            plan,
            pages,
            began_ms: context.now_ms,
            starts_ms: context.now_ms + context.random.u64(0..60),
            row_ms: context.random.u64(0..6),
            reused_rows,
            rows_done: reused_rows,
            rows_told: 0,
            is_accepted: false,
            frames: Vec::new(),
            fails_at_row: fails.then(|| context.random.u32(0..=rows)),
        })
    }

    fn scope_of(&self, decoder: usize, request: &Request) -> KvIdentity {
        self.scope.realm(node_of(decoder).0, &request.realm).identity(&MODEL)
    }

    /// Checks that reused pages were computed for the same realm, and under [`PrefixScope::Node`] for the same decoder.
    fn check_scope(&self, request: &Request, lane: &Lane, context: &Context) -> Result<(), Violation> {
        let (Some(own), Some(known)) = (asker_of(lane), self.known.get(&self.scope_of(lane.decoder, request))) else {
            return Ok(());
        };
        let is_own = |asker: &Asker| {
            let (decoder, realm) = *asker;
            realm == own.1 && (decoder == own.0 || self.scope == PrefixScope::Cluster)
        };
        let names = context.shape.names(&request.tokens);
        let is_right = names.iter().filter_map(|name| known.get(name)?.as_ref()).all(is_own);
        if is_right { Ok(()) } else { Err(Violation::ScopeCrossed { decoder: lane.decoder }) }
    }

    /// Advances the computation, and accepts the request once it has started.
    fn compute(&mut self, lane: &mut Lane, context: &mut Context) -> Result<(), Violation> {
        let Some(end) = &mut lane.sender else { return Ok(()) };
        let Some(work) = &mut end.work else { return Ok(()) };
        if context.now_ms < work.starts_ms || end.machine.is_closed() {
            return Ok(());
        }
        let rows = rows_of(&work.request.tokens);
        let computed = (context.now_ms - work.starts_ms).checked_div(work.row_ms).unwrap_or(u64::MAX);
        let computed = u32::try_from(computed).unwrap_or(u32::MAX).saturating_add(work.reused_rows);
        work.rows_done = work.rows_done.max(computed.min(rows));
        if work.fails_at_row.is_some_and(|row| work.rows_done >= row) {
            context.mark(Mark::EngineFailed);
            return give_up(lane, context);
        }
        if !work.is_accepted {
            let acceptance = Acceptance {
                nonce: context.bytes(),
                first_page: work.request.held_pages,
                reused_rows: work.reused_rows,
                plan: work.plan.clone(),
            };
            match end.machine.accept(acceptance, context.now_ms) {
                Ok(()) => {}
                // The network changed the receiver's announced limit. Encryption would have ended such a lane, and no
                // handoff can succeed on it.
                Err(SendError::FrameTooLarge { .. }) if lane.excuses.contains(&Excuse::Network) => {
                    give_up(lane, context)?;
                    lane.sender.iter_mut().for_each(|end| end.machine.ended());
                    return Ok(());
                }
                Err(error) => return Err(Violation::Call { call: "accept", error: error.to_string() }),
            }
            work.is_accepted = true;
            work.frames = frames(&work.plan, end.machine.frame_bytes_max(), &mut context.random);
            end.moved_ms = context.now_ms;
        }
        if work.rows_done == rows {
            let scope = self.scope.realm(node_of(lane.decoder).0, &work.request.realm).identity(&MODEL);
            let names = context.shape.names(&work.request.tokens);
            let known = self.known.entry(scope).or_default();
            names.into_iter().for_each(|name| {
                known.entry(name).or_insert(work.asker);
            });
        }
        Ok(())
    }

    /// Sends pages whose rows are computed, in any order, then the commit.
    fn send(&self, lane: &mut Lane, context: &mut Context) -> Result<(), Violation> {
        let (page_rows, id) = (context.shape.page_rows, lane.id);
        let Some(end) = &mut lane.sender else { return Ok(()) };
        let Some(work) = end.work.as_mut().filter(|work| work.is_accepted) else { return Ok(()) };
        let rows = rows_of(&work.request.tokens);
        while end.machine.wants_more() {
            let sealed =
                |(_, range): &&(u8, Range<u32>)| range.end.saturating_mul(page_rows).min(rows) <= work.rows_done;
            let count = work.frames.iter().filter(sealed).count();
            if count == 0 {
                break;
            }
            let nth = context.random.usize(0..count);
            let place = work.frames.iter().enumerate().filter(|(_, frame)| sealed(frame)).nth(nth);
            let place = place.map_or(0, |(place, _)| place);
            let (group, range) = work.frames.swap_remove(place);
            let (pages, blank, rows_done) = (&work.pages, vec![0; work.plan.page_bytes() as usize], work.rows_done);
            // Pages with rows that are not computed yet are sent as zeros.
            let is_sealed = |page: u32| ((page + 1) * page_rows).min(rows) <= rows_done;
            let of = |layer, page| if is_sealed(page) { &pages[&(layer, page)][..] } else { &blank[..] };
            let sent = end.machine.send_pages(group, range, of);
            sent.map_err(|error| Violation::Call { call: "send_pages", error: error.to_string() })?;
        }
        if work.rows_told < work.rows_done && end.machine.wants_more() && context.once_in(3) {
            let told = end.machine.progress(work.rows_done);
            told.map_err(|error| Violation::Call { call: "progress", error: error.to_string() })?;
            work.rows_told = work.rows_done;
        }
        if work.frames.is_empty() && work.rows_done == rows && end.machine.wants_more() && !context.once_in(3) {
            match end.machine.commit(times(context.now_ms), context.now_ms) {
                Ok(()) => {
                    context.say(|| format!("lane {id}: committed"));
                    work.is_accepted = false;
                    work.starts_ms = u64::MAX;
                    end.moved_ms = context.now_ms;
                    if context.fault_in(30) {
                        context.mark(Mark::EngineFailed);
                        let ended = end.machine.cancel(CancelReason::ShuttingDown, context.now_ms);
                        ended.map_err(|error| Violation::Call { call: "cancel", error: error.to_string() })?;
                        end.work = None;
                        lane.excuse_attempt(Excuse::Engine);
                    }
                }
                Err(SendError::Key(error)) => {
                    context.say(|| format!("lane {id}: no commit: {error}"));
                    end.work = None;
                }
                Err(error) => return Err(Violation::Call { call: "commit", error: error.to_string() }),
            }
        }
        Ok(())
    }
}

/// Decoder and realm of a lane's request; `None` if that is a recording or the network may have inserted another
/// request.
fn asker_of(lane: &Lane) -> Option<Asker> {
    if lane.excuses.contains(&Excuse::Network) {
        return None;
    }
    let attempt = lane.receiver.as_ref()?.attempt.as_ref()?;
    Some((lane.decoder, attempt.job.realm.0))
}

/// Ends the handoff under way as after a failure of the engine.
fn give_up(lane: &mut Lane, context: &mut Context) -> Result<(), Violation> {
    lane.excuse_attempt(Excuse::Engine);
    let Some(end) = &mut lane.sender else { return Ok(()) };
    let Some(work) = end.work.take() else { return Ok(()) };
    let (call, ended) = if work.is_accepted {
        ("cancel", end.machine.cancel(CancelReason::Internal, context.now_ms))
    } else {
        ("refuse", end.machine.refuse(RefuseCode::Internal, 0, "the engine gave up"))
    };
    end.moved_ms = context.now_ms;
    ended.map_err(|error| Violation::Call { call, error: error.to_string() })
}

/// The frames of a plan: ranges that fit, some of them split once more.
fn frames(plan: &HandoffPlan, body_bytes_max: u32, random: &mut fastrand::Rng) -> Vec<(u8, Range<u32>)> {
    let mut frames = Vec::new();
    for group in (0u8..=u8::MAX).take(plan.groups().len()) {
        for range in plan.frames(group, 0..u32::MAX, body_bytes_max) {
            let middle = random.u32(range.start..range.end);
            if middle > range.start && random.bool() {
                frames.extend([(group, range.start..middle), (group, middle..range.end)]);
            } else {
                frames.push((group, range));
            }
        }
    }
    frames
}

/// Timings of a commit: any numbers serve, and these are derived from the time of the call.
pub(crate) fn times(now_ms: u64) -> SenderTimes {
    let (queue_us, compute_us, pack_us) = (now_ms, now_ms.saturating_mul(1000), 1);
    SenderTimes { queue_us, compute_us, pack_us, send_busy_us: None, send_wall_us: now_ms }
}
