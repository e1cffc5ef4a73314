//! The engine's thread: takes orders between steps, and sends each event to the owner of its request.

use std::collections::HashMap;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use muser_engine::Engine;
use muser_engine::engine::{Event, Export, Installed, Request, RequestId, StepRefused, Verdict};
use tokio::sync::{mpsc, oneshot, watch};

use crate::status::{EngineStatus, Task, Totals};
use crate::{ChosenToken, Extra, News, Order, Refused, TokenLogprobs, What};

/// Verdict of an audit, or the error that left it without one.
type AuditResult = Result<Verdict, Refused>;

/// Requests and audits under way, with their slots and counts.
struct Requests {
    open: HashMap<RequestId, Open>,
    audits: HashMap<RequestId, OpenAudit>,
    /// Request in each slot, by slot index; `None` while the slot is idle.
    slots: Vec<Option<RequestId>>,
    totals: Totals,
    /// Final events, sent once the status shows the end, so that the receiver of one finds its slot idle.
    last_words: Vec<(mpsc::UnboundedSender<News>, News)>,
    verdicts: Vec<(oneshot::Sender<AuditResult>, AuditResult)>,
    /// True once no more requests are taken and those under way are being ended.
    stopping: bool,
}

/// A request under way.
struct Open {
    news: mpsc::UnboundedSender<News>,
    prompt: usize,
    reused: usize,
    computed: usize,
    /// The largest `computed` so far; a preemption sets `computed` back, and not this.
    computed_max: usize,
    generated: usize,
    started: Option<Instant>,
    first_token: Option<Instant>,
    cancelled: bool,
    /// Pages of it to hand out to another machine as they become complete.
    export: Option<Export>,
}

/// An audit under way.
struct OpenAudit {
    reply: oneshot::Sender<AuditResult>,
    task: Task,
    cancelled: bool,
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
    let mut requests = Requests {
        open: HashMap::new(),
        audits: HashMap::new(),
        slots,
        totals: Totals::default(),
        last_words: Vec::new(),
        verdicts: Vec::new(),
        stopping: false,
    };
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
        for (news, word) in requests.last_words.drain(..) {
            // The owner may be gone.
            let _ = news.send(word);
        }
        for (reply, verdict) in requests.verdicts.drain(..) {
            let _ = reply.send(verdict);
        }
        if stepped.is_err() {
            return;
        }
    }
}

/// Queues a request with its installed pages, unless these depend on a revoked machine: its owner then gets the error
/// at once.
fn submit_trusted(engine: &mut Engine, request: Request, installed: Installed) -> Result<RequestId, Refused> {
    engine.trusts(&installed)?;
    Ok(engine.submit_installed(request, installed)?)
}

impl Requests {
    fn take(&mut self, engine: &mut Engine, order: Order) {
        match order {
            // Dropping the reply says that there is no engine for it.
            Order::Submit { .. } | Order::BeginInstallation { .. } | Order::BeginBase { .. } | Order::Audit { .. }
                if self.stopping => {}
            Order::Submit { request, extra, news, reply } => {
                let prompt = request.prompt.len();
                let (submitted, export) = match extra {
                    Extra::Nothing => (engine.submit(*request).map_err(Refused::from), None),
                    Extra::Installed(installed) => (submit_trusted(engine, *request, *installed), None),
                    Extra::Export(export) => (engine.submit(*request).map_err(Refused::from), Some(export)),
                };
                if let Ok(id) = &submitted {
                    self.open.insert(*id, Open { export, ..Open::new(news, prompt) });
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
            Order::Audit { audit, reply } => {
                let prompt_tokens = audit.end();
                match engine.submit_audit(*audit) {
                    Ok(id) => {
                        let (number, computed_tokens, generated_tokens) = (id.number(), 0, 0);
                        let task = Task { number, prompt_tokens, computed_tokens, generated_tokens };
                        self.audits.insert(id, OpenAudit { reply, task, cancelled: false });
                    }
                    Err(refused) => drop(reply.send(Err(refused.into()))),
                }
            }
            Order::ForgetPrefixes => engine.forget_prefixes(),
            Order::TakeBack(maker) => engine.take_back(maker),
            Order::Stop => {
                self.stopping = true;
                for id in self.open.keys().chain(self.audits.keys()) {
                    engine.cancel(*id);
                }
            }
        }
    }

    /// Cancels requests and audits whose receiver is dropped.
    fn cancel_unwanted(&mut self, engine: &mut Engine) {
        for (id, open) in self.open.iter_mut().filter(|(_, open)| !open.cancelled && open.news.is_closed()) {
            open.cancelled = engine.cancel(*id);
        }
        for (id, open) in self.audits.iter_mut().filter(|(_, open)| !open.cancelled && open.reply.is_closed()) {
            open.cancelled = engine.cancel(*id);
        }
    }

    fn step(&mut self, engine: &mut Engine) -> Result<(), StepRefused> {
        let report = engine.step(&mut |event| self.deliver(event))?;
        self.totals.steps += 1;
        self.totals.running_over_steps += report.running as u64;
        Ok(())
    }

    /// Sends an event to its request's owner. A closed channel is no error here: the next step cancels that request.
    fn deliver(&mut self, event: Event<'_>) {
        if self.note_audit(&event) {
            return;
        }
        let at = Instant::now();
        let (id, what) = match event {
            Event::Started { id, reused } => (id, What::Started { reused, slot: self.occupy(id) }),
            Event::PrefillProgress { id, computed, total, pages } => {
                let export = self.open.get_mut(&id).and_then(|open| open.export.as_mut());
                match export.zip(pages).map_or(Ok(Vec::new()), |(export, pages)| export.ready(computed, pages)) {
                    Ok(pages) => (id, What::Progress { computed, total, pages }),
                    Err(error) => return self.give_up(id, News { at, what: What::Failed(error.to_string()) }),
                }
            }
            Event::Token(event) => {
                let logprobs =
                    event.logprobs.map(|found| TokenLogprobs { chosen: found.chosen, top: found.top.to_vec() });
                (event.id, What::Token(ChosenToken { token: event.token, is_stop: event.is_stop, logprobs }))
            }
            Event::Preempted { id } => {
                self.totals.preemptions += 1;
                self.release(id);
                return;
            }
            Event::Paused { id } => {
                self.release(id);
                return;
            }
            Event::Resumed { id } => {
                self.occupy(id);
                return;
            }
            Event::Finished { id, outcome } => (id, What::Finished(outcome)),
            Event::Failed { id, error } => (id, What::Failed(error.to_string())),
            // All audits were noted above.
            Event::Audited { .. } => return,
        };
        let Some(open) = self.open.get_mut(&id) else { return };
        open.note(at, &what);
        let news = News { at, what };
        if !matches!(news.what, What::Finished(_) | What::Failed(_)) {
            // The owner may be gone.
            let _ = open.news.send(news);
            return;
        }
        self.release(id);
        if let Some(open) = self.open.remove(&id) {
            self.totals.add(&open, at);
            self.last_words.push((open.news, news));
        }
    }

    /// Notes what happens to an audit; false if the event is about a request.
    fn note_audit(&mut self, event: &Event<'_>) -> bool {
        let (Event::Started { id, .. }
        | Event::PrefillProgress { id, .. }
        | Event::Preempted { id }
        | Event::Paused { id }
        | Event::Resumed { id }
        | Event::Audited { id, .. }
        | Event::Failed { id, .. }
        | Event::Finished { id, .. }) = *event
        else {
            return false;
        };
        let Some(open) = self.audits.get_mut(&id) else { return false };
        match event {
            Event::Started { reused: computed, .. } | Event::PrefillProgress { computed, .. } => {
                open.task.computed_tokens = *computed;
                self.occupy(id);
                return true;
            }
            Event::Resumed { .. } => {
                self.occupy(id);
                return true;
            }
            Event::Preempted { .. } => self.totals.preemptions += 1,
            Event::Paused { .. } => {}
            Event::Audited { verdict, .. } => {
                self.verdicts.extend(self.audits.remove(&id).map(|open| (open.reply, Ok(*verdict))));
            }
            Event::Failed { error, .. } => {
                let failed = Err(Refused::Failed(error.clone()));
                self.verdicts.extend(self.audits.remove(&id).map(|open| (open.reply, failed)));
            }
            // Cancelled, because its receiver was dropped.
            _ => drop(self.audits.remove(&id)),
        }
        self.release(id);
        true
    }

    /// Queues a final event before the engine ends the request. With the channel closed, the request is cancelled
    /// before the next step.
    fn give_up(&mut self, id: RequestId, word: News) {
        if let Some(open) = self.open.get_mut(&id) {
            let (closed, _) = mpsc::unbounded_channel();
            let news = std::mem::replace(&mut open.news, closed);
            self.last_words.push((news, word));
        }
    }

    /// The request's slot: the one it has, or the lowest that is free.
    fn occupy(&mut self, id: RequestId) -> usize {
        let has = self.slots.iter().position(|slot| *slot == Some(id));
        let slot = has.or_else(|| self.slots.iter().position(Option::is_none));
        let slot = slot.expect("the engine runs no more sequences than there are slots");
        self.slots[slot] = Some(id);
        slot
    }

    fn release(&mut self, id: RequestId) {
        self.slots.iter_mut().filter(|slot| **slot == Some(id)).for_each(|slot| *slot = None);
    }

    /// The task shown in a slot, of a request or an audit.
    fn task(&self, id: RequestId) -> Option<Task> {
        let of_request = |open: &Open| Task {
            number: id.number(),
            prompt_tokens: open.prompt,
            computed_tokens: open.computed,
            generated_tokens: open.generated,
        };
        self.open.get(&id).map(of_request).or_else(|| self.audits.get(&id).map(|open| open.task))
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
    fn new(news: mpsc::UnboundedSender<News>, prompt: usize) -> Self {
        let (reused, computed, computed_max, generated) = (0, 0, 0, 0);
        let (started, first_token, cancelled, export) = (None, None, false, None);
        Self { news, prompt, reused, computed, computed_max, generated, started, first_token, cancelled, export }
    }

    fn note(&mut self, at: Instant, what: &What) {
        match what {
            What::Started { reused, .. } => {
                self.started = Some(at);
                (self.reused, self.computed) = (*reused, *reused);
            }
            What::Progress { computed, .. } => self.computed = *computed,
            What::Token(_) => {
                self.first_token.get_or_insert(at);
                self.computed = self.computed.max(self.prompt + self.generated);
                self.generated += 1;
            }
            What::Finished(_) | What::Failed(_) => {}
        }
        self.computed_max = self.computed_max.max(self.computed);
    }
}

impl Totals {
    fn add(&mut self, open: &Open, end: Instant) {
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
        let (news, _) = mpsc::unbounded_channel();
        let mut open = Open::new(news, 700);
        let progress = |computed| What::Progress { computed, total: 700, pages: Vec::new() };
        open.note(at, &What::Started { reused: 640, slot: 0 });
        open.note(at, &progress(690));
        // Interrupted, and begun again without what was reused.
        open.note(at, &progress(512));
        let mut totals = Totals { prompt_tokens: 888, ..Totals::default() };
        totals.add(&open, at);
        assert_eq!((totals.prompt_tokens, totals.reused_tokens), (888 + 50, 640));
        let (news, _) = mpsc::unbounded_channel();
        let mut begun_anew = Open::new(news, 700);
        begun_anew.reused = 640;
        begun_anew.note(at, &progress(512));
        totals.add(&begun_anew, at);
        assert_eq!((totals.prompt_tokens, totals.ended), (888 + 50, 2));
    }
}
