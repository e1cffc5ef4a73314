//! State machine of the sender, the end that serves pages.
//!
//! The caller feeds [`Endpoint::take_bytes`], drains [`Sender::poll_event`], and sends [`Endpoint::output`]. It answers each
//! [`SenderEvent::Request`] by [`Sender::accept`] or [`Sender::refuse`], gives pages that never change again with
//! [`Sender::send_pages`] while [`Sender::wants_more`], and ends with [`Sender::commit`].
//!
//! A receiver's refusal ends the connection; a cancellation by either side does not, once both sides have sent `Cancel`.
//! One that comes for the handoff that ended last crossed with that end and is dropped.

use std::ops::Range;

use crate::HandoffId;
use crate::codec::Codecs;
use crate::departures::{Departures, SendError, Sent};
use crate::endpoint::{CommonEvent, EndRole, Endpoint, OpenHandoff, Own, State};
use crate::failure::Failure;
use crate::header::Limits;
use crate::hello::{Hello, HelloAck, Node};
use crate::manifest::{KeyError, LaneBinding, MacKeys, Manifest};
use crate::message::Message;
use crate::plan::HandoffPlan;
use crate::reader::Frame;
use crate::refuse::{Cancel, CancelReason, Refuse, RefuseCode};
use crate::transfer::{Accept, Commit, Progress, Request, SenderTimes, VERSIONS};

/// While more answers wait to be sent, no more requests are taken.
const ANSWERS_BYTES_MAX: usize = 16 << 10;

/// Settings of a sender, fixed at connection.
#[derive(Clone, Debug)]
pub struct SenderSettings {
    /// This process.
    pub node: Node,
    /// The connection.
    pub lane: LaneBinding,
    /// Keys to sign manifests with.
    pub keys: MacKeys,
    /// Codecs to pack pages with, where the receiver has them too.
    pub codecs: Codecs,
    /// Handoffs served at a time over all connections, as told to receivers.
    pub concurrent_max: u32,
    /// Longest request taken, in tokens.
    pub context_max: u32,
    /// Longest `Pages` body made, in bytes; the receiver's own limit counts too.
    pub pages_bytes_max: u32,
    /// No more pages are taken while more bytes than this wait to be sent.
    pub backlog_bytes_max: usize,
    /// The connection fails when the receiver neither takes nor sends for longer while it is awaited, and when its greeting
    /// takes longer, whatever it sends.
    pub stall_limit_ms: u64,
}

/// Event for the caller of a [`Sender`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SenderEvent {
    /// The handshake is done.
    Hello(Hello),
    /// A handoff to accept or to refuse. Its key is known and not revoked.
    Request(Request),
    /// The receiver has the pages and uses them.
    Installed(HandoffId),
    /// The handoff was cancelled by either side and both know; the connection is usable.
    Cancelled(Cancel),
    /// The answer to a ping.
    Pong(u64),
    /// The connection is over, and with it the handoff under way, if any.
    Failed(Failure),
}

/// Terms on which a request is accepted.
#[derive(Clone, Debug)]
pub struct Acceptance {
    /// Drawn at random for this handoff.
    pub nonce: [u8; 32],
    /// Held pages that were found to be those of the request's tokens; the plan leaves them out.
    pub first_page: u32,
    /// Rows reused and not computed for this handoff.
    pub reused_rows: u32,
    /// The pages to send.
    pub plan: HandoffPlan,
}

/// State machine of the sender, the end that serves pages.
pub type Sender = Endpoint<Sending>;

/// Role of the sender, with its settings.
#[derive(Debug)]
pub struct Sending {
    codecs: Codecs,
    concurrent_max: u32,
    backlog_bytes_max: usize,
}

/// Stage of a handoff at its sender.
#[derive(Debug)]
pub enum SenderStage {
    /// The caller's answer is awaited.
    Requested,
    /// Pages are sent.
    Sending(Box<Departures>),
    /// The receiver's acknowledgement is awaited.
    Committed {
        /// Amounts of the whole handoff.
        sent: Sent,
        /// Least time given to the receiver for its answer, ms.
        answer_by_ms: u64,
    },
}

impl Sender {
    /// Awaits the `Hello` of a connection.
    pub fn new(settings: SenderSettings, now_ms: u64) -> Self {
        let SenderSettings { node, lane, keys, pages_bytes_max, stall_limit_ms, .. } = settings;
        let SenderSettings { codecs, concurrent_max, context_max, backlog_bytes_max, .. } = settings;
        let own = Own { node, lane, keys, pages_bytes_max, stall_limit_ms };
        // The receiver never sends pages, so none are taken.
        Self::open(Sending { codecs, concurrent_max, backlog_bytes_max }, own, Limits::new(context_max, 0), now_ms)
    }

    /// Refuses the connection before anything was said on it, and ends it once that is sent.
    pub fn turn_away(&mut self, code: RefuseCode, retry_after_ms: u32, detail: &str) {
        if matches!(self.state, State::Greeting) {
            let refuse = Refuse { retry_after_ms, ..Refuse::new(HandoffId::NONE, code, detail) };
            self.link.write(&Message::Refuse(refuse));
            self.state = State::Closed;
        }
    }

    /// Accepts the request under way.
    ///
    /// # Errors
    /// [`SendError::State`], [`SendError::FirstPage`], or [`SendError::FrameTooLarge`] if the plan has a layer group of
    /// which not even one page index fits a frame.
    pub fn accept(&mut self, acceptance: Acceptance, now_ms: u64) -> Result<(), SendError> {
        let name = self.name();
        let State::UnderWay(receiver, handoff) = &mut self.state else { return Err(SendError::State(name)) };
        if !matches!(handoff.stage, SenderStage::Requested) {
            return Err(SendError::State(name));
        }
        let Acceptance { nonce, first_page, reused_rows, plan } = acceptance;
        let (request, max) = (&handoff.request, receiver.pages_bytes_max);
        if first_page > request.held_pages {
            return Err(SendError::FirstPage { first_page, held_pages: request.held_pages });
        }
        let got = plan.body_bytes_min();
        if got > u64::from(max) {
            return Err(SendError::FrameTooLarge { got, max });
        }
        let (handoff_id, rows) = (request.handoff, handoff.rows());
        let (page_count, payload_bytes) = (plan.page_count(), plan.payload_bytes());
        let accept = Accept { handoff: handoff_id, nonce, first_page, rows, page_count, payload_bytes, reused_rows };
        let manifest = Manifest::new(request, &accept, &receiver.node, &self.own.node);
        let codecs = self.role.codecs.common(Codecs::ALL);
        let codecs = Codecs(codecs.0 & request.codecs.common(Codecs::ALL).0);
        handoff.stage = SenderStage::Sending(Box::new(Departures::new(plan, manifest, codecs)));
        self.link.write(&Message::Accept(accept));
        self.link.moved_ms = now_ms;
        Ok(())
    }

    /// Refuses the request under way, or gives up an accepted one. The connection stays usable.
    ///
    /// # Errors
    /// [`SendError::State`].
    pub fn refuse(&mut self, code: RefuseCode, retry_after_ms: u32, detail: &str) -> Result<(), SendError> {
        let name = self.name();
        let State::UnderWay(_, handoff) = &self.state else { return Err(SendError::State(name)) };
        if matches!(handoff.stage, SenderStage::Committed { .. }) {
            return Err(SendError::State(name));
        }
        let refuse = Refuse { retry_after_ms, ..Refuse::new(handoff.id(), code, detail) };
        self.link.write(&Message::Refuse(refuse));
        self.end_handoff();
        Ok(())
    }

    /// Sends the planned pages of `group` with an index in `pages` as one frame. `page` gives the bytes of (layer, page);
    /// they must never change again. [`HandoffPlan::frames`] makes ranges that fit.
    ///
    /// # Errors
    /// A [`SendError`]; then nothing of the frame is sent.
    pub fn send_pages<'p>(
        &mut self,
        group: u8,
        pages: Range<u32>,
        page: impl Fn(u16, u32) -> &'p [u8],
    ) -> Result<(), SendError> {
        let (name, backlog, waits) = (self.name(), !self.wants_more(), self.output().len());
        let State::UnderWay(receiver, handoff) = &mut self.state else { return Err(SendError::State(name)) };
        let OpenHandoff { request, stage: SenderStage::Sending(work), .. } = &mut **handoff else {
            return Err(SendError::State(name));
        };
        if backlog {
            return Err(SendError::Backlog(waits));
        }
        let max = receiver.pages_bytes_max;
        work.send(request.handoff, (group, pages), (max, self.link.output_mut()), page)
    }

    /// Packs the next frames of the handoff under way with these codecs, as far as both sides have them.
    pub fn use_codecs(&mut self, codecs: Codecs) {
        if let State::UnderWay(_, handoff) = &mut self.state
            && let SenderStage::Sending(work) = &mut handoff.stage
        {
            work.use_codecs(codecs);
        }
    }

    /// Tells the receiver how many of the handoff's rows are computed.
    ///
    /// # Errors
    /// [`SendError::State`] or [`SendError::Progress`].
    pub fn progress(&mut self, rows_done: u32) -> Result<(), SendError> {
        let name = self.name();
        let State::UnderWay(_, handoff) = &mut self.state else { return Err(SendError::State(name)) };
        let (handoff_id, rows_total) = (handoff.id(), handoff.rows());
        let SenderStage::Sending(work) = &mut handoff.stage else { return Err(SendError::State(name)) };
        work.progress(rows_done, rows_total)?;
        self.link.write(&Message::Progress(Progress { handoff: handoff_id, rows_done, rows_total }));
        Ok(())
    }

    /// Signs and sends the commit over every page of the plan and `times`. Times of sending are final once
    /// [`Endpoint::output`] is empty and with the kernel.
    ///
    /// # Errors
    /// [`SendError::State`], [`SendError::Incomplete`], or [`SendError::Key`].
    pub fn commit(&mut self, times: SenderTimes, now_ms: u64) -> Result<(), SendError> {
        let name = self.name();
        let State::UnderWay(_, handoff) = &mut self.state else { return Err(SendError::State(name)) };
        let (rows, OpenHandoff { request, stage, .. }) = (handoff.rows(), &mut **handoff);
        let SenderStage::Sending(work) = &*stage else { return Err(SendError::State(name)) };
        if work.left() > 0 {
            return Err(SendError::Incomplete(work.left()));
        }
        let key = match self.own.keys.to_serve(request.key_id) {
            Ok(key) => key,
            Err(unusable) => {
                self.refuse(code_of(unusable), 0, &unusable.to_string())?;
                return Err(unusable.into());
            }
        };
        let (manifest, handoff, lane) = (work.manifest(), request.handoff, self.own.lane);
        let (frames, stored_bytes, root) = (manifest.frames(), manifest.stored_bytes(), manifest.root());
        let mac = manifest.mac(key, &lane, &times);
        // The receiver may complete at the last moment, so its acknowledgement gets the usual idle timeout. Otherwise the
        // expiry of this handoff would end the connection under the next one.
        let answer_by_ms = now_ms.saturating_add(self.own.stall_limit_ms);
        *stage = SenderStage::Committed { sent: work.sent(rows), answer_by_ms };
        self.link.write(&Message::Commit(Commit { handoff, frames, stored_bytes, times, lane, root, mac }));
        self.link.moved_ms = now_ms;
        Ok(())
    }

    /// Ends the handoff under way. [`SenderEvent::Cancelled`] follows when the receiver knows.
    ///
    /// # Errors
    /// [`SendError::State`] if none is under way.
    pub fn cancel(&mut self, reason: CancelReason, now_ms: u64) -> Result<(), SendError> {
        self.begin_cancelling(reason, now_ms).map_err(SendError::State)
    }

    /// The next event, if any.
    pub fn poll_event(&mut self) -> Option<SenderEvent> {
        self.events.pop_front()
    }

    /// True if [`Sender::send_pages`] takes a frame. A frame may exceed the backlog limit once, so that memory is
    /// bounded by the limit and one frame.
    pub fn wants_more(&self) -> bool {
        let State::UnderWay(_, handoff) = &self.state else { return false };
        matches!(handoff.stage, SenderStage::Sending(_)) && self.output().len() <= self.role.backlog_bytes_max
    }

    /// Amounts sent of the handoff under way; zeros if there is none.
    pub fn sent(&self) -> Sent {
        let State::UnderWay(_, handoff) = &self.state else { return Sent::default() };
        match &handoff.stage {
            SenderStage::Requested => Sent::default(),
            SenderStage::Sending(work) => work.sent(handoff.rows()),
            SenderStage::Committed { sent, .. } => *sent,
        }
    }

    fn on_hello(&mut self, hello: Hello) -> Result<(), Failure> {
        let version = hello.version_max.min(VERSIONS.1);
        if version < hello.version_min || version < VERSIONS.0 {
            return Err(Failure::Version { min: hello.version_min, max: hello.version_max });
        }
        self.greeted(hello.node, hello.frame_bytes_max)?;
        let (Own { node, pages_bytes_max, .. }, Sending { concurrent_max, codecs, .. }) = (&self.own, &self.role);
        let (node, concurrent_max, codecs, frame_bytes_max) = (*node, *concurrent_max, *codecs, *pages_bytes_max);
        self.link.write(&Message::HelloAck(HelloAck { version, node, concurrent_max, codecs, frame_bytes_max }));
        self.events.push_back(SenderEvent::Hello(hello));
        Ok(())
    }

    fn on_request(&mut self, request: Request, now_ms: u64) {
        let State::Idle(peer) = &self.state else { return };
        let peer = *peer;
        let usable = self.own.keys.to_serve(request.key_id).map(|_| ());
        if let Err(unusable) = usable {
            let refuse = Refuse::new(request.handoff, code_of(unusable), &unusable.to_string());
            self.link.write(&Message::Refuse(refuse));
            self.ended = Some(request.handoff);
            return;
        }
        self.events.push_back(SenderEvent::Request(request.clone()));
        self.begin(peer, request, SenderStage::Requested, now_ms);
    }
}

impl EndRole for Sending {
    type Event = SenderEvent;
    type Stage = SenderStage;
    const FAILURE_VOIDS_EVENTS: bool = false;

    fn event(common: CommonEvent) -> SenderEvent {
        match common {
            CommonEvent::Cancelled(cancel) => SenderEvent::Cancelled(cancel),
            CommonEvent::Pong(value) => SenderEvent::Pong(value),
            CommonEvent::Failed(failure) => SenderEvent::Failed(failure),
        }
    }

    fn name(stage: &SenderStage) -> &'static str {
        match stage {
            SenderStage::Requested => "a request is not answered",
            SenderStage::Sending(_) => "sending",
            SenderStage::Committed { .. } => "the installation is awaited",
        }
    }

    fn expires_at_ms(handoff: &OpenHandoff<SenderStage>) -> Option<u64> {
        Some(match &handoff.stage {
            SenderStage::Requested | SenderStage::Sending(_) => handoff.due_ms(),
            SenderStage::Committed { answer_by_ms, .. } => handoff.due_ms().max(*answer_by_ms),
        })
    }

    fn awaits_peer(stage: Option<&SenderStage>, has_output: bool) -> bool {
        match stage {
            None | Some(SenderStage::Sending(_)) => has_output,
            Some(SenderStage::Requested) => false,
            Some(SenderStage::Committed { .. }) => true,
        }
    }

    fn holds_back(end: &Sender) -> bool {
        end.is_idle() && end.output().len() > ANSWERS_BYTES_MAX
    }

    fn take_pages(_: &mut OpenHandoff<SenderStage>, _: &Frame<'_>) -> Option<Result<(), Failure>> {
        None
    }

    fn on_message(end: &mut Sender, message: Message<'static>, now_ms: u64) -> Result<(), Failure> {
        let is_committed = match &end.state {
            State::UnderWay(_, handoff) => matches!(handoff.stage, SenderStage::Committed { .. }),
            // It crossed with the cancellation.
            State::Cancelling { .. } => true,
            State::Greeting | State::Idle(_) | State::Closed => false,
        };
        match (&end.state, message) {
            (State::Greeting, Message::Hello(hello)) => return end.on_hello(hello),
            (State::Idle(_), Message::Request(request)) => end.on_request(request, now_ms),
            (_, Message::Installed(handoff)) if is_committed && end.handoff() == Some(handoff) => {
                end.events.push_back(SenderEvent::Installed(handoff));
                end.end_handoff();
            }
            (_, message) => return Err(end.unexpected(message)),
        }
        Ok(())
    }
}

fn code_of(unusable: KeyError) -> RefuseCode {
    match unusable {
        KeyError::Revoked(_) => RefuseCode::RevokedKey,
        KeyError::Unknown(_) | KeyError::VerifyOnly(_) => RefuseCode::UnknownKey,
    }
}
