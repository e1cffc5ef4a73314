//! The engine's thread: takes orders between steps, and sends each event to the owner of its request.

use std::collections::HashMap;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use muser_engine::Engine;
use muser_engine::engine::{Job, RequestEvent, RequestId, StepRefused};
use tokio::sync::{mpsc, watch};

use crate::status::{EngineStatus, Task, Totals};
use crate::{Order, Refused, TimedEvent};

/// Requests and audits under way, with their slots and counts.
struct Requests {
    open: HashMap<RequestId, Open>,
    /// Request or audit in each slot, by slot index; `None` while the slot is idle.
    slots: Vec<Option<RequestId>>,
    totals: Totals,
    /// Final events, sent once the status shows the end, so that the receiver of one finds its slot idle.
    final_events: Vec<(mpsc::UnboundedSender<TimedEvent>, TimedEvent)>,
    /// True once no more requests are taken and those under way are being ended.
    stopping: bool,
}

/// A request or an audit under way.
struct Open {
    kind: Kind,
    events: mpsc::UnboundedSender<TimedEvent>,
    prompt: usize,
    reused: usize,
    computed: usize,
    /// The largest `computed` so far; a preemption sets `computed` back, and not this.
    computed_max: usize,
    generated: usize,
    started: Option<Instant>,
    first_token: Option<Instant>,
    cancelled: bool,
}

/// Kind of what is under way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A client's: it counts among the totals of requests.
    Request,
    /// The node's own.
    Audit,
}

/// Publishes the engine's status, and on drop the engine's end, even when a panic unwinds the thread.
struct Publisher(watch::Sender<EngineStatus>);

impl Drop for Publisher {
    fn drop(&mut self) {
        self.0.send_modify(|status| {
            status.failure.get_or_insert_with(|| "the engine has stopped".into());
        });
    }
}

/// Runs until all senders of orders are dropped, or [`Order::Stop`] has ended all requests.
pub(super) fn run(mut engine: Engine, orders: &Receiver<Order>, publish: watch::Sender<EngineStatus>) {
    let publisher = Publisher(publish);
    let slots = vec![None; engine.settings().running_max.get()];
    let mut requests =
        Requests { open: HashMap::new(), slots, totals: Totals::default(), final_events: Vec::new(), stopping: false };
    loop {
        if !engine.has_work() {
            if requests.stopping {
                return;
            }
            let Ok(order) = orders.recv() else { return };
            requests.take(&mut engine, order);
        }
        while let Ok(order) = orders.try_recv() {
            requests.take(&mut engine, order);
        }
        requests.cancel_unwanted(&mut engine);
        let stepped = requests.step(&mut engine);
        requests.publish(&engine, &publisher.0);
        if let Err(refused) = &stepped {
            publisher.0.send_modify(|status| status.failure = Some(refused.to_string()));
        }
        for (events, last) in requests.final_events.drain(..) {
            // The owner may be gone.
            let _ = events.send(last);
        }
        if stepped.is_err() {
            return;
        }
    }
}

/// Queues a job, unless it starts from a handoff that depends on a revoked machine: its owner then gets the error at once.
fn submit(engine: &mut Engine, job: Job) -> Result<RequestId, Refused> {
    if let Some(installed) = job.installed() {
        engine.trusts(installed)?;
    }
    Ok(engine.submit(job)?)
}

impl Requests {
    fn take(&mut self, engine: &mut Engine, order: Order) {
        match order {
            // Dropping the reply says that there is no engine for it.
            Order::Submit { .. } | Order::BeginInstallation { .. } | Order::BeginBase { .. } if self.stopping => {}
            Order::Submit { job, events, reply } => {
                let kind = if job.is_audit() { Kind::Audit } else { Kind::Request };
                let prompt = job.tokens().len();
                let submitted = submit(engine, *job);
                if let Ok(id) = &submitted {
                    self.open.insert(*id, Open::new(kind, events, prompt));
                }
                // The caller may have dropped its future, and with it the receiver.
                let _ = reply.send(submitted.map(drop));
            }
            Order::BeginInstallation { prompt, reuse, reply } => {
                // The caller may have dropped its future; the installation is dropped then.
                let _ = reply.send(engine.begin_installation(&prompt, reuse).map(Box::new));
            }
            Order::BeginBase { beginning, reply } => {
                let _ = reply.send(engine.begin_base(&beginning).map(Box::new));
            }
            Order::ForgetPrefixes => engine.forget_prefixes(),
            Order::TakeBack(maker) => engine.take_back(maker),
            Order::Stop => {
                self.stopping = true;
                for id in self.open.keys() {
                    engine.cancel(*id);
                }
            }
        }
    }

    /// Cancels requests and audits whose receiver is dropped.
    fn cancel_unwanted(&mut self, engine: &mut Engine) {
        for (id, open) in self.open.iter_mut().filter(|(_, open)| !open.cancelled && open.events.is_closed()) {
            open.cancelled = engine.cancel(*id);
        }
    }

    fn step(&mut self, engine: &mut Engine) -> Result<(), StepRefused> {
        let report = engine.step(&mut |id, event| self.deliver(id, event))?;
        self.totals.steps += 1;
        self.totals.running_over_steps += report.running as u64;
        Ok(())
    }

    /// Sends an event to its request's owner. A closed channel is no error here: the next step cancels that request.
    fn deliver(&mut self, id: RequestId, event: RequestEvent) {
        match event {
            RequestEvent::Started { slot, .. } | RequestEvent::Resumed { slot } => self.slots[slot] = Some(id),
            RequestEvent::Preempted => {
                self.totals.preemptions += 1;
                self.release(id);
            }
            RequestEvent::Paused | RequestEvent::Finished(_) | RequestEvent::Audited(_) | RequestEvent::Failed(_) => {
                self.release(id)
            }
            RequestEvent::Progress { .. } | RequestEvent::Token(_) => {}
        }
        let Some(open) = self.open.get_mut(&id) else { return };
        let at = Instant::now();
        open.note(at, &event);
        let timed = TimedEvent { at, event };
        if !timed.event.is_last() {
            // The owner may be gone.
            let _ = open.events.send(timed);
        } else if let Some(open) = self.open.remove(&id) {
            self.totals.add(&open, at);
            self.final_events.push((open.events, timed));
        }
    }

    fn release(&mut self, id: RequestId) {
        self.slots.iter_mut().filter(|slot| **slot == Some(id)).for_each(|slot| *slot = None);
    }

    /// The task shown in a slot.
    fn task(&self, id: RequestId) -> Option<Task> {
        let open = self.open.get(&id)?;
        Some(Task {
            number: id.number(),
            prompt_tokens: open.prompt,
            computed_tokens: open.computed,
            generated_tokens: open.generated,
        })
    }

    fn publish(&self, engine: &Engine, publish: &watch::Sender<EngineStatus>) {
        publish.send_modify(|status| {
            for (slot, id) in status.slots.iter_mut().zip(&self.slots) {
                slot.task = id.and_then(|id| self.task(id));
            }
            status.waiting = engine.waiting();
            status.memory = engine.memory();
            status.prefix_bytes = engine.prefix_bytes();
            status.totals = self.totals;
        });
    }
}

impl Open {
    fn new(kind: Kind, events: mpsc::UnboundedSender<TimedEvent>, prompt: usize) -> Self {
        let (reused, computed, computed_max, generated) = (0, 0, 0, 0);
        let (started, first_token, cancelled) = (None, None, false);
        Self { kind, events, prompt, reused, computed, computed_max, generated, started, first_token, cancelled }
    }

    fn note(&mut self, at: Instant, event: &RequestEvent) {
        match event {
            RequestEvent::Started { reused, .. } => {
                self.started = Some(at);
                (self.reused, self.computed) = (*reused, *reused);
            }
            RequestEvent::Progress { computed, .. } => self.computed = *computed,
            RequestEvent::Token(_) => {
                self.first_token.get_or_insert(at);
                self.computed = self.computed.max(self.prompt + self.generated);
                self.generated += 1;
            }
            _ => {}
        }
        self.computed_max = self.computed_max.max(self.computed);
    }
}

impl Totals {
    /// Adds a request that has ended; an audit is none of the clients', and counts nowhere.
    fn add(&mut self, open: &Open, end: Instant) {
        if open.kind == Kind::Audit {
            return;
        }
        let prompt_end = open.first_token.unwrap_or(end);
        self.ended += 1;
        self.cancelled += u64::from(open.cancelled);
        self.prompt_tokens += open.computed_max.min(open.prompt).saturating_sub(open.reused) as u64;
        self.reused_tokens += open.reused as u64;
        self.generated_tokens += open.generated as u64;
        self.prompt_seconds += open.started.map_or(0.0, |started| (prompt_end - started).as_secs_f64());
        self.generated_seconds += (end - prompt_end).as_secs_f64();
        self.tokens_max = self.tokens_max.max(open.prompt + open.generated);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_ends_soon_after_an_interruption_counts_what_it_computed_before_and_nothing_is_taken_back() {
        let at = Instant::now();
        let (events, _) = mpsc::unbounded_channel();
        let mut open = Open::new(Kind::Request, events, 700);
        let progress = |computed| RequestEvent::Progress { computed, total: 700, pages: Vec::new() };
        open.note(at, &RequestEvent::Started { reused: 640, slot: 0 });
        open.note(at, &progress(690));
        // Interrupted, and begun again without what was reused.
        open.note(at, &progress(512));
        let mut totals = Totals { prompt_tokens: 888, ..Totals::default() };
        totals.add(&open, at);
        assert_eq!((totals.prompt_tokens, totals.reused_tokens), (888 + 50, 640));
        let (events, _) = mpsc::unbounded_channel();
        let mut begun_anew = Open::new(Kind::Request, events, 700);
        begun_anew.reused = 640;
        begun_anew.note(at, &progress(512));
        totals.add(&begun_anew, at);
        assert_eq!((totals.prompt_tokens, totals.ended), (888 + 50, 2));
    }
}
