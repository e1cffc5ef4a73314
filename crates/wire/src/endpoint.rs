//! One end of a connection: greeting, pings, cancellations, deadlines and failure, which are the same in both roles.
//!
//! [`Receiver`](crate::Receiver) and [`Sender`](crate::Sender) are this machine in a role. A role adds the stages of a
//! handoff and the messages that move it from one to the next.

use std::collections::VecDeque;
use std::fmt;

use crate::HandoffId;
use crate::failure::Failure;
use crate::header::Limits;
use crate::hello::Node;
use crate::link::{Link, check_time};
use crate::manifest::{LaneBinding, MacKeys};
use crate::message::Message;
use crate::reader::Frame;
use crate::refuse::{Cancel, CancelReason};
use crate::transfer::Request;

/// Role of an end: [`Receiving`](crate::Receiving) or [`Sending`](crate::Sending).
pub trait EndRole: Sized + fmt::Debug {
    /// Event for the caller.
    type Event: fmt::Debug;
    /// Stage of a handoff under way, with the data that exist in it alone.
    type Stage: fmt::Debug;
    /// True if a failure voids the events that were not polled before.
    const FAILURE_VOIDS_EVENTS: bool;

    /// An event of either role as one of this role.
    fn event(common: CommonEvent) -> Self::Event;

    /// Description of the stage for error messages.
    fn name(stage: &Self::Stage) -> &'static str;

    /// Time at which the handoff expires, ms; `None` in a stage without a deadline.
    fn expires_at_ms(handoff: &OpenHandoff<Self::Stage>) -> Option<u64>;

    /// True if the idle timeout counts. `stage` is `None` between handoffs; `has_output` is true while bytes wait to be
    /// sent.
    fn awaits_peer(stage: Option<&Self::Stage>, has_output: bool) -> bool;

    /// True while no byte is taken, apart from events that wait.
    fn holds_back(end: &Endpoint<Self>) -> bool;

    /// Takes a frame of pages, which stays in the reader until they are handed out; `None` if it is to be read as a
    /// message.
    fn take_pages(handoff: &mut OpenHandoff<Self::Stage>, frame: &Frame<'_>) -> Option<Result<(), Failure>>;

    /// Handles a message that means something in this role alone.
    ///
    /// # Errors
    /// The [`Failure`] that ends the connection.
    fn on_message(end: &mut Endpoint<Self>, message: Message<'static>, now_ms: u64) -> Result<(), Failure>;
}

/// Event of either role.
#[derive(Debug)]
pub enum CommonEvent {
    /// Both ends know of a cancellation.
    Cancelled(Cancel),
    /// The value of an answered ping.
    Pong(u64),
    /// The failure that ended the connection.
    Failed(Failure),
}

/// One end of a connection, as a state machine without socket, thread or clock.
#[derive(Debug)]
pub struct Endpoint<R: EndRole> {
    pub(crate) role: R,
    pub(crate) own: Own,
    pub(crate) link: Link,
    pub(crate) state: State<R::Stage>,
    pub(crate) events: VecDeque<R::Event>,
    /// Node id that the peer's greeting must have; `None` admits any.
    admitted: Option<[u8; 32]>,
    /// The handoff that ended last.
    pub(crate) ended: Option<HandoffId>,
}

/// Settings that an end has in either role.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) node: Node,
    pub(crate) lane: LaneBinding,
    pub(crate) keys: MacKeys,
    /// Longest `Pages` body taken or made, in bytes.
    pub(crate) pages_bytes_max: u32,
    pub(crate) stall_limit_ms: u64,
}

/// The other end, by its greeting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) node: Node,
    /// The lower of both ends' limits of `Pages` bodies.
    pub(crate) pages_bytes_max: u32,
}

/// State of a connection. Only a connection with a greeted peer has a handoff.
#[derive(Debug)]
pub(crate) enum State<S> {
    Greeting,
    Idle(Peer),
    UnderWay(Peer, Box<OpenHandoff<S>>),
    /// This end has sent `Cancel`, and awaits the peer's.
    Cancelling {
        peer: Peer,
        handoff: HandoffId,
        expires_at_ms: u64,
    },
    Closed,
}

/// A handoff that is neither over nor cancelled.
#[derive(Debug)]
pub struct OpenHandoff<S> {
    pub(crate) request: Request,
    /// Time of the request at this end, ms.
    pub(crate) began_ms: u64,
    pub(crate) stage: S,
}

impl<S> OpenHandoff<S> {
    pub(crate) fn id(&self) -> HandoffId {
        self.request.handoff
    }

    /// Rows of the handoff.
    pub(crate) fn rows(&self) -> u32 {
        crate::rows_of(&self.request.tokens)
    }

    /// End of the time that the request gives the handoff, ms.
    pub(crate) fn due_ms(&self) -> u64 {
        self.began_ms.saturating_add(self.request.expires_in_ms.into())
    }
}

impl<R: EndRole> Endpoint<R> {
    pub(crate) fn open(role: R, own: Own, limits: Limits, now_ms: u64) -> Self {
        let (link, state, events) = (Link::new(limits, now_ms), State::Greeting, VecDeque::new());
        Self { role, own, link, state, events, admitted: None, ended: None }
    }

    /// Takes a greeting of this node only: the one whose certificate the connection was opened with.
    #[must_use]
    pub fn admitting(self, node_id: [u8; 32]) -> Self {
        Self { admitted: Some(node_id), ..self }
    }

    /// Sends a ping; a `Pong` event brings `value` back. A sender pings during long computations to keep the connection
    /// from timing out.
    pub fn ping(&mut self, value: u64) {
        if !self.is_closed() {
            self.link.ping(value);
        }
    }

    /// Replaces the keys: a handoff under way ends at its commit if its key was revoked.
    pub fn set_keys(&mut self, keys: MacKeys) {
        self.own.keys = keys;
    }

    /// Takes bytes from the front of `bytes`, up to the end of the frame under way at most, and returns how many it took.
    ///
    /// It takes none while an event waits. A receiver takes none between [`ReceiverEvent::Accepted`] and
    /// [`Receiver::ledger_recorded`], a sender no request while the peer does not read the answers to earlier ones:
    /// offer the rest again then. After the end of the connection everything is dropped.
    ///
    /// [`ReceiverEvent::Accepted`]: crate::ReceiverEvent::Accepted
    /// [`Receiver::ledger_recorded`]: crate::Receiver::ledger_recorded
    pub fn take_bytes(&mut self, bytes: &[u8], now_ms: u64) -> usize {
        self.tick(now_ms);
        if self.is_closed() {
            return bytes.len();
        }
        if !self.events.is_empty() || R::holds_back(self) {
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

    /// The bytes to send.
    pub fn output(&self) -> &[u8] {
        self.link.output()
    }

    /// Says that the first `bytes` bytes of [`Endpoint::output`] were sent.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn output_sent(&mut self, bytes: usize, now_ms: u64) {
        self.link.output_sent(bytes, now_ms);
        if self.handoff().is_none() {
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
        if !self.is_closed() {
            self.fail(Failure::Ended(self.name()));
        }
    }

    /// True once the connection is over: send the rest of the output, and close it.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// True after the greeting, between two handoffs.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle(_))
    }

    /// Longest `Pages` body on this connection, in bytes; 0 before the greeting.
    pub fn frame_bytes_max(&self) -> u32 {
        match &self.state {
            State::Idle(peer) | State::UnderWay(peer, _) | State::Cancelling { peer, .. } => peer.pages_bytes_max,
            State::Greeting | State::Closed => 0,
        }
    }

    /// Description of the state for error messages.
    pub(crate) fn name(&self) -> &'static str {
        match &self.state {
            State::Greeting => "greeting",
            State::Idle(_) => "idle",
            State::UnderWay(_, handoff) => R::name(&handoff.stage),
            State::Cancelling { .. } => "a cancellation is not acknowledged",
            State::Closed => "closed",
        }
    }

    /// The handoff that is not over at both ends.
    pub(crate) fn handoff(&self) -> Option<HandoffId> {
        match &self.state {
            State::UnderWay(_, handoff) => Some(handoff.id()),
            State::Cancelling { handoff, .. } => Some(*handoff),
            State::Greeting | State::Idle(_) | State::Closed => None,
        }
    }

    /// Takes the peer's greeting.
    pub(crate) fn greeted(&mut self, node: Node, pages_bytes_max: u32) -> Result<(), Failure> {
        if let Some(component) = self.own.node.identity.first_difference(&node.identity) {
            return Err(Failure::Identity(component));
        }
        if let Some(admitted) = self.admitted.filter(|admitted| *admitted != node.node_id) {
            return Err(Failure::OtherNode { named: node.node_id, admitted });
        }
        self.state = State::Idle(Peer { node, pages_bytes_max: self.own.pages_bytes_max.min(pages_bytes_max) });
        Ok(())
    }

    pub(crate) fn begin(&mut self, peer: Peer, request: Request, stage: R::Stage, now_ms: u64) {
        self.state = State::UnderWay(peer, Box::new(OpenHandoff { request, began_ms: now_ms, stage }));
    }

    /// Sends `Cancel` for the handoff under way.
    ///
    /// # Errors
    /// The state's name, if there is none.
    pub(crate) fn begin_cancelling(&mut self, reason: CancelReason, now_ms: u64) -> Result<(), &'static str> {
        let State::UnderWay(peer, handoff) = &self.state else { return Err(self.name()) };
        let (peer, handoff) = (*peer, handoff.id());
        self.link.write(&Message::Cancel(Cancel { handoff, reason }));
        let expires_at_ms = now_ms.saturating_add(self.own.stall_limit_ms);
        (self.state, self.link.moved_ms) = (State::Cancelling { peer, handoff, expires_at_ms }, now_ms);
        Ok(())
    }

    /// Makes the connection idle. Without a greeted peer nothing changes.
    pub(crate) fn end_handoff(&mut self) {
        self.ended = self.handoff();
        if let State::UnderWay(peer, _) | State::Cancelling { peer, .. } = &self.state {
            self.state = State::Idle(*peer);
        }
        self.link.rest();
    }

    pub(crate) fn fail(&mut self, failure: Failure) {
        self.link.refuse(self.handoff().unwrap_or(HandoffId::NONE), &failure);
        self.state = State::Closed;
        self.link.reader.release();
        self.link.rest();
        if R::FAILURE_VOIDS_EVENTS {
            self.events.clear();
        }
        self.events.push_back(R::event(CommonEvent::Failed(failure)));
    }

    /// The failure for a message that the state does not allow.
    pub(crate) fn unexpected(&self, message: Message<'static>) -> Failure {
        match message {
            Message::Refuse(refuse) => Failure::RefusedByPeer(refuse),
            message => Failure::Unexpected { kind: message.kind(), state: self.name() },
        }
    }

    fn check_deadlines(&self, now_ms: u64) -> Result<(), Failure> {
        let (stall_limit_ms, has_output) = (self.own.stall_limit_ms, !self.output().is_empty());
        let (expires_at_ms, awaits_peer) = match &self.state {
            State::Closed => return Ok(()),
            State::Greeting => return self.link.check_greeted(stall_limit_ms, now_ms),
            State::Idle(_) => (None, R::awaits_peer(None, has_output)),
            State::UnderWay(_, handoff) => {
                (R::expires_at_ms(handoff), R::awaits_peer(Some(&handoff.stage), has_output))
            }
            State::Cancelling { expires_at_ms, .. } => (Some(*expires_at_ms), true),
        };
        expires_at_ms.map_or(Ok(()), |expires_at_ms| check_time(expires_at_ms, now_ms))?;
        if awaits_peer { self.link.check_moving(stall_limit_ms, now_ms) } else { Ok(()) }
    }

    /// Handles the frame that is complete, if one is.
    fn on_frame(&mut self, now_ms: u64) -> Result<(), Failure> {
        let Some(frame) = self.link.reader.frame() else { return Ok(()) };
        if let State::UnderWay(_, handoff) = &mut self.state
            && let Some(taken) = R::take_pages(handoff, &frame)
        {
            return taken;
        }
        let decoded = Message::decode(&frame).map(Message::without_entries);
        self.link.reader.release();
        match decoded? {
            Message::Ping(value) => {
                self.link.count_unasked(now_ms)?;
                self.link.answer_ping(value)
            }
            Message::Pong(value) if self.link.take_pong() => {
                self.events.push_back(R::event(CommonEvent::Pong(value)));
                Ok(())
            }
            Message::Cancel(cancel) => self.on_cancel(cancel, now_ms),
            message => R::on_message(self, message, now_ms),
        }
    }

    fn on_cancel(&mut self, cancel: Cancel, now_ms: u64) -> Result<(), Failure> {
        if self.handoff() == Some(cancel.handoff) {
            if matches!(self.state, State::UnderWay(..)) {
                self.link.write(&Message::Cancel(cancel));
            }
            self.events.push_back(R::event(CommonEvent::Cancelled(cancel)));
            self.end_handoff();
            return Ok(());
        }
        // It crossed with the end of the handoff that it is for.
        if self.ended == Some(cancel.handoff) {
            return self.link.count_unasked(now_ms);
        }
        Err(self.unexpected(Message::Cancel(cancel)))
    }
}
