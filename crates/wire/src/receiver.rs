//! State machine of the receiver, the end that requests pages.
//!
//! The caller feeds [`Receiver::take_bytes`], drains [`Receiver::poll_event`], and sends [`Receiver::output`].
//!
//! - A page handed out is not trusted yet: the caller collects pages aside and shows them after
//!   [`ReceiverEvent::Complete`] alone.
//! - Between [`ReceiverEvent::Accepted`] and [`Receiver::ledger_recorded`] no byte is taken, so that no page is accepted
//!   before the handoff is on record as used.
//! - A cancelled handoff ends with the sender's `Cancel` (or `Refuse`). Until then its frames are read, checked and
//!   dropped, for at most the stall limit. Each side sends one `Cancel`; one that comes for the handoff that ended last
//!   crossed with that end and is dropped.
//! - The sender's refusal of the handoff under way leaves the connection usable. Every [`ReceiverEvent::Failed`] ends it.

use std::collections::VecDeque;

use crate::HandoffId;
use crate::arrivals::Arrivals;
use crate::failure::Failure;
use crate::header::{FrameKind, Limits};
use crate::hello::{Hello, HelloAck, Node, VERSIONS};
use crate::link::{Link, check_time};
use crate::manifest::{KeyError, LaneBinding, MacKeys, Manifest};
use crate::message::Message;
use crate::plan::HandoffPlan;
use crate::refuse::{Cancel, CancelReason, Refuse};
use crate::transfer::{Accept, Commit, Progress, Request, SenderTimes};

/// Settings of a receiver, fixed at connection.
#[derive(Clone, Debug)]
pub struct ReceiverSettings {
    /// This process.
    pub node: Node,
    /// The connection.
    pub lane: LaneBinding,
    /// Keys to begin handoffs with and to check their manifests.
    pub keys: MacKeys,
    /// Longest `Pages` body taken, in bytes; memory of this size is held while one arrives.
    pub pages_bytes_max: u32,
    /// The connection fails when nothing moves for longer while the sender is awaited, and when its greeting takes longer,
    /// whatever moves.
    pub stall_limit_ms: u64,
}

/// Event for the caller of a [`Receiver`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiverEvent<'a> {
    /// The handshake is done; a handoff can be requested.
    Ready(HelloAck),
    /// The sender will send. Record the handoff in the replay ledger, then call [`Receiver::ledger_recorded`].
    Accepted(Accept),
    /// A page of the plan, to be kept aside.
    Page {
        /// The page's layer.
        layer: u16,
        /// The page's absolute index.
        page: u32,
        /// The page, whole.
        bytes: &'a [u8],
    },
    /// The sender computed some rows.
    Progress(Progress),
    /// Every page of the plan came once, and the manifest is that of the key. Install them, then call
    /// [`Receiver::installed`]; or [`Receiver::cancel`] if that fails.
    Complete(Stats),
    /// The sender refused the handoff. What came of it is void; the connection is usable.
    Refused(Refuse),
    /// The handoff was cancelled by either side and both know. What came of it is void; the connection is usable.
    Cancelled(Cancel),
    /// The answer to a ping.
    Pong(u64),
    /// The connection is over. Unless it was complete before, what came of the handoff under way is void.
    Failed(Failure),
}

/// Figures of a complete handoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Rows that the receiver has once the pages are installed.
    pub rows: u32,
    /// Rows that the sender reused and did not compute.
    pub reused_rows: u32,
    /// Pages that came.
    pub pages: u64,
    /// Their bytes before packing.
    pub payload_bytes: u64,
    /// Their bytes as they came.
    pub stored_bytes: u64,
    /// `Pages` frames that came.
    pub frames: u64,
    /// From the request to the commit.
    pub elapsed_ms: u64,
    /// Sender-side time by phase, as the sender reports it.
    pub times: SenderTimes,
}

/// Error of a [`Receiver`] call; nothing has changed, except that [`RequestError::Plan`] ended the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The call is not valid in the current state.
    #[error("not possible while {0}")]
    State(&'static str),
    /// The key does not begin handoffs.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// More tokens than rows can be counted, or none.
    #[error("{0} tokens")]
    Tokens(usize),
    /// The sender's figures are not those of the plan.
    #[error(transparent)]
    Plan(Failure),
}

/// State machine of the receiver, the end that requests pages.
#[derive(Debug)]
pub struct Receiver {
    settings: ReceiverSettings,
    link: Link,
    state: State,
    events: VecDeque<ReceiverEvent<'static>>,
    sender: Option<Node>,
    /// Node id that the peer's greeting must have; `None` admits any.
    admitted: Option<[u8; 32]>,
    handoff: Option<Handoff>,
    /// The handoff that ended last.
    ended: HandoffId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    Idle,
    Requested,
    Accepted,
    Receiving,
    Complete,
    Cancelling,
    Closed,
}

#[derive(Debug)]
struct Handoff {
    request: Request,
    requested_ms: u64,
    expires_at_ms: u64,
    accept: Option<Accept>,
    arrivals: Option<Arrivals>,
    rows_done: u32,
}

impl State {
    /// Description for error messages.
    fn name(self) -> &'static str {
        match self {
            Self::Greeting => "greeting",
            Self::Idle => "idle",
            Self::Requested => "a request is not answered",
            Self::Accepted => "the replay ledger is awaited",
            Self::Receiving => "receiving",
            Self::Complete => "a complete handoff is not installed",
            Self::Cancelling => "a cancellation is not acknowledged",
            Self::Closed => "closed",
        }
    }
}

impl Receiver {
    /// Opens a connection: a `Hello` is ready to be sent.
    pub fn connect(settings: ReceiverSettings, now_ms: u64) -> Self {
        // The sender never sends a request, so none is taken.
        let mut link = Link::new(Limits::new(0, settings.pages_bytes_max), now_ms);
        let (version_min, version_max) = VERSIONS;
        let frame_bytes_max = settings.pages_bytes_max;
        link.write(&Message::Hello(Hello { version_min, version_max, node: settings.node, frame_bytes_max }));
        let (events, ended) = (VecDeque::new(), HandoffId::NONE);
        Self { settings, link, state: State::Greeting, events, sender: None, admitted: None, handoff: None, ended }
    }

    /// Takes a greeting of this node only: the one whose certificate the connection was opened with.
    #[must_use]
    pub fn admitting(self, node_id: [u8; 32]) -> Self {
        Self { admitted: Some(node_id), ..self }
    }

    /// Asks for a handoff. Its tokens are those of the rows to have: the boundary token is not among them.
    ///
    /// # Errors
    /// A [`RequestError`] but [`RequestError::Plan`].
    pub fn request(&mut self, request: Request, now_ms: u64) -> Result<(), RequestError> {
        self.expect(State::Idle)?;
        self.settings.keys.to_begin(request.key_id)?;
        if request.tokens.is_empty() || u32::try_from(request.tokens.len()).is_err() {
            return Err(RequestError::Tokens(request.tokens.len()));
        }
        let request = Request { codecs: request.codecs.common(crate::Codecs::ALL), ..request };
        let message = Message::Request(request);
        self.link.write(&message);
        let Message::Request(request) = message else { return Ok(()) };
        let expires_at_ms = now_ms.saturating_add(request.expires_in_ms.into());
        let (accept, arrivals) = (None, None);
        self.handoff = Some(Handoff { request, requested_ms: now_ms, expires_at_ms, accept, arrivals, rows_done: 0 });
        (self.state, self.link.moved_ms) = (State::Requested, now_ms);
        Ok(())
    }

    /// Says that the replay ledger has the handoff on stable storage, and which pages are to come. Pages are taken from
    /// now on.
    ///
    /// # Errors
    /// [`RequestError::State`] before [`ReceiverEvent::Accepted`]; [`RequestError::Plan`] if the sender's figures differ
    /// from the plan's, which also ends the connection.
    pub fn ledger_recorded(&mut self, plan: HandoffPlan, now_ms: u64) -> Result<(), RequestError> {
        self.expect(State::Accepted)?;
        let (Some(sender), Some(handoff)) = (&self.sender, &mut self.handoff) else {
            return Err(RequestError::State(self.state.name()));
        };
        let Some(accept) = &handoff.accept else { return Err(RequestError::State(self.state.name())) };
        let figures = [
            ("pages", accept.page_count, plan.page_count()),
            ("payload bytes", accept.payload_bytes, plan.payload_bytes()),
        ];
        if let Some((field, got, want)) = figures.into_iter().find(|(_, got, want)| got != want) {
            let failure = Failure::Accept { field, got, want };
            self.fail(failure.clone());
            return Err(RequestError::Plan(failure));
        }
        let manifest = Manifest::new(&handoff.request, accept, &self.settings.node, sender);
        handoff.arrivals = Some(Arrivals::new(plan, handoff.request.codecs, manifest));
        (self.state, self.link.moved_ms) = (State::Receiving, now_ms);
        Ok(())
    }

    /// Says that the pages of a complete handoff are installed. Another handoff can be requested.
    ///
    /// # Errors
    /// [`RequestError::State`] before [`ReceiverEvent::Complete`].
    pub fn installed(&mut self) -> Result<(), RequestError> {
        self.expect(State::Complete)?;
        self.link.write(&Message::Installed(self.handoff_id()));
        self.end_handoff();
        Ok(())
    }

    /// Ends the handoff under way. [`ReceiverEvent::Cancelled`] follows when the sender knows.
    ///
    /// # Errors
    /// [`RequestError::State`] if none is under way.
    pub fn cancel(&mut self, reason: CancelReason, now_ms: u64) -> Result<(), RequestError> {
        let under_way = [State::Requested, State::Accepted, State::Receiving, State::Complete];
        let Some(handoff) = self.handoff.as_mut().filter(|_| under_way.contains(&self.state)) else {
            return Err(RequestError::State(self.state.name()));
        };
        handoff.expires_at_ms = now_ms.saturating_add(self.settings.stall_limit_ms);
        handoff.arrivals = None;
        if self.link.reader.frame().is_some() {
            self.link.reader.release();
        }
        self.events.retain(|event| !matches!(event, ReceiverEvent::Accepted(_) | ReceiverEvent::Complete(_)));
        self.link.write(&Message::Cancel(Cancel { handoff: handoff.request.handoff, reason }));
        (self.state, self.link.moved_ms) = (State::Cancelling, now_ms);
        Ok(())
    }

    /// Sends a ping; [`ReceiverEvent::Pong`] brings `value` back.
    pub fn ping(&mut self, value: u64) {
        if self.state != State::Closed {
            self.link.ping(value);
        }
    }

    /// Replaces the keys: a handoff under way fails at its commit if its key was revoked.
    pub fn set_keys(&mut self, keys: MacKeys) {
        self.settings.keys = keys;
    }

    /// Takes bytes from the front of `bytes`, up to the end of the frame under way at most, and returns how many it took.
    ///
    /// It takes none while an event waits, and none between [`ReceiverEvent::Accepted`] and
    /// [`Receiver::ledger_recorded`]: offer the rest again then. After the end of the connection everything is dropped.
    pub fn take_bytes(&mut self, bytes: &[u8], now_ms: u64) -> usize {
        self.tick(now_ms);
        if self.state == State::Closed {
            return bytes.len();
        }
        if self.state == State::Accepted || !self.events.is_empty() || self.has_pages() {
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
    pub fn poll_event(&mut self) -> Option<ReceiverEvent<'_>> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if !self.has_pages() {
            return None;
        }
        let (arrivals, body) = (self.handoff.as_mut()?.arrivals.as_mut()?, self.link.reader.frame()?.body);
        match arrivals.next(body) {
            // Released here and not with the last page, which still lies in the frame.
            None => self.link.reader.release(),
            Some(Err(failure)) => self.fail(failure),
            Some(Ok(entry)) => {
                let (layer, page) = (entry.layer, entry.page);
                let (arrivals, body) = (self.handoff.as_ref()?.arrivals.as_ref()?, self.link.reader.frame()?.body);
                return Some(ReceiverEvent::Page { layer, page, bytes: arrivals.page(entry, body) });
            }
        }
        self.events.pop_front()
    }

    /// The bytes to send.
    pub fn output(&self) -> &[u8] {
        self.link.output()
    }

    /// Says that the first `bytes` bytes of [`Receiver::output`] were sent.
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

    /// True if a handoff can be requested.
    pub fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    fn expect(&self, state: State) -> Result<(), RequestError> {
        if self.state == state { Ok(()) } else { Err(RequestError::State(self.state.name())) }
    }

    fn handoff_id(&self) -> HandoffId {
        self.handoff.as_ref().map_or(HandoffId::NONE, |handoff| handoff.request.handoff)
    }

    /// True if the reader holds a complete `Pages` frame.
    fn has_pages(&self) -> bool {
        self.state == State::Receiving && self.link.reader.frame().is_some()
    }

    fn check_deadlines(&self, now_ms: u64) -> Result<(), Failure> {
        let timed = [State::Requested, State::Accepted, State::Receiving, State::Cancelling];
        if let Some(handoff) = self.handoff.as_ref().filter(|_| timed.contains(&self.state)) {
            check_time(handoff.expires_at_ms, now_ms)?;
        }
        if self.state == State::Greeting {
            return self.link.check_greeted(self.settings.stall_limit_ms, now_ms);
        }
        let awaiting = [State::Requested, State::Receiving, State::Cancelling];
        if awaiting.contains(&self.state) {
            self.link.check_moving(self.settings.stall_limit_ms, now_ms)?;
        }
        Ok(())
    }

    /// Handles the frame that is complete, if one is. A `Pages` frame stays until its pages are handed out.
    fn on_frame(&mut self, now_ms: u64) -> Result<(), Failure> {
        let Some(frame) = self.link.reader.frame() else { return Ok(()) };
        if frame.kind == FrameKind::Pages && self.state == State::Receiving {
            let handoff = self.handoff.as_mut();
            let parts = handoff.and_then(|handoff| Some((handoff.arrivals.as_mut()?, &handoff.request)));
            return parts.map_or(Ok(()), |(arrivals, request)| arrivals.take(&frame, request));
        }
        let handled = Message::decode(&frame).map(Message::without_entries);
        self.link.reader.release();
        self.on_message(handled?, now_ms)
    }

    fn on_message(&mut self, message: Message<'static>, now_ms: u64) -> Result<(), Failure> {
        let (kind, state, id) = (message.kind(), self.state, self.handoff_id());
        let under_way = matches!(state, State::Requested | State::Receiving | State::Complete | State::Cancelling);
        match message {
            Message::Ping(value) => {
                self.link.count_unasked(now_ms)?;
                self.link.answer_ping(value)?;
            }
            Message::Pong(value) if self.link.take_pong() => self.events.push_back(ReceiverEvent::Pong(value)),
            Message::HelloAck(ack) if state == State::Greeting => self.on_ack(ack)?,
            Message::Accept(accept) if state == State::Requested && accept.handoff == id => self.on_accept(accept)?,
            Message::Progress(progress) if state == State::Receiving && progress.handoff == id => {
                self.on_progress(progress, now_ms)?;
            }
            Message::Commit(commit) if state == State::Receiving && commit.handoff == id => {
                self.on_commit(&commit, now_ms)?;
            }
            Message::Cancel(cancel) if under_way && cancel.handoff == id => {
                if state != State::Cancelling {
                    self.link.write(&Message::Cancel(cancel));
                }
                self.events.push_back(ReceiverEvent::Cancelled(cancel));
                self.end_handoff();
            }
            Message::Cancel(cancel) if cancel.handoff == self.ended && self.ended != HandoffId::NONE => {
                self.link.count_unasked(now_ms)?;
            }
            Message::Refuse(refuse) if under_way && refuse.handoff == id => {
                self.events.push_back(ReceiverEvent::Refused(refuse));
                self.end_handoff();
            }
            Message::Refuse(refuse) => return Err(Failure::RefusedByPeer(refuse)),
            Message::Accept(Accept { handoff, .. })
            | Message::Pages(crate::Pages { handoff, .. })
            | Message::Progress(Progress { handoff, .. })
            | Message::Commit(Commit { handoff, .. })
                if state == State::Cancelling && handoff == id => {}
            _ => return Err(Failure::Unexpected { kind, state: state.name() }),
        }
        Ok(())
    }

    fn on_ack(&mut self, ack: HelloAck) -> Result<(), Failure> {
        if !(VERSIONS.0..=VERSIONS.1).contains(&ack.version) {
            return Err(Failure::Version { min: ack.version, max: ack.version });
        }
        if let Some(component) = self.settings.node.identity.first_difference(&ack.node.identity) {
            return Err(Failure::Identity(component));
        }
        if let Some(admitted) = self.admitted.filter(|admitted| *admitted != ack.node.node_id) {
            return Err(Failure::OtherNode { named: ack.node.node_id, admitted });
        }
        (self.sender, self.state) = (Some(ack.node), State::Idle);
        self.events.push_back(ReceiverEvent::Ready(ack));
        Ok(())
    }

    fn on_accept(&mut self, accept: Accept) -> Result<(), Failure> {
        let Some(handoff) = &mut self.handoff else { return Ok(()) };
        let (rows, held) = (crate::rows_of(&handoff.request.tokens), handoff.request.held_pages);
        let differs = |field, got: u32, want: u32| Failure::Accept { field, got: got.into(), want: want.into() };
        if accept.rows != rows {
            return Err(differs("rows", accept.rows, rows));
        }
        if accept.first_page > held {
            return Err(differs("first page", accept.first_page, held));
        }
        handoff.accept = Some(accept);
        self.state = State::Accepted;
        self.events.push_back(ReceiverEvent::Accepted(accept));
        Ok(())
    }

    fn on_progress(&mut self, progress: Progress, now_ms: u64) -> Result<(), Failure> {
        let Some(handoff) = &mut self.handoff else { return Ok(()) };
        let (done, total) = (progress.rows_done, progress.rows_total);
        if total != crate::rows_of(&handoff.request.tokens) || done > total || done < handoff.rows_done {
            return Err(Failure::Progress { done, total });
        }
        if done == std::mem::replace(&mut handoff.rows_done, done) {
            self.link.count_unasked(now_ms)?;
        }
        self.events.push_back(ReceiverEvent::Progress(progress));
        Ok(())
    }

    fn on_commit(&mut self, commit: &Commit, now_ms: u64) -> Result<(), Failure> {
        let Some(handoff) = &self.handoff else { return Ok(()) };
        let (Some(arrivals), Some(accept)) = (&handoff.arrivals, &handoff.accept) else { return Ok(()) };
        arrivals.check(commit, &self.settings.lane, (handoff.request.key_id, &self.settings.keys))?;
        self.events.push_back(ReceiverEvent::Complete(Stats {
            rows: accept.rows,
            reused_rows: accept.reused_rows,
            pages: arrivals.plan().page_count(),
            payload_bytes: arrivals.plan().payload_bytes(),
            stored_bytes: arrivals.manifest().stored_bytes(),
            frames: arrivals.manifest().frames(),
            elapsed_ms: now_ms.saturating_sub(handoff.requested_ms),
            times: commit.times,
        }));
        self.state = State::Complete;
        Ok(())
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
        // Events not polled yet are void, above all a completion.
        self.events.clear();
        self.events.push_back(ReceiverEvent::Failed(failure));
    }
}
