//! State machine of the sender, the end that serves pages.
//!
//! The caller feeds [`Sender::take_bytes`], drains [`Sender::poll_event`], and sends [`Sender::output`]. It answers each
//! [`SenderEvent::Request`] by [`Sender::accept`] or [`Sender::refuse`], gives pages that never change again with
//! [`Sender::send_pages`] while [`Sender::wants_more`], and ends with [`Sender::commit`].
//!
//! A receiver's refusal ends the connection; a cancellation by either side does not, once both sides have sent `Cancel`.
//! One that comes for the handoff that ended last crossed with that end and is dropped.

use std::collections::VecDeque;
use std::ops::Range;

use crate::HandoffId;
use crate::codec::Codecs;
use crate::departures::{Departures, SendError, Sent};
use crate::failure::Failure;
use crate::header::Limits;
use crate::hello::{Hello, HelloAck, Node, VERSIONS};
use crate::link::{Link, check_time};
use crate::manifest::{KeyError, LaneBinding, MacKeys, Manifest};
use crate::message::Message;
use crate::plan::HandoffPlan;
use crate::refuse::{Cancel, CancelReason, Refuse, RefuseCode};
use crate::transfer::{Accept, Commit, Progress, Request, SenderTimes};

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
#[derive(Debug)]
pub struct Sender {
    settings: SenderSettings,
    link: Link,
    state: State,
    events: VecDeque<SenderEvent>,
    /// The receiver and the lower of both sides' limits of `Pages` bodies.
    peer: Option<(Node, u32)>,
    handoff: Option<Handoff>,
    /// Node id that the peer's greeting must have; `None` admits any.
    admitted: Option<[u8; 32]>,
    /// The handoff that ended last.
    ended: HandoffId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    Idle,
    Requested,
    Sending,
    Committed,
    Cancelling,
    Closed,
}

#[derive(Debug)]
struct Handoff {
    request: Request,
    expires_at_ms: u64,
    work: Option<Departures>,
}

impl State {
    /// Description for error messages.
    fn name(self) -> &'static str {
        match self {
            Self::Greeting => "greeting",
            Self::Idle => "idle",
            Self::Requested => "a request is not answered",
            Self::Sending => "sending",
            Self::Committed => "the installation is awaited",
            Self::Cancelling => "a cancellation is not acknowledged",
            Self::Closed => "closed",
        }
    }
}

impl Sender {
    /// Awaits the `Hello` of a connection.
    pub fn new(settings: SenderSettings, now_ms: u64) -> Self {
        // The receiver never sends pages, so none are taken.
        let link = Link::new(Limits::new(settings.context_max, 0), now_ms);
        let (events, ended) = (VecDeque::new(), HandoffId::NONE);
        Self { settings, link, state: State::Greeting, events, peer: None, handoff: None, admitted: None, ended }
    }

    /// Takes a greeting of this node only: the one whose certificate the connection was opened with.
    #[must_use]
    pub fn admitting(self, node_id: [u8; 32]) -> Self {
        Self { admitted: Some(node_id), ..self }
    }

    /// Refuses the connection before anything was said on it, and ends it once that is sent.
    pub fn turn_away(&mut self, code: RefuseCode, retry_after_ms: u32, detail: &str) {
        if self.state == State::Greeting {
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
        let (Some((receiver, max)), Some(handoff), State::Requested) = (&self.peer, &mut self.handoff, self.state)
        else {
            return Err(SendError::State(self.state.name()));
        };
        let Acceptance { nonce, first_page, reused_rows, plan } = acceptance;
        let (request, max) = (&handoff.request, *max);
        if first_page > request.held_pages {
            return Err(SendError::FirstPage { first_page, held_pages: request.held_pages });
        }
        let got = plan.body_bytes_min();
        if got > u64::from(max) {
            return Err(SendError::FrameTooLarge { got, max });
        }
        let rows = crate::rows_of(&request.tokens);
        let (page_count, payload_bytes) = (plan.page_count(), plan.payload_bytes());
        let accept =
            Accept { handoff: request.handoff, nonce, first_page, rows, page_count, payload_bytes, reused_rows };
        let manifest = Manifest::new(request, &accept, receiver, &self.settings.node);
        let codecs = self.settings.codecs.common(Codecs::ALL);
        let codecs = Codecs(codecs.0 & request.codecs.common(Codecs::ALL).0);
        handoff.work = Some(Departures::new(plan, manifest, codecs));
        self.link.write(&Message::Accept(accept));
        (self.state, self.link.moved_ms) = (State::Sending, now_ms);
        Ok(())
    }

    /// Refuses the request under way, or gives up an accepted one. The connection stays usable.
    ///
    /// # Errors
    /// [`SendError::State`].
    pub fn refuse(&mut self, code: RefuseCode, retry_after_ms: u32, detail: &str) -> Result<(), SendError> {
        if !matches!(self.state, State::Requested | State::Sending) {
            return Err(SendError::State(self.state.name()));
        }
        let refuse = Refuse { retry_after_ms, ..Refuse::new(self.handoff_id(), code, detail) };
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
        let (name, backlog, waits) = (self.state.name(), !self.wants_more(), self.output().len());
        let work = self.handoff.as_mut().and_then(|handoff| Some((handoff.request.handoff, handoff.work.as_mut()?)));
        let (Some((handoff, work)), Some((_, max)), State::Sending) = (work, &self.peer, self.state) else {
            return Err(SendError::State(name));
        };
        if backlog {
            return Err(SendError::Backlog(waits));
        }
        work.send(handoff, (group, pages), (*max, self.link.output_mut()), page)
    }

    /// Packs the next frames of the handoff under way with these codecs, as far as both sides have them.
    pub fn use_codecs(&mut self, codecs: Codecs) {
        if let Some(work) = self.handoff.as_mut().and_then(|handoff| handoff.work.as_mut()) {
            work.use_codecs(codecs);
        }
    }

    /// Tells the receiver how many of the handoff's rows are computed.
    ///
    /// # Errors
    /// [`SendError::State`] or [`SendError::Progress`].
    pub fn progress(&mut self, rows_done: u32) -> Result<(), SendError> {
        let (Some(handoff), State::Sending) = (&mut self.handoff, self.state) else {
            return Err(SendError::State(self.state.name()));
        };
        let rows_total = crate::rows_of(&handoff.request.tokens);
        let Some(work) = &mut handoff.work else { return Err(SendError::State(self.state.name())) };
        work.progress(rows_done, rows_total)?;
        let handoff = handoff.request.handoff;
        self.link.write(&Message::Progress(Progress { handoff, rows_done, rows_total }));
        Ok(())
    }

    /// Signs and sends the commit over every page of the plan and `times`. Times of sending are final once
    /// [`Sender::output`] is empty and with the kernel.
    ///
    /// # Errors
    /// [`SendError::State`], [`SendError::Incomplete`], or [`SendError::Key`].
    pub fn commit(&mut self, times: SenderTimes, now_ms: u64) -> Result<(), SendError> {
        let work = self.handoff.as_ref().and_then(|handoff| Some((&handoff.request, handoff.work.as_ref()?)));
        let (Some((request, work)), State::Sending) = (work, self.state) else {
            return Err(SendError::State(self.state.name()));
        };
        if work.left() > 0 {
            return Err(SendError::Incomplete(work.left()));
        }
        let (frames, stored_bytes, root) =
            (work.manifest().frames(), work.manifest().stored_bytes(), work.manifest().root());
        match self.settings.keys.to_serve(request.key_id) {
            Ok(key) => {
                let (handoff, lane) = (request.handoff, self.settings.lane);
                let mac = work.manifest().mac(key, &lane, &times);
                self.link.write(&Message::Commit(Commit { handoff, frames, stored_bytes, times, lane, root, mac }));
                (self.state, self.link.moved_ms) = (State::Committed, now_ms);
                // The receiver may complete at the last moment, so its acknowledgement gets the usual idle timeout.
                // Otherwise the expiry of this handoff would end the connection under the next one.
                let answer_by_ms = now_ms.saturating_add(self.settings.stall_limit_ms);
                if let Some(handoff) = &mut self.handoff {
                    handoff.expires_at_ms = handoff.expires_at_ms.max(answer_by_ms);
                }
                Ok(())
            }
            Err(unusable) => {
                self.refuse(code_of(unusable), 0, &unusable.to_string())?;
                Err(unusable.into())
            }
        }
    }

    /// Ends the handoff under way. [`SenderEvent::Cancelled`] follows when the receiver knows.
    ///
    /// # Errors
    /// [`SendError::State`] if none is accepted.
    pub fn cancel(&mut self, reason: CancelReason, now_ms: u64) -> Result<(), SendError> {
        let (Some(handoff), State::Requested | State::Sending | State::Committed) = (&mut self.handoff, self.state)
        else {
            return Err(SendError::State(self.state.name()));
        };
        handoff.work = None;
        handoff.expires_at_ms = now_ms.saturating_add(self.settings.stall_limit_ms);
        self.link.write(&Message::Cancel(Cancel { handoff: handoff.request.handoff, reason }));
        (self.state, self.link.moved_ms) = (State::Cancelling, now_ms);
        Ok(())
    }

    /// Sends a ping; [`SenderEvent::Pong`] brings `value` back. A sender pings during long computations to keep the
    /// connection from timing out.
    pub fn ping(&mut self, value: u64) {
        if self.state != State::Closed {
            self.link.ping(value);
        }
    }

    /// Replaces the keys: a handoff under way is refused at its commit if its key was revoked.
    pub fn set_keys(&mut self, keys: MacKeys) {
        self.settings.keys = keys;
    }

    /// Takes bytes from the front of `bytes`, up to the end of the frame under way at most, and returns how many it took.
    /// It takes none while an event waits, nor a request while the peer does not read the answers to earlier ones. After the end of the connection everything is dropped.
    pub fn take_bytes(&mut self, bytes: &[u8], now_ms: u64) -> usize {
        self.tick(now_ms);
        if self.state == State::Closed {
            return bytes.len();
        }
        if !self.events.is_empty() || self.state == State::Idle && self.output().len() > ANSWERS_BYTES_MAX {
            return 0;
        }
        if !bytes.is_empty() {
            self.link.moved_ms = now_ms;
        }
        let taken = match self.link.reader.take(bytes) {
            Ok(taken) => taken,
            Err(broken) => {
                self.fail(broken.into());
                return bytes.len();
            }
        };
        if let Err(failure) = self.on_frame(now_ms) {
            self.fail(failure);
        }
        taken
    }

    /// The next event, if any.
    pub fn poll_event(&mut self) -> Option<SenderEvent> {
        self.events.pop_front()
    }

    /// True if [`Sender::send_pages`] takes a frame. A frame may exceed the backlog limit once, so that memory is
    /// bounded by the limit and one frame.
    pub fn wants_more(&self) -> bool {
        self.state == State::Sending && self.output().len() <= self.settings.backlog_bytes_max
    }

    /// The bytes to send.
    pub fn output(&self) -> &[u8] {
        self.link.output()
    }

    /// Says that the first `bytes` bytes of [`Sender::output`] were sent.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn output_sent(&mut self, bytes: usize, now_ms: u64) {
        self.link.output_sent(bytes, now_ms);
        if self.handoff.is_none() {
            self.link.rest();
        }
    }

    /// Bytes of memory held for frames that come and go. Without a handoff under way they are few.
    pub fn buffer_bytes(&self) -> usize {
        self.link.buffer_bytes()
    }

    /// Checks the deadlines, and fails the connection if one passed. To be called periodically.
    pub fn tick(&mut self, now_ms: u64) {
        if let Err(failure) = self.check_deadlines(now_ms) {
            self.fail(failure);
        }
    }

    /// Says that the connection ended and no more bytes come.
    pub fn ended(&mut self) {
        if self.state != State::Closed {
            self.fail(Failure::Ended(self.state.name()));
        }
    }

    /// True once the connection is over: send the rest of the output, and close it.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Longest `Pages` body on this connection, in bytes; 0 before the handshake.
    pub fn frame_bytes_max(&self) -> u32 {
        self.peer.as_ref().map_or(0, |(_, max)| *max)
    }

    /// Amounts sent of the handoff under way; zeros if there is none.
    pub fn sent(&self) -> Sent {
        let sent =
            |handoff: &Handoff| handoff.work.as_ref().map(|work| work.sent(crate::rows_of(&handoff.request.tokens)));
        self.handoff.as_ref().and_then(sent).unwrap_or_default()
    }

    fn handoff_id(&self) -> HandoffId {
        self.handoff.as_ref().map_or(HandoffId::NONE, |handoff| handoff.request.handoff)
    }

    fn check_deadlines(&self, now_ms: u64) -> Result<(), Failure> {
        if let Some(handoff) = self.handoff.as_ref().filter(|_| self.state != State::Closed) {
            check_time(handoff.expires_at_ms, now_ms)?;
        }
        if self.state == State::Greeting {
            return self.link.check_greeted(self.settings.stall_limit_ms, now_ms);
        }
        let awaiting = matches!(self.state, State::Committed | State::Cancelling)
            || matches!(self.state, State::Idle | State::Sending) && !self.output().is_empty();
        if awaiting { self.link.check_moving(self.settings.stall_limit_ms, now_ms) } else { Ok(()) }
    }

    /// Handles the frame that is complete, if one is.
    fn on_frame(&mut self, now_ms: u64) -> Result<(), Failure> {
        let Some(frame) = self.link.reader.frame() else { return Ok(()) };
        let decoded = Message::decode(&frame).map(Message::without_entries);
        self.link.reader.release();
        let (message, state, id) = (decoded?, self.state, self.handoff_id());
        let kind = message.kind();
        match message {
            Message::Ping(value) => {
                self.link.count_unasked(now_ms)?;
                self.link.answer_ping(value)?;
            }
            Message::Pong(value) if self.link.take_pong() => self.events.push_back(SenderEvent::Pong(value)),
            Message::Hello(hello) if state == State::Greeting => self.on_hello(hello)?,
            Message::Request(request) if state == State::Idle => self.on_request(request, now_ms),
            Message::Installed(handoff) if handoff == id && matches!(state, State::Committed | State::Cancelling) => {
                self.events.push_back(SenderEvent::Installed(id));
                self.end_handoff();
            }
            Message::Cancel(cancel) if self.handoff.is_some() && cancel.handoff == id => {
                if state != State::Cancelling {
                    self.link.write(&Message::Cancel(cancel));
                }
                self.events.push_back(SenderEvent::Cancelled(cancel));
                self.end_handoff();
            }
            Message::Cancel(cancel) if cancel.handoff == self.ended && self.ended != HandoffId::NONE => {
                self.link.count_unasked(now_ms)?;
            }
            Message::Refuse(refuse) => return Err(Failure::RefusedByPeer(refuse)),
            _ => return Err(Failure::Unexpected { kind, state: state.name() }),
        }
        Ok(())
    }

    fn on_hello(&mut self, hello: Hello) -> Result<(), Failure> {
        let version = hello.version_max.min(VERSIONS.1);
        if version < hello.version_min || version < VERSIONS.0 {
            return Err(Failure::Version { min: hello.version_min, max: hello.version_max });
        }
        let SenderSettings { node, codecs, concurrent_max, pages_bytes_max, .. } = self.settings;
        if let Some(component) = node.identity.first_difference(&hello.node.identity) {
            return Err(Failure::Identity(component));
        }
        if let Some(admitted) = self.admitted.filter(|admitted| *admitted != hello.node.node_id) {
            return Err(Failure::OtherNode { named: hello.node.node_id, admitted });
        }
        self.peer = Some((hello.node, pages_bytes_max.min(hello.frame_bytes_max)));
        let ack = HelloAck { version, node, concurrent_max, codecs, frame_bytes_max: pages_bytes_max };
        self.link.write(&Message::HelloAck(ack));
        self.events.push_back(SenderEvent::Hello(hello));
        self.state = State::Idle;
        Ok(())
    }

    fn on_request(&mut self, request: Request, now_ms: u64) {
        let expires_at_ms = now_ms.saturating_add(request.expires_in_ms.into());
        let usable = self.settings.keys.to_serve(request.key_id).map(|_| ());
        if let Err(unusable) = usable {
            let refuse = Refuse::new(request.handoff, code_of(unusable), &unusable.to_string());
            self.link.write(&Message::Refuse(refuse));
            self.ended = request.handoff;
            return;
        }
        self.events.push_back(SenderEvent::Request(request.clone()));
        self.handoff = Some(Handoff { request, expires_at_ms, work: None });
        self.state = State::Requested;
    }

    fn end_handoff(&mut self) {
        self.ended = self.handoff_id();
        (self.handoff, self.state) = (None, State::Idle);
        self.link.rest();
    }

    fn fail(&mut self, failure: Failure) {
        self.link.refuse(self.handoff_id(), &failure);
        self.state = State::Closed;
        self.handoff = None;
        self.link.reader.release();
        self.link.rest();
        self.events.push_back(SenderEvent::Failed(failure));
    }
}

fn code_of(unusable: KeyError) -> RefuseCode {
    match unusable {
        KeyError::Revoked(_) => RefuseCode::RevokedKey,
        KeyError::Unknown(_) | KeyError::VerifyOnly(_) => RefuseCode::UnknownKey,
    }
}
