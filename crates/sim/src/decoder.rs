//! The decoder: it carries out the effects of the same core as the real one does, with a ledger, an engine and lists of
//! its world, and checks what comes. If anything fails, it computes the prompt itself.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use muser_handoff::{DecoderCore, DecoderEffect, Order};
use muser_kv::{KvIdentity, Realm};
use muser_ledger::Ledger;
use muser_trust::identity::NodeId;
use muser_trust::judgement::TrustError;
use muser_wire::{CancelReason, Codecs, HandoffId, Identity, MacKeys, Node, ReceiverSettings, Request};

use crate::attempt::{Asked, Attempt, End, Excuse, Job};
use crate::change::{Armed, SPARE_KEYS, Step};
use crate::context::{Context, TICK_MS};
use crate::coverage::Mark;
use crate::disk::Disk;
use crate::keys::KeyTable;
use crate::lane::{Lane, ReceiverEnd, binding};
use crate::producer::{MODEL, times};
use crate::store::{Page, Store, rows_of};
use crate::trust::{Arrival, Trust};
use crate::turn::Brought;
use crate::violation::Violation;

/// Expiry of a handoff, ms; at least twice what the slowest one takes, unless it is shortened on purpose.
pub(crate) const EXPIRES_IN_MS: u32 = 4000;
/// Back-off of a producer that failed, ms: the first one, doubled at each failure, up to the second value.
const BACK_OFF_MS: (u64, u64) = (40, 640);
/// Fallback of a job whose producer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fallback {
    Local,
    OtherProducer,
    Fail,
}

/// A simulated decoder process.
pub(crate) struct Decoder {
    pub(crate) index: usize,
    pub(crate) node: Node,
    pub(crate) keys: KeyTable,
    pub(crate) disk: Disk,
    pub(crate) ledger: Option<Ledger<Disk>>,
    pub(crate) ledger_entries_max: usize,
    /// Time at which the ledger was opened, on the world's clock.
    pub(crate) ledger_opened_ms: u64,
    /// A write of the ledger failed, or there is no ledger.
    pub(crate) is_ledger_spoilt: bool,
    /// Key id and nonce of entries whose write failed: they may be on the disk, so they may be refused as replays.
    pub(crate) doubted: BTreeSet<(u32, [u8; 32])>,
    /// Expiry times up to which the ledger was told to drop entries, and up to which it is known to have done so.
    pub(crate) forgotten_unix_ms: (u64, u64),
    /// Page stores by realm, as the identity from which the names of its pages start.
    pub(crate) stores: BTreeMap<KvIdentity, Store>,
    /// Realm of new jobs: its number and its secret.
    pub(crate) realm: (u32, Realm),
    pub(crate) trust: Trust,
    pub(crate) brought: Vec<Brought>,
    pub(crate) next_arrival: Arrival,
    /// Changes that wait for their step; `fired` holds those whose step was reached.
    pub(crate) armed: Vec<Armed>,
    pub(crate) fired: Vec<Armed>,
    pub(crate) spare_keys: Range<u32>,
    pub(crate) waiting: Vec<Job>,
    peers: Vec<Peer>,
    pub(crate) lanes_max: usize,
    pub(crate) fallback: Fallback,
    pub(crate) frozen_until_ms: u64,
    pub(crate) clock_back_ms: u64,
    /// Generator of nonces; `nonces_before` is its state at the start, which faults restore.
    pub(crate) nonces: fastrand::Rng,
    pub(crate) nonces_before: fastrand::Rng,
    drawn: BTreeSet<[u8; 32]>,
    /// The last end of an attempt for a job that may ask one producer alone.
    pub(crate) last_end: String,
}

/// Back-off state of one producer.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    failures: u32,
    rests_until_ms: u64,
}

/// Route of a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Index of an idle lane.
    Lane(usize),
    /// Index of a producer, to which a new lane is opened.
    Connect(usize),
    /// No lane is free yet.
    Wait,
    /// No producer is left.
    Fallback,
}

impl Decoder {
    pub(crate) fn new(index: usize, producers: usize, identity: Identity, context: &mut Context) -> Self {
        let nonces = fastrand::Rng::with_seed(context.random.u64(..));
        Self {
            index,
            node: Node { boot_id: context.bytes(), node_id: context.bytes(), identity },
            keys: KeyTable::default(),
            disk: Disk::default(),
            ledger: None,
            ledger_entries_max: context.random.usize(4..24),
            ledger_opened_ms: 0,
            is_ledger_spoilt: false,
            doubted: BTreeSet::new(),
            forgotten_unix_ms: (0, 0),
            stores: BTreeMap::new(),
            realm: (0, Realm::COMMON),
            trust: Trust::default(),
            brought: Vec::new(),
            next_arrival: 0,
            armed: Vec::new(),
            fired: Vec::new(),
            spare_keys: SPARE_KEYS,
            waiting: Vec::new(),
            peers: vec![Peer::default(); producers],
            lanes_max: context.random.usize(1..4),
            fallback: [Fallback::Local, Fallback::OtherProducer, Fallback::Fail][context.random.usize(0..3)],
            frozen_until_ms: 0,
            clock_back_ms: 0,
            nonces_before: nonces.clone(),
            nonces,
            drawn: BTreeSet::new(),
            last_end: String::new(),
        }
    }

    /// Ends a freeze.
    pub(crate) fn wake(&mut self, now_ms: u64) {
        self.frozen_until_ms = self.frozen_until_ms.min(now_ms);
    }

    /// Chooses the route of a job.
    pub(crate) fn choose(&self, job: &Job, lanes: &[Lane], context: &mut Context) -> Choice {
        let mut producers: Vec<usize> = match job.only {
            Some(only) => vec![only],
            None => (0..self.peers.len()).filter(|producer| !job.tried.contains(producer)).collect(),
        };
        if job.only.is_none() && self.fallback != Fallback::OtherProducer && !job.tried.is_empty() {
            return Choice::Fallback;
        }
        producers.retain(|producer| self.peers[*producer].rests_until_ms <= context.now_ms);
        context.random.shuffle(&mut producers);
        if producers.is_empty() {
            return if job.only.is_some() { Choice::Wait } else { Choice::Fallback };
        }
        for producer in producers {
            let own = || lanes.iter().enumerate().filter(|(_, lane)| self.has(lane) && lane.producer == producer);
            let idle = own().find(|(_, lane)| {
                lane.receiver.as_ref().is_some_and(|end| end.core.is_idle() && end.attempt.is_none())
            });
            if let Some((place, _)) = idle {
                return Choice::Lane(place);
            }
            if own().count() < self.lanes_max {
                return Choice::Connect(producer);
            }
        }
        Choice::Wait
    }

    /// Opens the connection with this number to a node, for an attempt.
    pub(crate) fn connect(&self, attempt: Attempt, lane: u32, node: NodeId, context: &mut Context) -> ReceiverEnd {
        let plan = context.shape.plan(1, 0).map_or(0, |plan| plan.body_bytes_min());
        let settings = ReceiverSettings {
            node: self.node,
            lane: binding(lane),
            // Those of each moment come with each request.
            keys: MacKeys::default(),
            pages_bytes_max: u32::try_from(plan).unwrap_or(u32::MAX) + context.random.u32(0..2000),
            stall_limit_ms: context.stall_limit_ms,
        };
        let core = DecoderCore::connect(settings, node.0, context.now_ms);
        let (moved_ms, tick_at_ms) = (context.now_ms, context.now_ms);
        ReceiverEnd { core, attempt: Some(attempt), acknowledged_by_ms: None, moved_ms, tick_at_ms }
    }

    /// Drives the receiver of a lane: reads, checks deadlines, writes.
    pub(crate) fn drive(&mut self, lane: &mut Lane, context: &mut Context) -> Result<(), Violation> {
        let attempt = lane.receiver.as_mut().and_then(|end| end.attempt.as_mut());
        if let Some(key_id) = attempt.and_then(|attempt| attempt.asked.as_mut()?.complete.take()) {
            self.complete(key_id, lane, context)?;
        }
        self.read(lane, context)?;
        self.keep_time(lane, context)?;
        lane.carry_to_sender(context);
        Ok(())
    }

    /// Id of the first handoff that this decoder requested.
    pub(crate) fn first_handoff(&self) -> HandoffId {
        let mut nonces = self.nonces_before.clone();
        HandoffId(std::array::from_fn(|_| nonces.u8(..)))
    }

    /// Sends the request of the attempt that waits on a lane that is ready.
    pub(crate) fn ask(&mut self, lane: &mut Lane, context: &mut Context) -> Result<(), Violation> {
        if self.judge_anew(lane.node, None, context).is_err() {
            context.mark(Mark::UntrustedWhenAsking);
            lane.excuse_attempt(Excuse::Trust);
            self.end(lane, End::Untrusted, context)?;
            self.close(lane, context);
            return Ok(());
        }
        let Some(end) = &mut lane.receiver else { return Ok(()) };
        let Some(attempt) = &mut end.attempt else { return Ok(()) };
        let request = self.request(attempt, context);
        let plan = match context.shape.plan(rows_of(&request.tokens), request.held_pages) {
            Ok(plan) => plan,
            Err(error) => return Err(Violation::Call { call: "plan", error: error.to_string() }),
        };
        context.say(|| {
            let (rows, held) = (request.tokens.len(), request.held_pages);
            format!("lane {}: job {} asks for {rows} rows, holds {held} pages", lane.id, attempt.job.id)
        });
        let expiry_unix_ms = self.ledger_ms(context.now_ms) + u64::from(request.expires_in_ms);
        let order = Order { request: request.clone(), plan: plan.clone(), expiry_unix_ms };
        if let Err(refused) = end.core.request(order, self.keys.mac_keys(), context.now_ms) {
            return self.end(lane, End::HandoffError(refused.into()), context);
        }
        (end.moved_ms, end.acknowledged_by_ms) = (context.now_ms, None);
        let due_ms = context.now_ms + u64::from(request.expires_in_ms);
        let pages = Default::default();
        let origin = context.trust_changes.then(|| self.origin(&attempt.job, &request, lane.node, context));
        attempt.asked =
            Some(Asked { request, plan, due_ms, accepted: None, recorded: false, pages, complete: None, origin });
        let depends = attempt.asked.as_ref().and_then(|asked| asked.origin.as_ref()).map(|origin| &origin.depends);
        if let Some(depends) = depends {
            self.check_use(&attempt.job, depends)?;
        }
        self.reach(Step::Asked, lane.producer);
        Ok(())
    }

    /// Ends the attempt of a lane, if there is one: checks its outcome and requeues or answers the job.
    pub(crate) fn end(&mut self, lane: &mut Lane, end: End, context: &mut Context) -> Result<(), Violation> {
        let Some(attempt) = lane.receiver.as_mut().and_then(|end| end.attempt.take()) else { return Ok(()) };
        let excuses: BTreeSet<Excuse> = attempt.excuses.union(&lane.excuses).copied().collect();
        context.say(|| format!("lane {}: job {} ended: {end:?}, after {excuses:?}", lane.id, attempt.job.id));
        self.finish(attempt, lane.producer, (end, excuses), context)
    }

    /// Checks the outcome of an attempt with `producer` and requeues or answers its job.
    pub(crate) fn finish(
        &mut self,
        attempt: Attempt,
        producer: usize,
        (end, excuses): (End, BTreeSet<Excuse>),
        context: &mut Context,
    ) -> Result<(), Violation> {
        end.mark(context);
        let told = format!("{end:?}");
        if excuses.is_empty() && !matches!(end, End::Complete) {
            return Err(Violation::FailedWithoutFault { decoder: self.index, producer, end: told });
        }
        end.check(&excuses).map_err(|_| Violation::WrongReason { fault: format!("{excuses:?}"), end: told.clone() })?;
        let Attempt { mut job, asked, .. } = attempt;
        if matches!(end, End::Complete) {
            self.worked(producer);
            let others = if job.tried.is_empty() { Mark::AnsweredByProducer } else { Mark::AnsweredByOtherProducer };
            context.mark(others);
            if !excuses.is_empty() {
                context.mark(Mark::CompletedUnderFaults);
            }
            return self.check_answer(&job, context);
        }
        if let Some(asked) = &asked {
            self.store(&job).check_hidden(&context.shape, &job.tokens, asked.pages.keys().copied())?;
        }
        if end.blames_the_producer() {
            let peer = &mut self.peers[producer];
            let rest_ms = (BACK_OFF_MS.0 << peer.failures.min(16)).min(BACK_OFF_MS.1);
            *peer = Peer { failures: peer.failures + 1, rests_until_ms: context.now_ms + rest_ms };
        }
        if job.gone_at_ms.is_some_and(|gone_at_ms| gone_at_ms <= context.now_ms) {
            return Ok(());
        }
        job.tried.insert(producer);
        self.last_end = told;
        self.waiting.push(job);
        Ok(())
    }

    /// Answers without a producer.
    pub(crate) fn fall_back(&mut self, job: &Job, context: &mut Context) -> Result<(), Violation> {
        if self.fallback == Fallback::Fail {
            context.mark(Mark::AnswerRefused);
            return Ok(());
        }
        context.mark(Mark::AnsweredLocally);
        if context.trust_changes {
            self.take_back_lost(context);
        }
        self.store(job).compute(&context.shape, &job.tokens, job.realm.0);
        self.check_answer(job, context)
    }

    /// The pages of a job's realm.
    pub(crate) fn store(&mut self, job: &Job) -> &mut Store {
        self.stores.entry(job.realm.1.identity(&MODEL)).or_default()
    }

    /// Resets the back-off of a producer that completed a handoff.
    pub(crate) fn worked(&mut self, producer: usize) {
        self.peers[producer] = Peer::default();
    }

    /// True if a lane is open and belongs to this decoder.
    pub(crate) fn has(&self, lane: &Lane) -> bool {
        lane.decoder == self.index && lane.receiver.is_some()
    }

    pub(crate) fn check_answer(&mut self, job: &Job, context: &mut Context) -> Result<(), Violation> {
        let lying = std::mem::take(&mut self.trust.log.lying);
        let is_right = self.store(job).answers(&context.shape, &job.tokens, &lying);
        if !lying.is_empty() && is_right && !self.store(job).answers(&context.shape, &job.tokens, &BTreeSet::new()) {
            context.mark(Mark::WrongAnswer);
        }
        self.trust.log.lying = lying;
        if context.trust_changes {
            let depends = self.store(job).depends(&context.shape, &job.tokens, u32::MAX);
            self.check_use(job, &depends)?;
        }
        if is_right { Ok(()) } else { Err(Violation::NoAnswer { decoder: self.index, job: job.id }) }
    }

    fn request(&mut self, attempt: &mut Attempt, context: &mut Context) -> Request {
        let tokens = attempt.job.tokens.clone();
        let mut held_pages = self.store(&attempt.job).held_pages(&context.shape, &tokens);
        if context.once_in(4) {
            held_pages = context.random.u32(0..=held_pages);
        }
        let names = context.shape.names(&tokens);
        let mut held_name = held_pages.checked_sub(1).map_or([0; 32], |last| names[last as usize]);
        if held_pages > 0 && context.fault_in(25) {
            held_name[context.random.usize(0..32)] ^= 1;
            attempt.excuses.insert(Excuse::Claim);
            context.mark(Mark::WrongClaim);
        }
        let handoff = HandoffId(std::array::from_fn(|_| self.nonces.u8(..)));
        let nonce = std::array::from_fn(|_| self.nonces.u8(..));
        let mut expires_in_ms = self.nonces.u32(EXPIRES_IN_MS / 2..EXPIRES_IN_MS);
        if context.fault_in(15) {
            expires_in_ms = context.random.u32(0..150);
            attempt.excuses.insert(Excuse::Expiry);
            context.mark(Mark::ShortExpiry);
        }
        if !self.drawn.insert(nonce) {
            attempt.excuses.insert(Excuse::Nonce);
            context.mark(Mark::NonceDrawnAgain);
        }
        // A decoder without an active key asks with one that does not exist, and is refused by its own end.
        let key_id = self.keys.active().unwrap_or(0);
        if key_id == 0 {
            attempt.excuses.insert(Excuse::Keys);
        }
        let codecs = if context.random.bool() { Codecs::ALL } else { Codecs::NONE_ONLY };
        let realm = attempt.job.realm.1.for_handoffs();
        let request = Request::new(handoff, key_id, nonce, tokens);
        Request { expires_in_ms, held_pages, held_name, codecs, realm, ..request }
    }

    fn read(&mut self, lane: &mut Lane, context: &mut Context) -> Result<(), Violation> {
        loop {
            while self.fired.is_empty() && self.carry_out_one(lane, context)? {}
            // A change, and the question of trust, come before what was not read yet.
            let asked = lane.receiver.as_ref().and_then(|end| end.attempt.as_ref()?.asked.as_ref());
            if !self.fired.is_empty() || asked.is_some_and(|asked| asked.complete.is_some()) {
                return Ok(());
            }
            let Some(end) = &mut lane.receiver else { return Ok(()) };
            let arrived = &mut lane.to_receiver.arrived;
            if arrived.is_empty() {
                if !lane.to_receiver.is_drained() {
                    return Ok(());
                }
                end.core.ended();
                continue;
            }
            let bite = arrived.len().min(context.random.usize(1..=lane.bite));
            let taken = end.core.take_bytes(&arrived[..bite], context.now_ms);
            arrived.drain(..taken);
            // Without an effect that waits, no byte is taken only while the ledger is awaited.
            if taken == 0 && !end.core.is_spent() {
                return Ok(());
            }
            end.moved_ms = context.now_ms;
        }
    }

    /// Carries out the next effect of a lane's core; false if there is none.
    fn carry_out_one(&mut self, lane: &mut Lane, context: &mut Context) -> Result<bool, Violation> {
        let Some(end) = &mut lane.receiver else { return Ok(false) };
        match end.core.poll_effect() {
            None => return Ok(false),
            Some(DecoderEffect::Install { layer, page, bytes }) => {
                let Some(attempt) = &mut end.attempt else { return Err(Violation::PageNotDue { layer, page }) };
                attempt.take_page((layer, page), bytes)?;
                self.reach(Step::Page, lane.producer);
                if self.fired.is_empty() && context.fault_in(400) {
                    attempt.excuses.insert(Excuse::Client);
                    attempt.job.gone_at_ms = Some(context.now_ms);
                    context.mark(Mark::ClientGoneBetweenPages);
                    let reason = CancelReason::ClientGone;
                    self.give_up(lane, reason, End::GaveUp(reason), context)?;
                }
            }
            Some(DecoderEffect::Ready) => self.ask(lane, context)?,
            Some(DecoderEffect::Record(entry)) => {
                let slow_ms = if context.once_in(5) { 150 } else { 20 };
                let at_ms = context.now_ms + context.random.u64(0..slow_ms);
                if let Some(asked) = end.attempt.as_mut().and_then(|attempt| attempt.asked.as_mut()) {
                    asked.accepted = Some((entry, at_ms));
                }
            }
            Some(DecoderEffect::AskTrust { key_id }) if context.trust_changes => {
                if let Some(asked) = end.attempt.as_mut().and_then(|attempt| attempt.asked.as_mut()) {
                    asked.complete = Some(key_id);
                }
                self.reach(Step::Complete, lane.producer);
            }
            Some(DecoderEffect::AskTrust { key_id }) => self.complete(key_id, lane, context)?,
            Some(DecoderEffect::End(error)) => self.end(lane, End::HandoffError(error), context)?,
            Some(DecoderEffect::Computed { .. } | DecoderEffect::Rested) => {}
        }
        if lane.receiver.as_ref().is_some_and(|end| end.core.is_spent() && end.attempt.is_none()) {
            self.close(lane, context);
        }
        Ok(true)
    }

    /// Closes this end, after sending the receiver's remaining output as far as the pipe has room.
    pub(crate) fn close(&self, lane: &mut Lane, context: &mut Context) {
        lane.carry_to_sender(context);
        lane.receiver = None;
        lane.to_sender.finish();
    }

    /// Publishes the pages of a handoff under this key, all of which arrived, and acknowledges it, unless the
    /// installation fails or the producer is not trusted any more.
    fn complete(&mut self, key_id: u32, lane: &mut Lane, context: &mut Context) -> Result<(), Violation> {
        let attempt = lane.receiver.as_mut().and_then(|end| end.attempt.as_mut());
        let Some(attempt) = attempt else { return Err(Violation::PageCount { got: 0, want: 0 }) };
        attempt.check_whole(lane.lies, context)?;
        if context.fault_in(25) {
            attempt.excuses.insert(Excuse::Install);
            context.mark(Mark::InstallFailed);
            let reason = CancelReason::NotInstalled;
            return self.give_up(lane, reason, End::GaveUp(reason), context);
        }
        let read_at = match self.judge_anew(lane.node, Some(key_id), context) {
            Ok(read_at) => read_at,
            Err(error) => {
                context.mark(Mark::UntrustedWhenComplete);
                if matches!(error, TrustError::Key(_)) {
                    context.mark(Mark::UntrustedKey);
                }
                self.end(lane, End::Untrusted, context)?;
                self.close(lane, context);
                return Ok(());
            }
        };
        let Some(end) = &mut lane.receiver else { return Ok(()) };
        let told = end.core.trusted();
        let stats = told.map_err(|error| Violation::Call { call: "trusted", error: error.to_string() })?;
        if stats.times != times(stats.times.queue_us) {
            return Err(Violation::WrongTimes);
        }
        let Some(attempt) = &mut end.attempt else { return Ok(()) };
        if let Some(asked) = &attempt.asked {
            let marks = [
                (Mark::CompletedPacked, stats.stored_bytes < stats.payload_bytes),
                (Mark::CompletedBesideHeldPages, asked.request.held_pages > 0),
                (Mark::CompletedWithoutPages, asked.pages.is_empty()),
            ];
            marks.into_iter().filter(|(_, met)| *met).for_each(|(mark, _)| context.mark(mark));
        }
        if context.trust_changes {
            return self.bring(lane, read_at, context);
        }
        let (job, asked) = (attempt.job.clone(), attempt.asked.as_mut());
        let pages = asked.map_or_else(Default::default, |asked| std::mem::take(&mut asked.pages));
        let pages = pages.into_iter().map(|(at, bytes)| (at, Page { bytes, ..Page::default() }));
        self.store(&job).publish(&context.shape, &job.tokens, pages);
        self.end(lane, End::Complete, context)
    }

    /// Gives the handoff under way up, and ends the attempt. The producer has to acknowledge that within the stall limit.
    pub(crate) fn give_up(
        &mut self,
        lane: &mut Lane,
        reason: CancelReason,
        ended: End,
        context: &mut Context,
    ) -> Result<(), Violation> {
        if let Some(end) = &mut lane.receiver {
            end.core.give_up(reason, context.now_ms);
            (end.moved_ms, end.acknowledged_by_ms) = (context.now_ms, Some(context.now_ms + context.stall_limit_ms));
        }
        self.end(lane, ended, context)?;
        // It was over before, which nobody is told any more.
        if lane.receiver.as_ref().is_some_and(|end| end.core.is_spent()) {
            self.close(lane, context);
        }
        Ok(())
    }

    /// Runs the timers: tick, client departure, ledger write.
    fn keep_time(&mut self, lane: &mut Lane, context: &mut Context) -> Result<(), Violation> {
        let Some(end) = &mut lane.receiver else { return Ok(()) };
        if end.tick_at_ms <= context.now_ms {
            end.tick_at_ms = context.now_ms + TICK_MS;
            end.core.tick(context.now_ms);
        }
        let Some(attempt) = &mut end.attempt else { return Ok(()) };
        let due = attempt.asked.as_ref().filter(|asked| !asked.recorded).and_then(|asked| asked.accepted);
        if attempt.job.gone_at_ms.is_some_and(|gone_at_ms| gone_at_ms <= context.now_ms) {
            if attempt.excuses.insert(Excuse::Client) {
                context.mark(Mark::ClientGone);
                if attempt.asked.is_some() && context.random.bool() {
                    let reason = CancelReason::ClientGone;
                    return self.give_up(lane, reason, End::GaveUp(reason), context);
                }
                self.end(lane, End::Dropped, context)?;
                self.close(lane, context);
            }
            return Ok(());
        }
        match due {
            Some((entry, at_ms)) if at_ms <= context.now_ms && !end.core.is_spent() => {
                self.record(entry, lane, context)
            }
            _ => Ok(()),
        }
    }
}
