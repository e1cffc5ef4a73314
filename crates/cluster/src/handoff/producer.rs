//! The end that computes: lanes come in, requests become work of the engine, pages go out as they are complete.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use muser_engine::SamplingSettings;
use muser_engine::engine::{Export, PrefixReuse, ReadyPage, Request as EngineRequest, SubmitError};
use muser_host::{Answer, EngineHost, News, Refused, What};
use muser_kv::{PAGE_ROWS, names_of};
use muser_wire::{
    Acceptance, CancelReason, Codecs, HandoffPlan, RefuseCode, Request, Sender, SenderEvent, SenderSettings,
};
use tokio::io::{AsyncReadExt, split};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::interval;

use super::{Address, Clock, Member, PAGES_BYTES_MAX, Shape, push};
use crate::lane::{Acceptor, Lane, LaneError};
use crate::random;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Bytes that may wait to be sent before the engine's news are left unread.
const BACKLOG_BYTES: usize = 32 << 20;
/// How often time is looked at while nothing happens.
const TICK: Duration = Duration::from_millis(500);
/// A refused receiver may try again after this.
const RETRY_MS: u32 = 1000;

/// What a producer may take on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerSettings {
    /// Handoffs at a time, over all lanes.
    pub concurrent_max: u32,
    /// Positions of a prompt at most.
    pub context: u32,
    /// Lanes that are open at once.
    pub lanes_max: usize,
    /// A lane ends when the receiver is silent for longer while it is awaited.
    pub stall_limit: Duration,
}

/// An address that is listened on, before there is anything to serve.
#[derive(Debug)]
pub struct Port(TcpListener);

impl Port {
    /// Takes the address; port 0 is any that is free.
    ///
    /// # Errors
    /// What the system says.
    pub async fn open(address: Address) -> io::Result<Self> {
        TcpListener::bind(address).await.map(Self)
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> io::Result<Address> {
        self.0.local_addr()
    }
}

/// An engine that computes for others.
#[derive(Debug)]
pub struct Producer {
    host: EngineHost,
    shape: Shape,
    member: Member,
    settings: ProducerSettings,
    handoffs: Arc<Semaphore>,
    lanes: Arc<Semaphore>,
}

/// A handoff under way.
struct Work {
    answer: Answer,
    plan: HandoffPlan,
    held_pages: u32,
    nonce: [u8; 32],
    /// Whether the receiver was told that it is accepted: not before the engine has begun.
    accepted: bool,
    /// What is still to be said to the receiver.
    outbox: VecDeque<Outgoing>,
    /// Whether the engine has said its last word.
    computed: bool,
    _permit: OwnedSemaphorePermit,
}

/// Something to say to the receiver, once there is room for it.
enum Outgoing {
    /// A frame of pages of a layer group, out of those that were completed together.
    Pages(u8, Range<u32>, Arc<[ReadyPage]>),
    /// How many rows are computed.
    Progress(u32),
    /// Everything was sent.
    Commit,
}

impl Producer {
    /// A producer of the pages that the engine behind `host` computes.
    pub fn new(host: EngineHost, shape: Shape, member: Member, settings: ProducerSettings) -> Self {
        let handoffs = Arc::new(Semaphore::new(settings.concurrent_max as usize));
        let lanes = Arc::new(Semaphore::new(settings.lanes_max));
        Self { host, shape, member, settings, handoffs, lanes }
    }

    /// Takes lanes until `stop` ends; those that are open end with the runtime. `refused` hears of each that does not
    /// come to be.
    pub async fn serve(
        self: Arc<Self>,
        port: Port,
        acceptor: Arc<Acceptor>,
        stop: impl Future<Output = ()>,
        refused: impl Fn(LaneError) + Clone + Send + 'static,
    ) {
        tokio::pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => return,
                accepted = port.0.accept() => accepted,
            };
            // A connection that failed before it began is nobody's loss; beyond the limit it is closed at once.
            let (Ok((tcp, _)), Ok(place)) = (accepted, Arc::clone(&self.lanes).try_acquire_owned()) else { continue };
            let (producer, acceptor, refused) = (Arc::clone(&self), Arc::clone(&acceptor), refused.clone());
            tokio::spawn(async move {
                match acceptor.accept(tcp).await {
                    Ok(lane) => producer.session(lane).await,
                    Err(error) => refused(error),
                }
                drop(place);
            });
        }
    }

    /// Handoffs that are under way.
    pub fn busy(&self) -> usize {
        (self.settings.concurrent_max as usize).saturating_sub(self.handoffs.available_permits())
    }

    /// One lane to its end. Whatever is under way then is given up.
    async fn session(&self, lane: Lane) {
        let clock = Clock::start();
        let mut sender = Sender::new(self.sender_settings(), clock.now_ms());
        let (mut reading, mut writing) = split(lane);
        let (mut buffer, mut unread) = (vec![0; READ_BYTES], Vec::new());
        let (mut work, mut unflushed, mut tick) = (None, false, interval(TICK));
        loop {
            let taken = sender.take_bytes(&unread, clock.now_ms());
            unread.drain(..taken);
            while let Some(event) = sender.poll_event() {
                self.hear(event, &mut sender, &mut work).await;
            }
            say(&mut sender, &mut work, clock);
            if sender.is_closed() && sender.output().is_empty() && !unflushed {
                return;
            }
            let output = sender.output();
            tokio::select! {
                read = reading.read(&mut buffer), if !sender.is_closed() => match read {
                    Ok(bytes) if bytes > 0 => unread.extend_from_slice(&buffer[..bytes]),
                    // The peer has left, and everything with it.
                    _ => return,
                },
                pushed = push(&mut writing, output), if !output.is_empty() || unflushed => match pushed {
                    Ok(bytes) => {
                        sender.output_sent(bytes, clock.now_ms());
                        unflushed = bytes > 0;
                    }
                    Err(_) => return,
                },
                news = next_news(&mut work) => {
                    self.tell(news, &mut sender, &mut work, clock);
                }
                _ = tick.tick() => {
                    sender.tick(clock.now_ms());
                    // A long chunk, or a place in the engine's queue, is no silence.
                    if work.is_some() {
                        sender.ping(0);
                    }
                }
            }
        }
    }

    fn sender_settings(&self) -> SenderSettings {
        SenderSettings {
            node: self.member.node,
            keys: self.member.keys.clone(),
            codecs: Codecs::NONE_ONLY,
            concurrent_max: self.settings.concurrent_max,
            context_max: self.settings.context,
            pages_bytes_max: PAGES_BYTES_MAX,
            backlog_bytes_max: BACKLOG_BYTES,
            stall_limit_ms: u64::try_from(self.settings.stall_limit.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// What the receiver says.
    async fn hear(&self, event: SenderEvent, sender: &mut Sender, work: &mut Option<Work>) {
        match event {
            SenderEvent::Request(request) => match self.begin(&request).await {
                Ok(begun) => *work = Some(begun),
                Err((code, detail)) => {
                    let retry_ms = if code == RefuseCode::Busy { RETRY_MS } else { 0 };
                    // The request is the one under way, so it can be refused.
                    let _ = sender.refuse(code, retry_ms, &detail);
                }
            },
            SenderEvent::Installed(_) | SenderEvent::Cancelled(_) | SenderEvent::Failed(_) => *work = None,
            SenderEvent::Hello(_) | SenderEvent::Pong(_) => {}
        }
    }

    /// Checks a request and hands it to the engine.
    async fn begin(&self, request: &Request) -> Result<Work, (RefuseCode, String)> {
        let refuse = |code, detail: String| Err((code, detail));
        let (rows, held_pages) = (request.tokens.len(), request.held_pages as usize);
        if rows > self.settings.context as usize {
            return refuse(RefuseCode::TooLong, format!("{rows} rows, {} are the most", self.settings.context));
        }
        if held_pages > rows / PAGE_ROWS {
            return refuse(RefuseCode::StaleClaim, format!("{held_pages} pages are not of {rows} rows"));
        }
        if let Some(last) = held_pages.checked_sub(1) {
            let name = names_of(&self.shape.name_identity(), &request.tokens).nth(last);
            if name.is_none_or(|name| *name.as_bytes() != request.held_name) {
                return refuse(RefuseCode::StaleClaim, format!("the first {held_pages} pages have another name"));
            }
        }
        let Some(plan) = self.shape.plan(rows, held_pages) else {
            return refuse(RefuseCode::TooLong, format!("{rows} rows cannot be planned"));
        };
        let Ok(permit) = Arc::clone(&self.handoffs).try_acquire_owned() else {
            return refuse(RefuseCode::Busy, format!("{} handoffs are under way", self.settings.concurrent_max));
        };
        let Ok(nonce) = random::bytes() else {
            return refuse(RefuseCode::Internal, "no random bytes".into());
        };
        let export = Export::new(&self.shape.spec, rows, held_pages);
        let wanted = EngineRequest {
            prompt: request.tokens.clone(),
            tokens_max: Some(0),
            context: self.settings.context as usize,
            stop_tokens: Arc::new([]),
            sampling: SamplingSettings::greedy(),
            logprobs: None,
            reuse: PrefixReuse::Share,
        };
        let answer = self.host.submit_exported(wanted, export).await.map_err(|refused| {
            let code = match &refused {
                Refused::Submit(SubmitError::QueueFull { .. }) => RefuseCode::Busy,
                Refused::Submit(SubmitError::PromptTooLong { .. } | SubmitError::NeverFits { .. }) => {
                    RefuseCode::TooLong
                }
                Refused::Submit(_) => RefuseCode::Protocol,
                _ => RefuseCode::Internal,
            };
            (code, refused.to_string())
        })?;
        let held_pages = request.held_pages;
        Ok(Work {
            answer,
            plan,
            held_pages,
            nonce,
            accepted: false,
            outbox: VecDeque::new(),
            computed: false,
            _permit: permit,
        })
    }

    /// What the engine says.
    fn tell(&self, news: Option<News>, sender: &mut Sender, work: &mut Option<Work>, clock: Clock) {
        let Some(under_way) = work else { return };
        match news.map(|news| news.what) {
            Some(What::Started { reused, .. }) => {
                let acceptance = Acceptance {
                    nonce: under_way.nonce,
                    first_page: under_way.held_pages,
                    reused_rows: u32::try_from(reused).unwrap_or(u32::MAX),
                    plan: under_way.plan.clone(),
                };
                match sender.accept(acceptance, clock.now_ms()) {
                    Ok(()) => under_way.accepted = true,
                    Err(_) => give_up(sender, work, clock),
                }
            }
            Some(What::Progress { computed, pages, .. }) => {
                let frames = frames(&under_way.plan, pages.into(), sender.frame_bytes_max());
                under_way.outbox.extend(frames);
                under_way.outbox.push_back(Outgoing::Progress(u32::try_from(computed).unwrap_or(u32::MAX)));
            }
            Some(What::Finished(_)) => {
                under_way.computed = true;
                under_way.outbox.push_back(Outgoing::Commit);
            }
            Some(What::Token(_)) => {}
            Some(What::Failed(_)) | None => give_up(sender, work, clock),
        }
    }
}

/// The engine's next word on the handoff under way, once its last one was passed on; never, if there is none to wait for.
async fn next_news(work: &mut Option<Work>) -> Option<News> {
    match work {
        Some(work) if !work.computed && work.outbox.is_empty() => work.answer.next().await,
        _ => pending().await,
    }
}

/// Says what there is room for.
fn say(sender: &mut Sender, work: &mut Option<Work>, clock: Clock) {
    while let Some(under_way) = work
        && sender.wants_more()
        && let Some(next) = under_way.outbox.pop_front()
    {
        let said = match next {
            Outgoing::Pages(group, range, ready) => {
                let of = |layer: u16, page: u32| {
                    let is_it = |ready: &&ReadyPage| ready.layer == usize::from(layer) && ready.page == page as usize;
                    // A page that is not there has no bytes, which is no page: the frame is refused.
                    ready.iter().find(is_it).map_or(&[][..], |ready| ready.bytes.as_ref())
                };
                sender.send_pages(group, range, of)
            }
            Outgoing::Progress(rows) => sender.progress(rows),
            Outgoing::Commit => sender.commit(clock.now_ms()),
        };
        if said.is_err() {
            give_up(sender, work, clock);
        }
    }
}

/// Ends the handoff under way; the receiver hears of it, and if it cannot, the stall limit ends the lane.
fn give_up(sender: &mut Sender, work: &mut Option<Work>, clock: Clock) {
    if let Some(work) = work.take() {
        let _ = if work.accepted {
            sender.cancel(CancelReason::Internal, clock.now_ms())
        } else {
            sender.refuse(RefuseCode::Internal, 0, "the engine gave up")
        };
    }
}

/// The frames for pages that were completed together, group by group.
fn frames(plan: &HandoffPlan, ready: Arc<[ReadyPage]>, frame_bytes_max: u32) -> Vec<Outgoing> {
    let number = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
    let pages = || ready.iter().map(|ready| number(ready.page));
    let (Some(first), Some(last)) = (pages().min(), pages().max()) else { return Vec::new() };
    let groups = (0u8..=u8::MAX).take(plan.groups().len());
    let of_group = |group| {
        let ranges = plan.frames(group, first..last.saturating_add(1), frame_bytes_max);
        ranges.into_iter().map(|range| Outgoing::Pages(group, range, Arc::clone(&ready))).collect::<Vec<_>>()
    };
    groups.flat_map(of_group).collect()
}
