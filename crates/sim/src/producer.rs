//! The producer: it carries out the effects of the same core as the real one does, with an engine of its world that takes
//! its time, fails, and completes pages in batches of any size.

use std::collections::BTreeMap;
use std::sync::Arc;

use muser_handoff::{CacheShape, ProducerCore, ProducerEffect, ReadyPages, SendStep};
use muser_kv::{KvIdentity, PrefixScope};
use muser_trust::identity::NodeId;
use muser_wire::{
    CancelReason, Codecs, HandoffPlan, Identity, Node, RefuseCode, Request, SendError, SenderSettings, SenderTimes,
};

use crate::attempt::Excuse;
use crate::context::{Context, TICK_MS};
use crate::coverage::{Mark, mark_of_failure};
use crate::keys::KeyTable;
use crate::lane::{Lane, SenderEnd, binding};
use crate::shape::{PageName, Shape};
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
    pub(crate) began_ms: u64,
    /// Start of the computation; `row_ms` is the time for each row.
    starts_ms: u64,
    row_ms: u64,
    reused_rows: u32,
    rows_done: u32,
    /// Rows and pages, from the first, that were passed on.
    rows_told: u32,
    pages_told: u32,
    is_started: bool,
    /// Row at which the engine fails; `None` if it does not.
    fails_at_row: Option<u32>,
}

/// Pages that the engine completed together, by layer and absolute index.
#[derive(Debug)]
struct Batch(BTreeMap<(u16, u32), Vec<u8>>);

impl ReadyPages for Batch {
    fn bytes(&self, layer: u16, page: u32) -> Option<&[u8]> {
        self.0.get(&(layer, page)).map(Vec::as_slice)
    }
}

impl CacheShape for Shape {
    fn page_rows(&self) -> u32 {
        self.page_rows
    }

    fn name(&self, tokens: &[u32], pages: u32) -> Option<[u8; 32]> {
        self.names(tokens).get((pages as usize).checked_sub(1)?).copied()
    }

    fn plan(&self, rows: u32, held_pages: u32) -> Option<HandoffPlan> {
        Self::plan(self, rows, held_pages).ok()
    }
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

    /// Takes the connection with this number, of the decoder with this node id.
    pub(crate) fn accept(&self, lane: u32, peer: [u8; 32], context: &mut Context) -> SenderEnd {
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
        // Frames as long as both ends' limits allow.
        let core = ProducerCore::new(settings, peer, u32::MAX, context.now_ms);
        SenderEnd { core, work: None, moved_ms, tick_at_ms }
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
            end.core.tick(context.now_ms);
        }
        lane.carry_to_receiver(context);
        let is_done = lane
            .sender
            .as_ref()
            .is_some_and(|end| end.core.is_closed() && (end.core.output().is_empty() || lane.to_receiver.room() == 0));
        if is_done {
            lane.sender = None;
            lane.to_receiver.finish();
        }
        Ok(())
    }

    fn read(&mut self, lane: &mut Lane, busy: usize, context: &mut Context) -> Result<(), Violation> {
        loop {
            while let Some(effect) = lane.sender.as_mut().and_then(|end| end.core.poll_effect()) {
                self.carry_out(effect, lane, busy, context)?;
            }
            let Some(end) = &mut lane.sender else { return Ok(()) };
            let arrived = &mut lane.to_sender.arrived;
            if arrived.is_empty() {
                if lane.to_sender.is_drained() && !end.core.is_closed() {
                    end.core.ended();
                    continue;
                }
                return Ok(());
            }
            let bite = arrived.len().min(context.random.usize(1..=lane.bite));
            let taken = end.core.take_bytes(&arrived[..bite], context.now_ms);
            arrived.drain(..taken);
            if taken == 0 {
                return Ok(());
            }
            end.moved_ms = context.now_ms;
        }
    }

    fn carry_out(
        &mut self,
        effect: ProducerEffect,
        lane: &mut Lane,
        busy: usize,
        context: &mut Context,
    ) -> Result<(), Violation> {
        let asker = asker_of(lane);
        let Some(end) = &mut lane.sender else { return Ok(()) };
        match effect {
            ProducerEffect::AskTrust => {
                let Some(request) = end.core.trusted(&context.shape) else { return Ok(()) };
                if busy >= self.concurrent_max {
                    end.core.refuse(RefuseCode::Busy, 100, "not now");
                    lane.excuse_attempt(Excuse::Busy);
                    return Ok(());
                }
                end.core.submitted(context.bytes());
                let request = end.work.insert(self.begin(request, lane.decoder, asker, context)).request.clone();
                lane.lies = self.lies;
                return self.check_scope(&request, lane, context);
            }
            ProducerEffect::Installed | ProducerEffect::Over(None) => end.work = None,
            ProducerEffect::Over(Some(failure)) => {
                context.say(|| format!("lane {}: the sender failed: {failure}", lane.id));
                mark_of_failure(&failure).into_iter().for_each(|mark| context.mark(mark));
                end.work = None;
            }
        }
        Ok(())
    }

    /// Begins the work on a request.
    fn begin(&self, request: Request, decoder: usize, asker: Option<Asker>, context: &mut Context) -> Work {
        let (shape, rows) = (context.shape.clone(), rows_of(&request.tokens));
        let known = self.known.get(&self.scope_of(decoder, &request));
        let names = shape.names(&request.tokens);
        let known = names.iter().take_while(|name| known.is_some_and(|known| known.contains_key(*name))).count();
        let reused_rows = rows.min(u32::try_from(known).unwrap_or(u32::MAX) * shape.page_rows);
        let fails = context.fault_in(20);
        Work {
            request,
            asker,
            began_ms: context.now_ms,
            starts_ms: context.now_ms + context.random.u64(0..60),
            row_ms: context.random.u64(0..6),
            reused_rows,
            rows_done: reused_rows,
            rows_told: 0,
            pages_told: 0,
            is_started: false,
            fails_at_row: fails.then(|| context.random.u32(0..=rows)),
        }
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

    /// Advances the computation, and passes on what the core wants to know of it.
    fn compute(&mut self, lane: &mut Lane, context: &mut Context) -> Result<(), Violation> {
        let Some(end) = &mut lane.sender else { return Ok(()) };
        let Some(work) = &mut end.work else { return Ok(()) };
        if context.now_ms < work.starts_ms || end.core.is_closed() || !end.core.wants_event() {
            return Ok(());
        }
        let rows = rows_of(&work.request.tokens);
        let computed = (context.now_ms - work.starts_ms).checked_div(work.row_ms).unwrap_or(u64::MAX);
        let computed = u32::try_from(computed).unwrap_or(u32::MAX).saturating_add(work.reused_rows);
        work.rows_done = work.rows_done.max(computed.min(rows));
        if work.fails_at_row.is_some_and(|row| work.rows_done >= row) {
            context.mark(Mark::EngineFailed);
            give_up(CancelReason::Internal, lane, context);
            return Ok(());
        }
        if !work.is_started {
            match end.core.started(work.reused_rows, context.now_ms) {
                Ok(()) => {}
                // The network changed the receiver's announced limit. Encryption would have ended such a lane, and no
                // handoff can succeed on it.
                Err(SendError::FrameTooLarge { .. }) if lane.excuses.contains(&Excuse::Network) => {
                    end.core.ended();
                    end.work = None;
                    return Ok(());
                }
                Err(error) => return Err(Violation::Call { call: "started", error: error.to_string() }),
            }
            (work.is_started, end.moved_ms) = (true, context.now_ms);
        }
        if work.rows_done == rows {
            let scope = self.scope_of(lane.decoder, &work.request);
            let names = context.shape.names(&work.request.tokens);
            let known = self.known.entry(scope).or_default();
            names.into_iter().for_each(|name| {
                known.entry(name).or_insert(work.asker);
            });
        }
        pass_on(work, &mut end.core, rows, lane.lies, context);
        Ok(())
    }

    /// Sends what there is room for, and the commit once everything before it is on its way.
    fn send(&self, lane: &mut Lane, context: &mut Context) -> Result<(), Violation> {
        let id = lane.id;
        let Some(end) = &mut lane.sender else { return Ok(()) };
        loop {
            match end.core.send(end.core.output().is_empty(), context.now_ms) {
                SendStep::Idle => return Ok(()),
                SendStep::Frame { .. } => {}
                SendStep::GaveUp(error) => return Err(Violation::Call { call: "send", error: error.to_string() }),
                SendStep::Commit => break,
            }
        }
        if context.once_in(3) {
            return Ok(());
        }
        match end.core.commit(times(context.now_ms), context.now_ms) {
            Ok(_) => {
                context.say(|| format!("lane {id}: committed"));
                end.moved_ms = context.now_ms;
                if context.fault_in(30) {
                    context.mark(Mark::EngineFailed);
                    give_up(CancelReason::ShuttingDown, lane, context);
                }
                Ok(())
            }
            Err(SendError::Key(error)) => {
                context.say(|| format!("lane {id}: no commit: {error}"));
                end.work = None;
                Ok(())
            }
            Err(error) => Err(Violation::Call { call: "commit", error: error.to_string() }),
        }
    }
}

/// Passes the pages on that were completed since, and the end.
fn pass_on(work: &mut Work, core: &mut ProducerCore, rows: u32, lies: bool, context: &mut Context) {
    // Chunks of a prompt are of any length.
    if work.rows_done < rows && !context.once_in(3) {
        return;
    }
    let shape = &context.shape;
    let complete = if work.rows_done == rows { shape.page_count(rows) } else { work.rows_done / shape.page_rows };
    if work.rows_told < work.rows_done || work.pages_told < complete {
        let range = work.pages_told..complete;
        let names = shape.names(&work.request.tokens);
        let every = (0..shape.layers()).flat_map(|layer| range.clone().map(move |page| (layer, page)));
        let pages = every.map(|(layer, page)| {
            let name = &names[page as usize];
            ((layer, page), if lies { shape.wrong_page(layer, name) } else { shape.page(layer, name) })
        });
        let batch = Batch(pages.collect());
        (work.rows_told, work.pages_told) = (work.rows_done, complete);
        core.computed(work.rows_done, range, Arc::new(batch), Codecs::ALL);
    } else if work.rows_done == rows && !context.once_in(3) {
        core.finished();
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
fn give_up(reason: CancelReason, lane: &mut Lane, context: &mut Context) {
    lane.excuse_attempt(Excuse::Engine);
    if let Some(end) = &mut lane.sender {
        end.core.give_up(reason, context.now_ms);
        (end.work, end.moved_ms) = (None, context.now_ms);
    }
}

/// Timings of a commit: any numbers serve, and these are derived from the time of the call.
pub(crate) fn times(now_ms: u64) -> SenderTimes {
    let (queue_us, compute_us, pack_us) = (now_ms, now_ms.saturating_mul(1000), 1);
    SenderTimes { queue_us, compute_us, pack_us, send_busy_us: None, send_wall_us: now_ms }
}
