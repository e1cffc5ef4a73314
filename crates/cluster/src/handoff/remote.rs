//! Decoding end: a prompt's missing pages are brought into an installation, all of them or none that counts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muser_engine::engine::Installation;
use muser_handoff::{DecoderCore, DecoderEffect, HandoffError, Order};
use muser_host::EngineHost;
use muser_kv::{InstallError, Maker, PAGE_ROWS};
use muser_lane::{Connector, Lane, LaneError, UnixClock, Wanted};
use muser_ledger::{FolderStorage, Ledger, LedgerEntry, RecordError};
use muser_trust::Address;
use muser_trust::identity::{NodeFacts, NodeId};
use muser_trust::judgement::TrustError;
use muser_trust::quarantine::{Quarantine, QuarantineError};
use muser_trust::random::{self, NoRandomness};
use muser_wire::{Failure, HandoffId, MacKeys, ReceiverSettings, Refuse, RefuseCode, Request, Stats};
use tokio::time::{Interval, interval, timeout};

use super::inbox::Inbox;
use super::trust::Standing;
use super::{Clock, Member, PAGES_BYTES_MAX, Shape, push, socket};

/// Buffer of one read, bytes.
const READ_BYTES: usize = 256 << 10;
/// Interval at which the state machine checks its deadlines.
const TICK: Duration = Duration::from_millis(250);
/// Time since expiry after which entries are removed from a full ledger, ms.
const FORGET_MARGIN_MS: u64 = 60_000;
/// Idle lanes kept open for the next handoff, each for at most [`IDLE_MAX`], half of the producer's limit.
const IDLE_LANES: usize = 4;
/// Certificates whose pages are kept, per address; those of older ones are taken back.
const MAKERS_MAX: usize = 64;
const IDLE_MAX: Duration = Duration::from_secs(300);
/// Extra time for the protocol's own deadline, whose error says more than a timeout.
const GRACE: Duration = Duration::from_secs(1);

/// Address, identity and time limits of a producer.
#[derive(Clone, Debug)]
pub struct RemoteSettings {
    /// Address of its listener.
    pub address: Address,
    /// Role and node id required there.
    pub wanted: Wanted,
    /// Time limit of a handoff, from the decision to ask on.
    pub expires_in: Duration,
    /// Idle limit of a lane.
    pub stall_limit: Duration,
}

/// A producer, as the decoder sees it.
pub struct Remote {
    connector: Arc<Connector>,
    shape: Shape,
    member: Member,
    ledger: Arc<Ledger<FolderStorage>>,
    clock: UnixClock,
    settings: RemoteSettings,
    quarantine: Option<Arc<Quarantine>>,
    /// Time since this was made.
    steady: Clock,
    idle: Mutex<Vec<Link>>,
    /// Certificates of the nodes whose pages came, the oldest first, until these are taken back.
    makers: Mutex<Vec<NodeFacts>>,
}

/// A lane with its state machine.
struct Link {
    lane: Lane,
    core: DecoderCore,
    inbox: Inbox,
    unflushed: bool,
    clock: Clock,
    tick: Interval,
    /// Time of its last use.
    used: Instant,
}

/// Result of a handoff that was installed and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Handoff {
    /// The producer's name in the cluster.
    pub producer: String,
    /// The producer's node id.
    pub node: NodeId,
    /// Pages, bytes and rows.
    pub stats: Stats,
    /// Pages that were held already.
    pub held_pages: usize,
    /// From the decision to ask until everything was checked.
    pub elapsed: Duration,
}

/// Callback for the progress of a handoff: leading rows of the prompt that are held here or computed by the producer. The
/// first call is that of the acceptance, with the rows held.
pub type Listener<'a> = dyn FnMut(usize) + Send + 'a;

/// Failure of a handoff. Its pages are dropped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BringError {
    /// No lane to the producer.
    #[error(transparent)]
    Lane(#[from] LaneError),
    /// This node's keys or deny-list do not allow it.
    #[error(transparent)]
    Trust(TrustError),
    /// The cluster folder has no active MAC key.
    #[error("there is no active MAC key: rotate the keys")]
    NoKey,
    /// The system gives no random bytes.
    #[error(transparent)]
    Random(#[from] NoRandomness),
    /// The handoff failed at either end, or on the lane.
    #[error(transparent)]
    Handoff(#[from] HandoffError),
    /// The handoff's time limit passed.
    #[error("the producer did not bring the pages within {} s", limit.as_secs_f64())]
    Late {
        /// The time for the whole.
        limit: Duration,
    },
    /// The producer closed the lane.
    #[error("the producer closed the lane")]
    Closed,
    /// I/O error of the lane.
    #[error("the lane broke: {0}")]
    Io(std::io::Error),
    /// The handoff cannot be put on record as used.
    #[error(transparent)]
    Ledger(#[from] RecordError),
    /// The ledger's disk does not answer. Should the entry be written later, it is never used.
    #[error("the handoff was not recorded within {} s: the ledger's disk does not answer", limit.as_secs_f64())]
    LedgerSlow {
        /// Time limit.
        limit: Duration,
    },
    /// The producer is quarantined here, and was not asked.
    #[error("node {0} is quarantined, as it sent wrong keys and values: see muser cluster show")]
    Quarantined(NodeId),
    /// The quarantine cannot be read.
    #[error(transparent)]
    Quarantine(#[from] QuarantineError),
    /// A page does not fit.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// More pages than the protocol can count.
    #[error("the prompt is too long for a handoff")]
    TooLong,
}

impl std::convert::From<TrustError> for BringError {
    fn from(error: TrustError) -> Self {
        match error {
            TrustError::Quarantined(node) => Self::Quarantined(node),
            TrustError::Quarantine(error) => Self::Quarantine(error),
            error => Self::Trust(error),
        }
    }
}

impl BringError {
    /// Time after which to ask again, if the producer refused for load alone.
    pub fn busy_for(&self) -> Option<Duration> {
        let busy = self.refusal().filter(|refuse| refuse.code == RefuseCode::Busy);
        busy.map(|refuse| Duration::from_millis(refuse.retry_after_ms.into()))
    }

    /// True if the producer works, but cannot serve this request: it has another model, or the prompt is too long. No
    /// reason for a back-off.
    pub fn is_unsuitable(&self) -> bool {
        let refused =
            self.refusal().is_some_and(|refuse| matches!(refuse.code, RefuseCode::TooLong | RefuseCode::Identity));
        refused || self.is_too_long() || matches!(self, Self::Handoff(HandoffError::Failed(Failure::Identity(_))))
    }

    /// True if a shorter prompt may be accepted.
    pub fn is_too_long(&self) -> bool {
        let refused = self.refusal().is_some_and(|refuse| refuse.code == RefuseCode::TooLong);
        refused || matches!(self, Self::TooLong)
    }

    /// The producer's refusal of the request or the lane.
    fn refusal(&self) -> Option<&Refuse> {
        match self {
            Self::Handoff(HandoffError::Refused(refuse) | HandoffError::Failed(Failure::RefusedByPeer(refuse))) => {
                Some(refuse)
            }
            _ => None,
        }
    }
}

impl Remote {
    /// A producer at `settings.address`, asked by `member`.
    pub fn new(
        connector: Arc<Connector>,
        (shape, member): (Shape, Member),
        ledger: Arc<Ledger<FolderStorage>>,
        clock: UnixClock,
        settings: RemoteSettings,
    ) -> Self {
        let (quarantine, steady, idle, makers) = (None, Clock::start(), Mutex::default(), Mutex::default());
        Self { connector, shape, member, ledger, clock, settings, quarantine, steady, idle, makers }
    }

    /// Refuses to ask producers on this list.
    #[must_use]
    pub fn with_quarantine(self, quarantine: Arc<Quarantine>) -> Self {
        Self { quarantine: Some(quarantine), ..self }
    }

    /// Address of the producer's listener.
    pub fn address(&self) -> Address {
        self.settings.address
    }

    /// KV shape and model identity that producer and decoder share.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Brings the pages that `installation` lacks. Dropping the future gives the handoff up.
    ///
    /// # Errors
    /// [`BringError`]; the installation is then incomplete, and to be dropped.
    pub async fn bring(&self, installation: &mut Installation) -> Result<Handoff, BringError> {
        self.bring_telling(installation, &mut |_| ()).await
    }

    /// As [`Self::bring`], with progress reported to `listener`. If the first attempt fails before anything has come,
    /// the second one reports acceptance again.
    ///
    /// # Errors
    /// As of [`Self::bring`].
    pub async fn bring_telling(
        &self,
        installation: &mut Installation,
        listener: &mut Listener<'_>,
    ) -> Result<Handoff, BringError> {
        let (began, limit) = (Instant::now(), self.settings.expires_in);
        let asking = self.ask(installation, listener, began);
        timeout(limit.saturating_add(GRACE), asking).await.unwrap_or(Err(BringError::Late { limit }))
    }

    /// Has `host` take back the pages of every node that answered here and was revoked or quarantined since, by whichever
    /// process. To be called before kept pages may be used; it reads lists that changed.
    pub async fn take_back_lost(&self, host: &EngineHost) {
        let makers = self.makers().clone();
        let kept = makers.len().saturating_sub(MAKERS_MAX);
        for (index, facts) in makers.into_iter().enumerate() {
            let (member, lane) = (&self.member, self.connector.settings().clone());
            let standing = Standing::of_certificate(member, facts.clone(), lane, self.quarantine.clone());
            if index < kept || standing.voids_earlier_pages().await {
                // In this order: whoever does not find it here any more comes to the engine behind the order.
                host.take_back(Maker(facts.id.0));
                self.makers().retain(|known| *known != facts);
            }
        }
    }

    /// Adds a peer to the certificates whose pages are kept.
    fn came_from(&self, peer: &NodeFacts) {
        let mut makers = self.makers();
        if !makers.contains(peer) {
            makers.push(peer.clone());
        }
    }

    fn makers(&self) -> MutexGuard<'_, Vec<NodeFacts>> {
        self.makers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks on a kept lane or a new one; the time limit counts from `began`.
    async fn ask(
        &self,
        installation: &mut Installation,
        listener: &mut Listener<'_>,
        began: Instant,
    ) -> Result<Handoff, BringError> {
        let kept = self.kept();
        let was_kept = kept.is_some();
        let mut link = match kept {
            Some(link) => link,
            None => self.connect().await?,
        };
        let mut brought = self.bring_by(&mut link, installation, listener, began).await;
        // A kept lane may have died since; a new one is tried once, as long as nothing has come.
        // So may have the certificate that it was opened with.
        let died = matches!(
            brought,
            Err(BringError::Closed | BringError::Io(_) | BringError::Trust(TrustError::OutOfTime { .. }))
        );
        if was_kept && died && installation.is_untouched() {
            link = self.connect().await?;
            brought = self.bring_by(&mut link, installation, listener, began).await;
        }
        let (producer, node) = (link.lane.peer().name.as_str().to_owned(), link.lane.peer().id);
        let usable = matches!(brought, Ok(_) | Err(BringError::Handoff(HandoffError::Refused(_))));
        if usable && link.core.is_idle() && link.flush(self.settings.stall_limit).await.is_ok() {
            let mut idle = self.lock();
            if idle.len() < IDLE_LANES {
                link.used = Instant::now();
                idle.push(link);
            }
        }
        Ok(Handoff { producer, node, stats: brought?, held_pages: installation.held_pages(), elapsed: began.elapsed() })
    }

    /// The lane used last, unless it was idle for so long that the producer may be about to close it.
    fn kept(&self) -> Option<Link> {
        let mut idle = self.lock();
        idle.retain(|link| link.used.elapsed() <= IDLE_MAX);
        idle.pop()
    }

    async fn connect(&self) -> Result<Link, BringError> {
        let lane = self.connector.connect(self.settings.address, self.settings.wanted).await?;
        socket::watch(&lane);
        let clock = Clock::start();
        let settings = ReceiverSettings {
            node: self.member.node,
            lane: lane.binding(),
            // Those of each moment come with each request.
            keys: MacKeys::default(),
            pages_bytes_max: PAGES_BYTES_MAX,
            stall_limit_ms: milliseconds(self.settings.stall_limit),
        };
        let core = DecoderCore::connect(settings, lane.peer().id.0, clock.now_ms());
        let (inbox, tick, used) = (Inbox::new(READ_BYTES), interval(TICK), Instant::now());
        let mut link = Link { lane, core, inbox, unflushed: false, clock, tick, used };
        loop {
            match link.core.poll_effect() {
                Some(DecoderEffect::Ready) => return Ok(link),
                Some(DecoderEffect::End(error)) => return Err(error.into()),
                Some(_) => {}
                None => link.move_bytes().await?,
            }
        }
    }

    async fn bring_by(
        &self,
        link: &mut Link,
        installation: &mut Installation,
        listener: &mut Listener<'_>,
        began: Instant,
    ) -> Result<Stats, BringError> {
        let standing = Standing::of(&self.member, &link.lane, self.quarantine.clone());
        let keys = standing.current(None).await?;
        let expires_in = self.settings.expires_in.saturating_sub(began.elapsed());
        let order = self.order(installation, keys.active.ok_or(BringError::NoKey)?, expires_in)?;
        installation.comes_from(Maker(link.lane.peer().id.0), standing.voucher(order.request.key_id));
        link.core.request(order, keys.macs.clone(), link.clock.now_ms()).map_err(HandoffError::from)?;
        loop {
            match link.core.poll_effect() {
                None => link.move_bytes().await?,
                Some(DecoderEffect::Install { layer, page, bytes }) => {
                    installation.install(usize::from(layer), page as usize, bytes)?;
                }
                Some(DecoderEffect::Record(entry)) => {
                    self.record(entry.at(self.unix_ms())).await?;
                    link.core.recorded(link.clock.now_ms())?;
                    listener(installation.held_pages() * PAGE_ROWS);
                }
                Some(DecoderEffect::Computed { rows }) => listener(rows as usize),
                Some(DecoderEffect::AskTrust { key_id }) => {
                    // Much may have changed while it came. The engine asks again when the pages are to become visible.
                    standing.current(Some(key_id)).await?;
                    self.came_from(link.lane.peer());
                    // A producer that is told so and ends before this side has heard its own words out costs the lane alone.
                    return Ok(link.core.trusted().map_err(HandoffError::from)?);
                }
                Some(DecoderEffect::End(error)) => return Err(error.into()),
                Some(DecoderEffect::Ready | DecoderEffect::Rested) => {}
            }
        }
    }

    fn order(&self, installation: &Installation, key_id: u32, expires_in: Duration) -> Result<Order, BringError> {
        let (tokens, held) = (installation.tokens(), installation.held_pages());
        let request = Request {
            expires_in_ms: u32::try_from(expires_in.as_millis()).unwrap_or(u32::MAX),
            held_pages: u32::try_from(held).map_err(|_| BringError::TooLong)?,
            held_name: installation.held_name().map_or([0; 32], |name| *name.as_bytes()),
            // What has no realm is nobody's, so that nothing of it is found again.
            realm: installation.realm().map_or_else(random::bytes, |realm| Ok(realm.for_handoffs()))?,
            ..Request::new(HandoffId(random::bytes()?), key_id, random::bytes()?, tokens.to_vec())
        };
        let plan = self.shape.plan(tokens.len(), held).ok_or(BringError::TooLong)?;
        let expiry_unix_ms = self.unix_ms().saturating_add(milliseconds(expires_in));
        Ok(Order { request, plan, expiry_unix_ms })
    }

    /// Records the handoff in the ledger, on a blocking thread.
    async fn record(&self, entry: LedgerEntry) -> Result<(), BringError> {
        let ledger = Arc::clone(&self.ledger);
        let record = move || ledger.record_making_room(entry, FORGET_MARGIN_MS);
        let limit = self.settings.stall_limit;
        match timeout(limit, tokio::task::spawn_blocking(record)).await {
            Ok(Ok(recorded)) => Ok(recorded.map(drop)?),
            Ok(Err(_)) => Err(BringError::Ledger(RecordError::Poisoned)),
            Err(_) => Err(BringError::LedgerSlow { limit }),
        }
    }

    /// Unix time by the ledger's clock, ms.
    fn unix_ms(&self) -> u64 {
        self.ledger.time((self.clock)().saturating_mul(1000), self.steady.now_ms())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Link>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    /// Moves bytes until all output is flushed to the socket, for at most `limit`: between handoffs the state machine
    /// has no deadlines.
    async fn flush(&mut self, limit: Duration) -> Result<(), BringError> {
        let flushing = async {
            while !self.core.output().is_empty() || self.unflushed {
                self.move_bytes().await?;
            }
            Ok(())
        };
        timeout(limit, flushing).await.unwrap_or_else(|_| Err(BringError::Io(std::io::ErrorKind::TimedOut.into())))
    }

    /// Moves bytes in either direction, or lets the state machine check its deadlines.
    async fn move_bytes(&mut self) -> Result<(), BringError> {
        let taken = self.core.take_bytes(self.inbox.unread(), self.clock.now_ms());
        self.inbox.took(taken);
        if taken > 0 {
            return Ok(());
        }
        let output = self.core.output();
        let (mut reading, mut writing) = tokio::io::split(&mut self.lane);
        tokio::select! {
            read = self.inbox.fill(&mut reading), if self.inbox.is_empty() => match read {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Err(BringError::Closed),
                Err(error) => return Err(BringError::Io(error)),
            },
            pushed = push(&mut writing, output), if !output.is_empty() || self.unflushed => {
                let bytes = pushed.map_err(BringError::Io)?;
                self.core.output_sent(bytes, self.clock.now_ms());
                self.unflushed = bytes > 0;
            }
            _ = self.tick.tick() => self.core.tick(self.clock.now_ms()),
        }
        Ok(())
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
