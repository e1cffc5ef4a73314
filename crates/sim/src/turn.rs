//! Handoffs whose pages arrived, on their way through the engine: the lists are read again, the engine admits the
//! pages, and admits them once more before they are kept for other requests.

use std::collections::BTreeMap;

use muser_kv::{Maker, Makers, Provenance, Untrusted};
use muser_trust::identity::NodeId;
use muser_trust::judgement::TrustError;
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

/// Origin of the pages of an installation: sending node, provenance and dependencies.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) arrival: Arrival,
    pub(crate) node: NodeId,
    pub(crate) provenance: Provenance,
    /// Dependencies, including those of held pages.
    pub(crate) depends: Depends,
}

/// Pages of a complete handoff that are not visible yet.
pub(crate) struct Brought {
    job: Job,
    producer: usize,
    key_id: u32,
    pages: BTreeMap<(u16, u32), Vec<u8>>,
    origin: Origin,
    stage: Stage,
    due_ms: u64,
    /// Moment of the last reading of the lists for it.
    read_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The lists are to be read again.
    Arrived,
    /// Admission by the engine is due.
    Renewed,
    /// The request runs; its pages are then kept for other requests.
    Running,
}

impl Decoder {
    /// Reads the lists and judges a node by them; returns the moment of the reading.
    pub(crate) fn judge_anew(&mut self, node: NodeId, key: Option<u32>, context: &Context) -> Result<u64, TrustError> {
        self.trust.set_time(self.unix_ms(context.now_ms) / 1000);
        let read_at = self.trust.read(self.keys.mac_keys());
        self.trust.judge(node, key).map(|()| read_at)
    }

    /// Begins an installation of the pages requested from a node.
    pub(crate) fn origin(&mut self, job: &Job, request: &Request, node: NodeId, context: &Context) -> Origin {
        self.next_arrival += 1;
        let (arrival, shape) = (self.next_arrival, &context.shape);
        let mut depends = Depends::of(arrival, node, job.realm.0);
        depends.add(&self.store(job).depends(shape, &request.tokens, request.held_pages));
        Origin { arrival, node, provenance: self.trust.begin(arrival, node, request.key_id), depends }
    }

    /// Hands the pages of a complete handoff to the engine; `read_at` is the moment of the reading that allowed it.
    pub(crate) fn bring(&mut self, lane: &mut Lane, read_at: u64, context: &mut Context) -> Result<(), Violation> {
        let Some(end) = &mut lane.receiver else { return Ok(()) };
        let Some(mut attempt) = end.attempt.take() else { return Ok(()) };
        attempt.excuses.extend(&lane.excuses);
        let origin = attempt.asked.as_ref().and_then(|asked| asked.origin.as_ref());
        if let Some(origin) = origin.filter(|_| lane.lies) {
            self.trust.log.lying.insert(origin.arrival);
        }
        self.arrive(attempt, lane.producer, read_at, context)
    }

    /// Queues the pages of a handoff for the engine; `read_at` is the moment of the reading that allowed it.
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

    /// Advances the queued handoffs that are due. Returns the nodes that an audit condemned.
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

    /// Audits some of the handoffs, then asks the engine for admission.
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

    /// Ends the request, and keeps its pages for other requests if they are still trusted.
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

    /// The engine's admission, checked against the log of lost trust.
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

    /// Makers of the first wrong page among all that the prompt attends to.
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

    /// Requeues the job without the pages, with the producer marked as tried.
    fn try_elsewhere(&mut self, brought: Brought) {
        let mut job = brought.job;
        job.tried.insert(brought.producer);
        self.waiting.push(job);
    }

    /// Drops the state that a process restart loses, and requeues its jobs.
    pub(crate) fn lose_memory(&mut self) {
        self.stores.clear();
        self.trust.restart();
        let brought = std::mem::take(&mut self.brought);
        self.waiting.extend(brought.into_iter().map(|brought| brought.job));
    }

    /// Takes back the pages of nodes that are no longer trusted, before kept pages are used.
    pub(crate) fn take_back_lost(&mut self, context: &mut Context) {
        self.trust.set_time(self.unix_ms(context.now_ms) / 1000);
        let read_at = self.trust.read(self.keys.mac_keys());
        for node in self.trust.lost_makers() {
            context.mark(Mark::LostTakenBack);
            self.forget(Some(node), context);
        }
        self.trust.log.forbid_lost(read_at);
    }

    /// Checks that a job uses no page that was ordered to be taken back, and no page of another realm.
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
