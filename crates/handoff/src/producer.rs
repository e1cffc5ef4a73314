//! Producing end of a lane: takes a request, has it computed, and sends pages as they are complete.
//!
//! The caller moves bytes ([`ProducerCore::take_bytes`], [`ProducerCore::output`]) and carries out the effects of
//! [`ProducerCore::poll_effect`]. It answers [`ProducerEffect::AskTrust`] by [`ProducerCore::trusted`], gives what that
//! returns to an engine ([`ProducerCore::submitted`]), passes the engine's events on ([`ProducerCore::started`],
//! [`ProducerCore::computed`], [`ProducerCore::finished`]) and sends by [`ProducerCore::send`] what there is room for. What
//! cannot be had is refused ([`ProducerCore::refuse`]) or given up ([`ProducerCore::give_up`]).

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use muser_wire::{
    Acceptance, CancelReason, Codecs, Failure, HandoffPlan, MacKeys, RefuseCode, Request, SendError, Sender,
    SenderEvent, SenderSettings, SenderTimes, Sent,
};

/// Shape of the model's KV cache, from which both ends derive what a handoff moves.
pub trait CacheShape {
    /// Rows of a full page.
    fn page_rows(&self) -> u32;

    /// Name of the last of the first `pages` full pages of `tokens`; `None` if there are none or fewer.
    fn name(&self, tokens: &[u32], pages: u32) -> Option<[u8; 32]>;

    /// Pages of a handoff after which a decoder with `held_pages` pages has `rows` rows; `None` if they cannot be counted.
    fn plan(&self, rows: u32, held_pages: u32) -> Option<HandoffPlan>;
}

/// Pages that an engine completed together.
pub trait ReadyPages: fmt::Debug + Send + Sync {
    /// Bytes of a page, which never change again; `None` if it is not among them.
    fn bytes(&self, layer: u16, page: u32) -> Option<&[u8]>;
}

/// Producing end of a lane, as a state machine over `muser-wire`'s sender.
#[derive(Debug)]
pub struct ProducerCore {
    sender: Sender,
    context_max: u32,
    /// Target size of a frame of pages, bytes.
    frame_bytes: u32,
    phase: Phase,
}

/// Effect that the caller carries out.
#[derive(Debug)]
pub enum ProducerEffect {
    /// A handoff is requested. Judge the peer by the lists as they are now, then call [`ProducerCore::trusted`].
    AskTrust,
    /// The receiver has installed the pages.
    Installed,
    /// The handoff under way, if any, is over: stop its computation. With the failure if the connection is over too.
    Over(Option<Failure>),
}

/// Result of [`ProducerCore::send`].
#[derive(Debug)]
pub enum SendStep {
    /// There is nothing to send, or no room.
    Idle,
    /// A frame of pages was made.
    Frame {
        /// True if more waits to be sent.
        has_more: bool,
    },
    /// Every page is with the kernel. Judge the peer by the lists as they are now, then call [`ProducerCore::commit`].
    Commit,
    /// The pages could not be sent: the handoff was given up.
    GaveUp(SendError),
}

#[derive(Debug)]
enum Phase {
    Idle,
    /// The judgement of the peer is awaited.
    Requested(Request),
    /// The engine's answer is awaited.
    Submitted(Offer),
    /// The engine has not begun.
    Queued(Offer, [u8; 32]),
    Sending(Work),
    Committed,
}

/// Part of a request that its acceptance repeats.
#[derive(Debug)]
struct Offer {
    plan: HandoffPlan,
    held_pages: u32,
}

/// An accepted handoff.
#[derive(Debug)]
struct Work {
    plan: HandoffPlan,
    /// Messages to the receiver that wait for room.
    outbox: VecDeque<Outgoing>,
    /// True once the engine has finished the prompt.
    is_computed: bool,
}

/// Message to the receiver.
#[derive(Debug)]
enum Outgoing {
    /// A frame of pages of a layer group, out of those that were completed together.
    Pages(u8, Range<u32>, Batch),
    /// Number of computed rows.
    Progress(u32),
    /// Commit of all pages.
    Commit,
}

/// Pages that were completed together, and the codecs to pack them with.
#[derive(Clone, Debug)]
struct Batch(Arc<dyn ReadyPages>, Codecs);

impl ProducerCore {
    /// The producing end of a new connection to this node. Frames of pages have about `frame_bytes` bytes, and at least
    /// one page of each layer.
    pub fn new(settings: SenderSettings, peer: [u8; 32], frame_bytes: u32, now_ms: u64) -> Self {
        let context_max = settings.context_max;
        let sender = Sender::new(settings, now_ms).admitting(peer);
        Self { sender, context_max, frame_bytes, phase: Phase::Idle }
    }

    /// Replaces the keys.
    pub fn set_keys(&mut self, keys: MacKeys) {
        self.sender.set_keys(keys);
    }

    /// The next effect, if any.
    pub fn poll_effect(&mut self) -> Option<ProducerEffect> {
        loop {
            match self.sender.poll_event()? {
                SenderEvent::Request(request) => {
                    self.phase = Phase::Requested(request);
                    return Some(ProducerEffect::AskTrust);
                }
                SenderEvent::Installed(_) => {
                    let was_committed = matches!(self.phase, Phase::Committed);
                    self.phase = Phase::Idle;
                    return Some(if was_committed { ProducerEffect::Installed } else { ProducerEffect::Over(None) });
                }
                SenderEvent::Cancelled(_) => {
                    self.phase = Phase::Idle;
                    return Some(ProducerEffect::Over(None));
                }
                SenderEvent::Failed(failure) => {
                    self.phase = Phase::Idle;
                    return Some(ProducerEffect::Over(Some(failure)));
                }
                SenderEvent::Hello(_) | SenderEvent::Pong(_) => {}
            }
        }
    }

    /// Says that the peer may be served. Returns the request to compute, whose rows and claim are checked; `None` if it was
    /// refused, or is not awaited.
    pub fn trusted(&mut self, shape: &impl CacheShape) -> Option<Request> {
        let request = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Requested(request) => request,
            phase => {
                self.phase = phase;
                return None;
            }
        };
        match self.check(&request, shape) {
            Ok(offer) => {
                self.phase = Phase::Submitted(offer);
                Some(request)
            }
            Err((code, detail)) => {
                self.refuse(code, 0, &detail);
                None
            }
        }
    }

    /// Says that the engine has the request; `nonce` is drawn for this handoff.
    pub fn submitted(&mut self, nonce: [u8; 32]) {
        self.phase = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Submitted(offer) => Phase::Queued(offer, nonce),
            phase => phase,
        };
    }

    /// Refuses the request that is not accepted yet. The lane stays usable.
    pub fn refuse(&mut self, code: RefuseCode, retry_after_ms: u32, detail: &str) {
        self.phase = Phase::Idle;
        // An error means that the request ended by itself, of which the receiver knows.
        let _ = self.sender.refuse(code, retry_after_ms, detail);
    }

    /// Says that the engine has begun, and reuses the first `reused_rows` rows: the receiver is told.
    ///
    /// # Errors
    /// [`SendError`]; the handoff is given up then.
    pub fn started(&mut self, reused_rows: u32, now_ms: u64) -> Result<(), SendError> {
        let (Offer { plan, held_pages: first_page }, nonce) = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Queued(offer, nonce) => (offer, nonce),
            phase => {
                self.phase = phase;
                return Err(SendError::State("no engine is awaited"));
            }
        };
        let acceptance = Acceptance { nonce, first_page, reused_rows, plan: plan.clone() };
        if let Err(error) = self.sender.accept(acceptance, now_ms) {
            self.refuse(RefuseCode::Internal, 0, GAVE_UP);
            return Err(error);
        }
        self.phase = Phase::Sending(Work { plan, outbox: VecDeque::new(), is_computed: false });
        Ok(())
    }

    /// Says that `rows` rows are computed, and with them the `pages` in this range of absolute indices of every layer.
    pub fn computed(&mut self, rows: u32, range: Range<u32>, pages: Arc<dyn ReadyPages>, codecs: Codecs) {
        let Phase::Sending(work) = &mut self.phase else { return };
        let (batch, bytes_max) = (Batch(pages, codecs), self.sender.frame_bytes_max().min(self.frame_bytes));
        for group in (0u8..=u8::MAX).take(work.plan.groups().len()) {
            let frames = work.plan.frames(group, range.clone(), bytes_max).into_iter();
            work.outbox.extend(frames.map(|pages| Outgoing::Pages(group, pages, batch.clone())));
        }
        work.outbox.push_back(Outgoing::Progress(rows));
    }

    /// Says that every row is computed, and its pages were passed on.
    pub fn finished(&mut self) {
        if let Phase::Sending(work) = &mut self.phase {
            work.is_computed = true;
            work.outbox.push_back(Outgoing::Commit);
        }
    }

    /// Ends the handoff under way and tells the receiver; if it cannot be told, the stall limit ends the lane.
    pub fn give_up(&mut self, reason: CancelReason, now_ms: u64) {
        // An error means that it ended by itself, of which the receiver knows.
        let _ = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle => Ok(()),
            Phase::Requested(_) | Phase::Submitted(_) | Phase::Queued(..) => {
                self.sender.refuse(RefuseCode::Internal, 0, GAVE_UP)
            }
            Phase::Sending(_) | Phase::Committed => self.sender.cancel(reason, now_ms),
        };
    }

    /// Sends what there is room for, up to one frame of pages, so that other lanes get their turn. The commit is due once
    /// the kernel has all bytes before it (`is_drained`), so that its times are complete.
    pub fn send(&mut self, is_drained: bool, now_ms: u64) -> SendStep {
        let Phase::Sending(work) = &mut self.phase else { return SendStep::Idle };
        while self.sender.wants_more() {
            let sent = match work.outbox.pop_front() {
                None => return SendStep::Idle,
                Some(Outgoing::Commit) => {
                    work.outbox.push_front(Outgoing::Commit);
                    return if is_drained { SendStep::Commit } else { SendStep::Idle };
                }
                Some(Outgoing::Progress(rows)) => self.sender.progress(rows),
                Some(Outgoing::Pages(group, range, Batch(pages, codecs))) => {
                    self.sender.use_codecs(codecs);
                    // A page that is not there has no bytes, which makes its frame invalid.
                    let sent = self
                        .sender
                        .send_pages(group, range, |layer, page| pages.bytes(layer, page).unwrap_or_default());
                    if sent.is_ok() {
                        return SendStep::Frame { has_more: !work.outbox.is_empty() };
                    }
                    sent
                }
            };
            if let Err(error) = sent {
                self.give_up(CancelReason::Internal, now_ms);
                return SendStep::GaveUp(error);
            }
        }
        SendStep::Idle
    }

    /// Signs and sends the commit, after [`SendStep::Commit`] and for a peer that is still trusted. Returns the amounts of the
    /// handoff.
    ///
    /// # Errors
    /// [`SendError`]; the handoff is given up then.
    pub fn commit(&mut self, times: SenderTimes, now_ms: u64) -> Result<Sent, SendError> {
        let sent = self.sender.sent();
        if let Err(error) = self.sender.commit(times, now_ms) {
            self.give_up(CancelReason::Internal, now_ms);
            return Err(error);
        }
        self.phase = Phase::Committed;
        Ok(sent)
    }

    /// True if the engine's next event is to be passed on: the last one is with the receiver.
    pub fn wants_event(&self) -> bool {
        match &self.phase {
            Phase::Queued(..) => true,
            Phase::Sending(work) => !work.is_computed && work.outbox.is_empty(),
            _ => false,
        }
    }

    /// Bytes of a long frame of pages before packing.
    pub fn frame_bytes(&self) -> u64 {
        let least = if let Phase::Sending(work) = &self.phase { work.plan.body_bytes_min() } else { 0 };
        u64::from(self.frame_bytes).max(least)
    }

    /// Takes bytes from the front of `bytes` and returns how many it took: offer the rest again after the effects.
    pub fn take_bytes(&mut self, bytes: &[u8], now_ms: u64) -> usize {
        self.sender.take_bytes(bytes, now_ms)
    }

    /// The bytes to send.
    pub fn output(&self) -> &[u8] {
        self.sender.output()
    }

    /// Says that the first `bytes` bytes of [`ProducerCore::output`] were sent.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn output_sent(&mut self, bytes: usize, now_ms: u64) {
        self.sender.output_sent(bytes, now_ms);
    }

    /// Checks the deadlines, to be called periodically. A long chunk, or a place in the engine's queue, is no silence: the
    /// receiver is sent a ping.
    pub fn tick(&mut self, now_ms: u64) {
        self.sender.tick(now_ms);
        if !matches!(self.phase, Phase::Idle) {
            self.sender.ping(0);
        }
    }

    /// Says that the connection ended and no more bytes come.
    pub fn ended(&mut self) {
        self.sender.ended();
    }

    /// True once the connection is over: send the rest of the output, and close it.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Longest `Pages` body on this connection, in bytes; 0 before the greeting.
    pub fn frame_bytes_max(&self) -> u32 {
        self.sender.frame_bytes_max()
    }

    /// Bytes of memory held for frames that come and go.
    pub fn buffer_bytes(&self) -> usize {
        self.sender.buffer_bytes()
    }

    fn check(&self, request: &Request, shape: &impl CacheShape) -> Result<Offer, (RefuseCode, String)> {
        let refuse = |code, detail: String| Err((code, detail));
        let (tokens, held_pages) = (&request.tokens, request.held_pages);
        let Some(rows) = u32::try_from(tokens.len()).ok().filter(|rows| *rows <= self.context_max) else {
            return refuse(RefuseCode::TooLong, format!("{} rows, {} are the most", tokens.len(), self.context_max));
        };
        if held_pages > rows / shape.page_rows() {
            return refuse(RefuseCode::StaleClaim, format!("{held_pages} pages are not of {rows} rows"));
        }
        if held_pages > 0 && shape.name(tokens, held_pages) != Some(request.held_name) {
            return refuse(RefuseCode::StaleClaim, format!("the first {held_pages} pages have another name"));
        }
        let Some(plan) = shape.plan(rows, held_pages) else {
            return refuse(RefuseCode::TooLong, format!("{rows} rows cannot be planned"));
        };
        Ok(Offer { plan, held_pages })
    }
}

/// Detail of a refusal after the engine ended a request.
const GAVE_UP: &str = "the engine gave up";
