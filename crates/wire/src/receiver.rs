//! State machine of the receiver, the end that requests pages.
//!
//! The caller feeds [`Endpoint::take_bytes`], drains [`Receiver::poll_event`], and sends [`Endpoint::output`].
//!
//! - A page handed out is not trusted yet: the caller collects pages aside and shows them after
//!   [`ReceiverEvent::Complete`] alone.
//! - Between [`ReceiverEvent::Accepted`] and [`Receiver::ledger_recorded`] no byte is taken, so that no page is accepted
//!   before the handoff is on record as used.
//! - A cancelled handoff ends with the sender's `Cancel` (or `Refuse`). Until then its frames are read, checked and
//!   dropped, for at most the stall limit. Each side sends one `Cancel`; one that comes for the handoff that ended last
//!   crossed with that end and is dropped.
//! - The sender's refusal of the handoff under way leaves the connection usable. Every [`ReceiverEvent::Failed`] ends it.

use crate::arrivals::Arrivals;
use crate::endpoint::{CommonEvent, EndRole, Endpoint, OpenHandoff, Own, State};
use crate::failure::Failure;
use crate::header::{FrameKind, Limits};
use crate::hello::{Hello, HelloAck, Node};
use crate::manifest::{KeyError, LaneBinding, MacKeys, Manifest};
use crate::message::Message;
use crate::plan::HandoffPlan;
use crate::reader::Frame;
use crate::refuse::{Cancel, CancelReason, Refuse};
use crate::transfer::{Accept, Commit, Progress, Request, SenderTimes, VERSIONS};

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
pub type Receiver = Endpoint<Receiving>;

/// Role of the receiver.
#[derive(Debug)]
pub struct Receiving;

/// Stage of a handoff at its receiver.
#[derive(Debug)]
pub enum ReceiverStage {
    /// The sender's answer is awaited.
    Requested,
    /// The sender accepted; the ledger is awaited.
    Accepted(Accept),
    /// Pages arrive.
    Receiving {
        /// The sender's figures.
        accept: Accept,
        /// Pages that arrived.
        arrivals: Box<Arrivals>,
        /// Rows computed, as told last.
        rows_done: u32,
    },
    /// Every page arrived, and the commit is right.
    Complete,
}

impl Receiver {
    /// Opens a connection: a `Hello` is ready to be sent.
    pub fn connect(settings: ReceiverSettings, now_ms: u64) -> Self {
        let ReceiverSettings { node, lane, keys, pages_bytes_max, stall_limit_ms } = settings;
        let own = Own { node, lane, keys, pages_bytes_max, stall_limit_ms };
        // The sender never sends a request, so none is taken.
        let mut end = Self::open(Receiving, own, Limits::new(0, pages_bytes_max), now_ms);
        let (version_min, version_max) = VERSIONS;
        end.link.write(&Message::Hello(Hello { version_min, version_max, node, frame_bytes_max: pages_bytes_max }));
        end
    }

    /// Asks for a handoff. Its tokens are those of the rows to have: the boundary token is not among them.
    ///
    /// # Errors
    /// A [`RequestError`] but [`RequestError::Plan`].
    pub fn request(&mut self, request: Request, now_ms: u64) -> Result<(), RequestError> {
        let State::Idle(peer) = &self.state else { return Err(RequestError::State(self.name())) };
        let peer = *peer;
        self.own.keys.to_begin(request.key_id)?;
        if request.tokens.is_empty() || u32::try_from(request.tokens.len()).is_err() {
            return Err(RequestError::Tokens(request.tokens.len()));
        }
        let request = Request { codecs: request.codecs.common(crate::Codecs::ALL), ..request };
        let message = Message::Request(request);
        self.link.write(&message);
        let Message::Request(request) = message else { return Ok(()) };
        self.begin(peer, request, ReceiverStage::Requested, now_ms);
        self.link.moved_ms = now_ms;
        Ok(())
    }

    /// Says that the replay ledger has the handoff on stable storage, and which pages are to come. Pages are taken from
    /// now on.
    ///
    /// # Errors
    /// [`RequestError::State`] before [`ReceiverEvent::Accepted`]; [`RequestError::Plan`] if the sender's figures differ
    /// from the plan's, which also ends the connection.
    pub fn ledger_recorded(&mut self, plan: HandoffPlan, now_ms: u64) -> Result<(), RequestError> {
        let name = self.name();
        let State::UnderWay(peer, handoff) = &mut self.state else { return Err(RequestError::State(name)) };
        let ReceiverStage::Accepted(accept) = handoff.stage else { return Err(RequestError::State(name)) };
        let figures = [
            ("pages", accept.page_count, plan.page_count()),
            ("payload bytes", accept.payload_bytes, plan.payload_bytes()),
        ];
        if let Some((field, got, want)) = figures.into_iter().find(|(_, got, want)| got != want) {
            let failure = Failure::Accept { field, got, want };
            self.fail(failure.clone());
            return Err(RequestError::Plan(failure));
        }
        let manifest = Manifest::new(&handoff.request, &accept, &self.own.node, &peer.node);
        let arrivals = Box::new(Arrivals::new(plan, handoff.request.codecs, manifest));
        handoff.stage = ReceiverStage::Receiving { accept, arrivals, rows_done: 0 };
        self.link.moved_ms = now_ms;
        Ok(())
    }

    /// Says that the pages of a complete handoff are installed. Another handoff can be requested.
    ///
    /// # Errors
    /// [`RequestError::State`] before [`ReceiverEvent::Complete`].
    pub fn installed(&mut self) -> Result<(), RequestError> {
        match &self.state {
            State::UnderWay(_, handoff) if matches!(handoff.stage, ReceiverStage::Complete) => {
                self.link.write(&Message::Installed(handoff.id()));
            }
            _ => return Err(RequestError::State(self.name())),
        }
        self.end_handoff();
        Ok(())
    }

    /// Ends the handoff under way. [`ReceiverEvent::Cancelled`] follows when the sender knows.
    ///
    /// # Errors
    /// [`RequestError::State`] if none is under way.
    pub fn cancel(&mut self, reason: CancelReason, now_ms: u64) -> Result<(), RequestError> {
        self.begin_cancelling(reason, now_ms).map_err(RequestError::State)?;
        if self.link.reader.frame().is_some() {
            self.link.reader.release();
        }
        self.events.retain(|event| !matches!(event, ReceiverEvent::Accepted(_) | ReceiverEvent::Complete(_)));
        Ok(())
    }

    /// The next event, if any.
    pub fn poll_event(&mut self) -> Option<ReceiverEvent<'_>> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        match arriving(&mut self.state)?.next(self.link.reader.frame()?.body) {
            // Released here and not with the last page, which still lies in the frame.
            None => self.link.reader.release(),
            Some(Err(failure)) => self.fail(failure),
            Some(Ok(entry)) => {
                let (layer, page) = (entry.layer, entry.page);
                let (arrivals, body) = (arriving(&mut self.state)?, self.link.reader.frame()?.body);
                return Some(ReceiverEvent::Page { layer, page, bytes: arrivals.page(entry, body) });
            }
        }
        self.events.pop_front()
    }

    fn on_ack(&mut self, ack: HelloAck) -> Result<(), Failure> {
        if !(VERSIONS.0..=VERSIONS.1).contains(&ack.version) {
            return Err(Failure::Version { min: ack.version, max: ack.version });
        }
        self.greeted(ack.node, ack.frame_bytes_max)?;
        self.events.push_back(ReceiverEvent::Ready(ack));
        Ok(())
    }

    /// Handles a message about the handoff under way.
    fn on_handoff(&mut self, message: Message<'static>, now_ms: u64) -> Result<(), Failure> {
        let name = self.name();
        let State::UnderWay(_, handoff) = &mut self.state else { return Err(self.unexpected(message)) };
        let (rows, OpenHandoff { request, began_ms, stage }) = (handoff.rows(), &mut **handoff);
        match (stage, message) {
            (ReceiverStage::Accepted(_), message) => return Err(self.unexpected(message)),
            (_, Message::Refuse(refuse)) => {
                self.events.push_back(ReceiverEvent::Refused(refuse));
                self.end_handoff();
            }
            (stage @ ReceiverStage::Requested, Message::Accept(accept)) => {
                check_accept(&accept, request, rows)?;
                *stage = ReceiverStage::Accepted(accept);
                self.events.push_back(ReceiverEvent::Accepted(accept));
            }
            (ReceiverStage::Receiving { rows_done, .. }, Message::Progress(progress)) => {
                let (done, total) = (progress.rows_done, progress.rows_total);
                if total != rows || done > total || done < *rows_done {
                    return Err(Failure::Progress { done, total });
                }
                if done == std::mem::replace(rows_done, done) {
                    self.link.count_unasked(now_ms)?;
                }
                self.events.push_back(ReceiverEvent::Progress(progress));
            }
            (stage, Message::Commit(commit)) => {
                let ReceiverStage::Receiving { accept, arrivals, .. } = &*stage else {
                    return Err(Failure::Unexpected { kind: FrameKind::Commit, state: name });
                };
                arrivals.check(&commit, &self.own.lane, (request.key_id, &self.own.keys))?;
                let elapsed_ms = now_ms.saturating_sub(*began_ms);
                self.events.push_back(ReceiverEvent::Complete(stats_of(accept, arrivals, &commit, elapsed_ms)));
                *stage = ReceiverStage::Complete;
            }
            (_, message) => return Err(self.unexpected(message)),
        }
        Ok(())
    }
}

impl EndRole for Receiving {
    type Event = ReceiverEvent<'static>;
    type Stage = ReceiverStage;
    // Above all a completion.
    const FAILURE_VOIDS_EVENTS: bool = true;

    fn event(common: CommonEvent) -> Self::Event {
        match common {
            CommonEvent::Cancelled(cancel) => ReceiverEvent::Cancelled(cancel),
            CommonEvent::Pong(value) => ReceiverEvent::Pong(value),
            CommonEvent::Failed(failure) => ReceiverEvent::Failed(failure),
        }
    }

    fn name(stage: &ReceiverStage) -> &'static str {
        match stage {
            ReceiverStage::Requested => "a request is not answered",
            ReceiverStage::Accepted(_) => "the replay ledger is awaited",
            ReceiverStage::Receiving { .. } => "receiving",
            ReceiverStage::Complete => "a complete handoff is not installed",
        }
    }

    fn expires_at_ms(handoff: &OpenHandoff<ReceiverStage>) -> Option<u64> {
        (!matches!(handoff.stage, ReceiverStage::Complete)).then(|| handoff.due_ms())
    }

    fn awaits_peer(stage: Option<&ReceiverStage>, _: bool) -> bool {
        matches!(stage, Some(ReceiverStage::Requested | ReceiverStage::Receiving { .. }))
    }

    fn holds_back(end: &Receiver) -> bool {
        let State::UnderWay(_, handoff) = &end.state else { return false };
        match handoff.stage {
            ReceiverStage::Accepted(_) => true,
            // Pages of the frame in the reader are not handed out yet.
            ReceiverStage::Receiving { .. } => end.link.reader.frame().is_some(),
            ReceiverStage::Requested | ReceiverStage::Complete => false,
        }
    }

    fn take_pages(handoff: &mut OpenHandoff<ReceiverStage>, frame: &Frame<'_>) -> Option<Result<(), Failure>> {
        match &mut handoff.stage {
            ReceiverStage::Receiving { arrivals, .. } if frame.kind == FrameKind::Pages => {
                Some(arrivals.take(frame, &handoff.request))
            }
            _ => None,
        }
    }

    fn on_message(end: &mut Receiver, message: Message<'static>, now_ms: u64) -> Result<(), Failure> {
        let is_of_handoff = message.handoff().is_some() && message.handoff() == end.handoff();
        match (&end.state, message) {
            (State::Greeting, Message::HelloAck(ack)) => end.on_ack(ack),
            (State::UnderWay(..), message) if is_of_handoff => end.on_handoff(message, now_ms),
            (State::Cancelling { .. }, Message::Refuse(refuse)) if is_of_handoff => {
                end.events.push_back(ReceiverEvent::Refused(refuse));
                end.end_handoff();
                Ok(())
            }
            // Sent before the sender knew of the cancellation.
            (
                State::Cancelling { .. },
                Message::Accept(_) | Message::Pages(_) | Message::Progress(_) | Message::Commit(_),
            ) if is_of_handoff => Ok(()),
            (_, message) => Err(end.unexpected(message)),
        }
    }
}

/// The pages that arrive.
fn arriving(state: &mut State<ReceiverStage>) -> Option<&mut Arrivals> {
    match state {
        State::UnderWay(_, handoff) => match &mut handoff.stage {
            ReceiverStage::Receiving { arrivals, .. } => Some(arrivals),
            _ => None,
        },
        _ => None,
    }
}

fn check_accept(accept: &Accept, request: &Request, rows: u32) -> Result<(), Failure> {
    let differs = |field, got: u32, want: u32| Failure::Accept { field, got: got.into(), want: want.into() };
    if accept.rows != rows {
        return Err(differs("rows", accept.rows, rows));
    }
    if accept.first_page > request.held_pages {
        return Err(differs("first page", accept.first_page, request.held_pages));
    }
    Ok(())
}

fn stats_of(accept: &Accept, arrivals: &Arrivals, commit: &Commit, elapsed_ms: u64) -> Stats {
    Stats {
        rows: accept.rows,
        reused_rows: accept.reused_rows,
        pages: arrivals.plan().page_count(),
        payload_bytes: arrivals.plan().payload_bytes(),
        stored_bytes: arrivals.manifest().stored_bytes(),
        frames: arrivals.manifest().frames(),
        elapsed_ms,
        times: commit.times,
    }
}
