//! Handoffs whose pages came, on their way through the engine: lists are read for them, the engine admits them in its turn,
//! and what they leave to others is admitted once more.

use std::collections::BTreeMap;

use muser_cluster::handoff::TrustError;
use muser_cluster::identity::NodeId;
use muser_engine::engine::{Provenance, Untrusted};
use muser_kv::{Maker, Makers};
use muser_wire::Request;

use crate::attempt::{Attempt, End, Job};
use crate::change::Step;
use crate::context::Context;
use crate::coverage::Mark;
use crate::decoder::Decoder;
use crate::lane::Lane;
use crate::store::{Depends, Page};
use crate::trust::{Arrival, Claim};
use crate::violation::Violation;

/// Whose pages an installation takes, and on what they depend.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) arrival: Arrival,
    pub(crate) node: NodeId,
    pub(crate) provenance: Provenance,
    /// With those of held pages.
    pub(crate) depends: Depends,
}

/// What a handoff brought, and nobody sees yet.
pub(crate) struct Brought {
    job: Job,
    producer: usize,
    key_id: u32,
    pages: BTreeMap<(u16, u32), Vec<u8>>,
    origin: Origin,
    stage: Stage,
    due_ms: u64,
    /// The moment of the last reading for it.
    read_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Lists are to be read.
    Arrived,
    /// The engine's turn is to come.
    Renewed,
    /// The request runs, and is to leave its pages to others.
    Running,
}

impl Decoder {
    /// The judgement about a node by the lists as they are now, and the moment of reading them.
    pub(crate) fn judge_anew(&mut self, node: NodeId, key: Option<u32>, context: &Context) -> Result<u64, TrustError> {
        self.trust.set_time(self.unix_ms(context.now_ms) / 1000);
        let read_at = self.trust.read(self.keys.mac_keys());
        self.trust.judge(node, key).map(|()| read_at)
    }

    /// An installation of what a node is asked for begins.
    pub(crate) fn origin(&mut self, job: &Job, request: &Request, node: NodeId, context: &Context) -> Origin {
        self.next_arrival += 1;
        let (arrival, shape) = (self.next_arrival, &context.shape);
        let mut depends = Depends::of(arrival, node, job.realm.0);
        depends.add(&self.store(job).depends(shape, &request.tokens, request.held_pages));
        Origin { arrival, node, provenance: self.trust.begin(arrival, node, request.key_id), depends }
    }

    /// Everything came: if the producer is trusted still, the pages go on to the engine.
    pub(crate) fn complete_trusted(&mut self, lane: &mut Lane, context: &mut Context) -> Result<(), Violation> {
        let key = lane.key_id();
        let Ok(read_at) = self.judge_anew(lane.node, key, context) else {
            context.mark(Mark::UntrustedWhenComplete);
            self.end(lane, End::Untrusted, context)?;
            self.close(lane, context);
            return Ok(());
        };
        let Some(end) = &mut lane.receiver else { return Ok(()) };
        let told = end.machine.installed();
        told.map_err(|error| Violation::Call { call: "installed", error: error.to_string() })?;
        let Some(mut attempt) = end.attempt.take() else { return Ok(()) };
        attempt.excuses.extend(&lane.excuses);
        let origin = attempt.asked.as_ref().and_then(|asked| asked.origin.as_ref());
        if let Some(origin) = origin.filter(|_| lane.lies) {
            self.trust.log.lying.insert(origin.arrival);
        }
        self.arrive(attempt, lane.producer, read_at, context)
    }

    /// Takes what a handoff brought; `read_at` is the moment of the reading that allowed it.
    fn arrive(
        &mut self,
        attempt: Attempt,
        producer: usize,
        read_at: u64,
        context: &mut Context,
    ) -> Result<(), Violation> {
        let Attempt { job, asked, excuses } = attempt;
        let Some((asked, origin)) = asked.and_then(|mut asked| asked.origin.take().map(|origin| (asked, origin)))
        else {
            return Err(Violation::PageCount { got: 0, want: 0 });
        };
        End::Complete.mark(context);
        End::Complete
            .check(&excuses)
            .map_err(|_| Violation::WrongReason { fault: format!("{excuses:?}"), end: "complete".to_owned() })?;
        self.trust.came_from(origin.node, origin.arrival);
        self.worked(producer);
        self.reach(Step::Arrived, producer);
        let (pages, key_id) = (asked.pages, asked.request.key_id);
        let due_ms = context.now_ms + context.trust_random.u64(0..30);
        self.brought.push(Brought { job, producer, key_id, pages, origin, stage: Stage::Arrived, due_ms, read_at });
        Ok(())
    }

    /// Does what is due for what was brought. Nodes that were found out are the answer.
    pub(crate) fn take_turns(&mut self, context: &mut Context) -> Result<Vec<NodeId>, Violation> {
        let mut condemned = Vec::new();
        self.trust.set_time(self.unix_ms(context.now_ms) / 1000);
        for mut brought in std::mem::take(&mut self.brought) {
            if brought.due_ms > context.now_ms || !self.fired.is_empty() {
                self.brought.push(brought);
                continue;
            }
            match brought.stage {
                Stage::Arrived => {
                    brought.read_at = self.trust.read(self.keys.mac_keys());
                    (brought.stage, brought.due_ms) =
                        (Stage::Renewed, context.now_ms + context.trust_random.u64(0..20));
                    self.reach(Step::Renewed, brought.producer);
                    self.brought.push(brought);
                }
                Stage::Renewed => condemned.extend(self.submit(brought, context)?),
                Stage::Running => self.leave(brought, context)?,
            }
        }
        Ok(condemned)
    }

    /// The engine's turn. Before it, some handoffs are audited.
    fn submit(&mut self, mut brought: Brought, context: &mut Context) -> Result<Option<NodeId>, Violation> {
        if brought.job.gone_at_ms.is_some_and(|gone_at_ms| gone_at_ms <= context.now_ms) {
            context.mark(Mark::ClientGone);
            return Ok(None);
        }
        if context.trust_random.u8(0..3) == 0
            && let Some(makers) = self.wrong_page(&brought, context)
        {
            let found = makers.only().map(|maker| NodeId(maker.0));
            context.say(|| format!("decoder {}: an audit finds a wrong page of {found:?}", self.index));
            if let Some(node) = found {
                if !context.liars.contains(&node.0) {
                    return Err(Violation::WrongBlame { decoder: self.index });
                }
                self.trust.condemn(node);
                context.mark(if node == brought.origin.node {
                    Mark::LiarCondemned
                } else {
                    Mark::EarlierLiarCondemned
                });
            }
            self.forget(found, context);
            self.try_elsewhere(brought);
            return Ok(found);
        }
        match self.admit(&brought)? {
            Ok(()) => {
                (brought.stage, brought.due_ms) = (Stage::Running, context.now_ms + context.trust_random.u64(0..60));
                self.reach(Step::Running, brought.producer);
                self.brought.push(brought);
            }
            Err(untrusted) => {
                context.say(|| format!("decoder {}: job {} is refused: {untrusted}", self.index, brought.job.id));
                context.mark(match untrusted {
                    Untrusted::TakenBack => Mark::TurnRefusedTakenBack,
                    _ => Mark::TurnRefusedUntrusted,
                });
                self.try_elsewhere(brought);
            }
        }
        Ok(None)
    }

    /// The request ends, and leaves its pages to others if they are trusted still.
    fn leave(&mut self, brought: Brought, context: &mut Context) -> Result<(), Violation> {
        if self.admit(&brought)?.is_err() {
            context.mark(Mark::LeftNothing);
            return Ok(());
        }
        let Brought { job, producer, pages, origin, .. } = brought;
        let depends = Depends::of(origin.arrival, origin.node, job.realm.0);
        let pages = pages.into_iter().map(|(at, bytes)| (at, Page { bytes, depends: depends.clone() }));
        let store = self.store(&job);
        store.publish(&context.shape, &job.tokens, pages);
        self.check_answer(&job, context)?;
        context.mark(if job.tried.is_empty() { Mark::AnsweredByProducer } else { Mark::AnsweredByOtherProducer });
        if self.trust.log.is_eventful() {
            context.mark(Mark::TrustedBesideOthers);
        }
        self.reach(Step::Kept, producer);
        Ok(())
    }

    /// The engine's judgement, checked against what happened.
    fn admit(&self, brought: &Brought) -> Result<Result<(), Untrusted>, Violation> {
        let Brought { origin, key_id, read_at, .. } = brought;
        let claim = Claim { node: origin.node, key_id: *key_id, read_at: *read_at };
        let admitted = self.trust.taken_back.admits(&origin.depends.makers, &origin.provenance);
        let log = &self.trust.log;
        match &admitted {
            Ok(()) if log.must_hide(&claim, &origin.depends.arrivals) => {
                Err(Violation::UntrustedVisible { decoder: self.index, job: brought.job.id })
            }
            Err(untrusted) if !log.may_hide(&claim, &origin.depends.arrivals) => {
                let (decoder, job) = (self.index, brought.job.id);
                Err(Violation::TrustedRefused { decoder, job, reason: untrusted.to_string() })
            }
            _ => Ok(admitted),
        }
    }

    /// The makers of the first page that is not what its tokens give, of all that the prompt looks at.
    fn wrong_page(&mut self, brought: &Brought, context: &Context) -> Option<Makers> {
        let (shape, own) = (&context.shape, Maker(brought.origin.node.0));
        let names = shape.names(&brought.job.tokens);
        let store = self.store(&brought.job);
        for (page, name) in (0u32..).zip(&names) {
            for layer in 0..shape.layers() {
                let right = shape.page(layer, name);
                let makers = match brought.pages.get(&(layer, page)) {
                    Some(bytes) => (*bytes != right).then(|| own.into()),
                    None => store
                        .page(layer, name)
                        .filter(|page| page.bytes != right)
                        .map(|page| page.depends.makers.clone()),
                };
                if makers.is_some() {
                    return makers;
                }
            }
        }
        None
    }

    /// The job goes on without what was brought.
    fn try_elsewhere(&mut self, brought: Brought) {
        let mut job = brought.job;
        job.tried.insert(brought.producer);
        self.waiting.push(job);
    }

    /// What a process that begins again has not any more; the jobs wait again.
    pub(crate) fn lose_memory(&mut self) {
        self.stores.clear();
        self.trust.restart();
        let brought = std::mem::take(&mut self.brought);
        self.waiting.extend(brought.into_iter().map(|brought| brought.job));
    }

    /// Has what was sent by nodes that are not trusted any more taken back, before kept pages may be used.
    pub(crate) fn take_back_lost(&mut self, context: &mut Context) {
        self.trust.set_time(self.unix_ms(context.now_ms) / 1000);
        let read_at = self.trust.read(self.keys.mac_keys());
        for node in self.trust.lost_makers() {
            context.mark(Mark::LostTakenBack);
            self.forget(Some(node), context);
        }
        self.trust.log.forbid_lost(read_at);
    }

    /// Checks that a job uses nothing that came before an order to forget it, and nothing of another realm.
    pub(crate) fn check_use(&self, job: &Job, depends: &Depends) -> Result<(), Violation> {
        if let Some(arrival) = self.trust.log.forbidden(&depends.arrivals) {
            return Err(Violation::UsedAfterForgetting { decoder: self.index, job: job.id, arrival });
        }
        if depends.realms.iter().any(|realm| *realm != job.realm.0) {
            return Err(Violation::RealmCrossed { decoder: self.index, job: job.id });
        }
        Ok(())
    }
}
