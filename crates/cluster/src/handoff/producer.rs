//! Producing end: lanes come in, requests become work of the engine, pages go out as they are complete.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muser_engine::engine::{self, Job, PrefixReuse, ReadyPage, SubmitError};
use muser_host::{EngineHost, Refused};
use muser_kv::PrefixScope;
use muser_lane::pacing::{Pace, PacedBy};
use muser_lane::{Acceptor, Lane};
use muser_trust::Address;
use muser_trust::identity::NodeId;
use muser_trust::random;
use muser_wire::{Codecs, PagePacker, RefuseCode, Request, SenderSettings};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::compression::{Compress, Compression, Flow};
use super::handshakes::Handshakes;
use super::lanes::Lanes;
use super::report::ProducerNews;
use super::session::{Session, Work, turn_away};
use super::{Clock, Member, PAGES_BYTES_MAX, Shape};

/// Bytes waiting to be sent, above which no more engine events are read.
const BACKLOG_BYTES: usize = 32 << 20;

/// Pause of accepting after the system had no descriptor to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Least time between two reports of that shortage.
const SHORTAGE_REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Limits and options of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerSettings {
    /// Most concurrent handoffs, over all lanes.
    pub concurrent_max: u32,
    /// Most positions of a prompt.
    pub context: u32,
    /// Most open lanes.
    pub lanes_max: usize,
    /// Most connections that are not lanes yet; half of them from one address. Each costs a descriptor.
    pub handshakes_max: NonZeroUsize,
    /// Idle limit of a lane while the receiver is awaited.
    pub stall_limit: Duration,
    /// Pacing rate of all lanes together, bytes per second, and its mechanism.
    pub pace: Option<(NonZeroU64, PacedBy)>,
    /// Compression of pages.
    pub compress: Compress,
    /// Scope of prefix reuse between decoders.
    pub prefixes: PrefixScope,
}

/// An address that is listened on, before there is anything to serve.
#[derive(Debug)]
pub struct Port(pub(crate) TcpListener);

impl Port {
    /// Takes the address; port 0 is any that is free.
    ///
    /// # Errors
    /// I/O error of the operating system.
    pub async fn open(address: Address) -> io::Result<Self> {
        TcpListener::bind(address).await.map(Self)
    }

    /// Address of the listener.
    ///
    /// # Errors
    /// I/O error of the operating system.
    pub fn address(&self) -> io::Result<Address> {
        self.0.local_addr()
    }
}

/// Connections in their handshake, with the handles that abort them.
#[derive(Debug)]
struct Door {
    handshakes: Handshakes,
    tasks: HashMap<u64, AbortHandle>,
}

/// Callback for events of a producer.
pub(super) type Tell = Arc<dyn Fn(ProducerNews) + Send + Sync>;

/// An engine that computes for others.
#[derive(Debug)]
pub struct Producer {
    host: EngineHost,
    pub(super) shape: Shape,
    pub(super) member: Member,
    settings: ProducerSettings,
    pub(super) clock: Clock,
    pub(super) pace: Option<Arc<Pace>>,
    compression: Mutex<Compression>,
    handoffs: Arc<Semaphore>,
    lanes: Lanes,
    door: Mutex<Door>,
    /// No more handoffs are begun.
    stopping: AtomicBool,
}

impl Producer {
    /// A producer of the pages that the engine behind `host` computes.
    pub fn new(host: EngineHost, shape: Shape, member: Member, settings: ProducerSettings) -> Self {
        let handoffs = Arc::new(Semaphore::new(settings.concurrent_max as usize));
        let lanes = Lanes::new(settings.lanes_max);
        let door = Mutex::new(Door { handshakes: Handshakes::new(settings.handshakes_max), tasks: HashMap::new() });
        let pace = settings.pace.map(|(bytes_per_s, by)| Pace::new(bytes_per_s, by));
        let (clock, compression) = (Clock::start(), Mutex::new(Compression::new(settings.compress)));
        Self {
            host,
            shape,
            member,
            settings,
            clock,
            pace,
            compression,
            handoffs,
            lanes,
            door,
            stopping: AtomicBool::new(false),
        }
    }

    /// Takes lanes until `stop` ends. From then on requests are refused; handoffs under way go on, see [`Self::drained`],
    /// and lanes that are open end with the runtime. `tell` receives events.
    pub async fn serve(
        self: Arc<Self>,
        port: Port,
        acceptor: Arc<Acceptor>,
        stop: impl Future<Output = ()>,
        tell: impl Fn(ProducerNews) + Send + Sync + 'static,
    ) {
        let tell: Tell = Arc::new(tell);
        tokio::pin!(stop);
        let mut reported: Option<Instant> = None;
        loop {
            let accepted = tokio::select! {
                () = &mut stop => {
                    self.stopping.store(true, Ordering::SeqCst);
                    return;
                }
                accepted = port.0.accept() => accepted,
            };
            match accepted {
                Ok((tcp, from)) => {
                    self.take_connection(tcp, from.ip(), &acceptor, &tell);
                }
                // A connection that failed before it began is nobody's loss.
                Err(error) if is_of_the_peer(&error) => {}
                Err(error) => {
                    if reported.is_none_or(|reported| reported.elapsed() >= SHORTAGE_REPORT_INTERVAL) {
                        reported = Some(Instant::now());
                        tell(ProducerNews::NoConnection(error));
                    }
                    self.end_a_handshake();
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Makes a lane of a connection, in a task of its own.
    fn take_connection(self: &Arc<Self>, tcp: TcpStream, from: IpAddr, acceptor: &Arc<Acceptor>, tell: &Tell) {
        let mut door = self.door();
        let (number, evicted) = door.handshakes.begin(from);
        if let Some(task) = evicted.and_then(|evicted| door.tasks.remove(&evicted)) {
            task.abort();
        }
        let (producer, acceptor, tell) = (Arc::clone(self), Arc::clone(acceptor), Arc::clone(tell));
        let handshake = tokio::spawn(async move {
            let lane = acceptor.accept_telling(tcp, || producer.door().handshakes.greeted(number)).await;
            let mut door = producer.door();
            door.handshakes.end(number);
            door.tasks.remove(&number);
            let lane = match lane {
                Ok(lane) => lane,
                Err(error) => return tell(ProducerNews::LaneRefused(error)),
            };
            door.handshakes.admitted(from);
            drop(door);
            let place = producer.lanes.open(lane.peer().id);
            // In a task of its own, which is not ended with those whose handshake takes long.
            tokio::spawn(async move {
                match place {
                    Some(place) => Session::new(&producer, lane, place, tell).run().await,
                    None => turn_away(&producer, lane).await,
                }
            });
        });
        // Under the lock that it takes at its end: it cannot have ended before it is listed.
        door.tasks.insert(number, handshake.abort_handle());
    }

    /// Gives the system a descriptor back, if a connection has one that is no lane yet.
    fn end_a_handshake(&self) {
        let mut door = self.door();
        if let Some(task) = door.handshakes.end_one().and_then(|ended| door.tasks.remove(&ended)) {
            task.abort();
        }
    }

    fn door(&self) -> MutexGuard<'_, Door> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no handoff is under way.
    pub async fn drained(&self) {
        // Nobody closes the semaphore.
        let _ = self.handoffs.acquire_many(self.settings.concurrent_max).await;
    }

    /// Handoffs that are under way.
    pub fn busy(&self) -> usize {
        (self.settings.concurrent_max as usize).saturating_sub(self.handoffs.available_permits())
    }

    /// Idle limit of a lane.
    pub(super) fn stall_limit(&self) -> Duration {
        self.settings.stall_limit
    }

    pub(super) fn sender_settings(&self, lane: &Lane) -> SenderSettings {
        SenderSettings {
            node: self.member.node,
            lane: lane.binding(),
            keys: self.member.keys.macs.clone(),
            codecs: self.compression().offered(),
            concurrent_max: self.settings.concurrent_max,
            context_max: self.settings.context,
            pages_bytes_max: PAGES_BYTES_MAX,
            backlog_bytes_max: BACKLOG_BYTES,
            stall_limit_ms: u64::try_from(self.settings.stall_limit.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Codecs for the pages to be sent next; one page in 128 is packed to be measured.
    pub(super) fn codecs(&self, pages: &[ReadyPage], packer: &mut PagePacker, flow: &Flow) -> Codecs {
        let sample = self.compression().sample(pages.len());
        if let Some(page) = sample.and_then(|index| pages.get(index)) {
            let (began, raw) = (Instant::now(), page.bytes.as_ref());
            let (_, packed) = packer.pack(raw, Codecs::ALL);
            self.compression().packed(raw.len(), packed.len(), began.elapsed());
        }
        self.compression().codecs(flow)
    }

    /// Takes in a measurement: a lane's kernel was busy for `busy` with sending `bytes`.
    pub(super) fn sent(&self, bytes: u64, busy: Duration) {
        self.compression().sent(bytes, busy);
    }

    fn compression(&self) -> MutexGuard<'_, Compression> {
        self.compression.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a request of `asker` to the engine; with it comes a nonce for the handoff. What is computed is kept for the realm
    /// that the request names, and there for that node alone or for all, as [`PrefixScope`] says.
    pub(super) async fn begin(
        &self,
        asker: NodeId,
        request: Request,
    ) -> Result<([u8; 32], Work), (RefuseCode, String)> {
        let requested = Instant::now();
        let refuse = |code, detail: String| Err((code, detail));
        let Ok(permit) = Arc::clone(&self.handoffs).try_acquire_owned() else {
            return refuse(RefuseCode::Busy, format!("{} handoffs are under way", self.settings.concurrent_max));
        };
        // Looked at with the permit in hand: either this is seen, or the handoff is waited for.
        if self.stopping.load(Ordering::SeqCst) {
            return refuse(RefuseCode::ShuttingDown, "the producer is about to end".into());
        }
        let Ok(nonce) = random::bytes() else {
            return refuse(RefuseCode::Internal, "no random bytes".into());
        };
        let reuse = PrefixReuse::Within(self.settings.prefixes.realm(asker.0, &request.realm));
        let flow = engine::Flow { client: flow_of(asker.0), group: flow_of(request.handoff.0) };
        let job = Job::export(request.tokens, reuse, request.held_pages as usize).in_turns_of(flow);
        let answer = self.host.submit(job).await.map_err(|refused| {
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
        Ok((nonce, Work::new(answer, requested, permit)))
    }
}

/// True if one connection failed, rather than the listener.
fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// The first 8 bytes of a name that is drawn or hashed.
fn flow_of<const N: usize>(name: [u8; N]) -> u64 {
    name.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
