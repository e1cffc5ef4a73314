//! One end of an enrolment while it is tested: it tests the link and qualifies as the decoder or as the producer.

use std::collections::VecDeque;
use std::future::pending;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use muser_enrol::{LinkReport, Qualification};
use muser_kv::PrefixScope;
use muser_lane::{Acceptor, Connector, Lane, LaneSettings, UnixClock, Wanted};
use muser_ledger::{FolderStorage, Ledger};
use muser_trust::Address;
use muser_trust::identity::{NodeId, NodeIdentity, Role};
use muser_trust::keys::KeyRing;
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use super::channel::Channel;
use super::door::ACCEPT_PAUSE;
use super::failure::EnrolError;
use super::probe;
use super::qualify::Machine;
use super::under_way::EnrolmentFolder;
use crate::handoff::{Compress, Member, Port, Producer, ProducerSettings, Remote, RemoteSettings};

/// Handoffs that a ledger is opened for.
const LEDGER_ENTRIES: usize = 16;
/// A producer that is silent for longer has failed.
const STALL_LIMIT: Duration = Duration::from_secs(30);
/// Lanes of an enrolment that are open at once.
const LANES_MAX: usize = 4;
/// Connections of an enrolment that are not lanes yet.
const HANDSHAKES_MAX: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// Time limits of the parts of an enrolment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Limit of a handshake, or of one message of the protocol.
    pub step: Duration,
    /// Limit of a qualification, in which both engines compute.
    pub qualification: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { step: Duration::from_secs(20), qualification: Duration::from_secs(3600) }
    }
}

/// State of the link test, which runs once per enrolment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Not tested yet.
    ToTest,
    /// Tested by the first qualification.
    Tested,
}

/// A node of the cluster of the tests, with its engine.
pub(super) struct Party<'a> {
    pub(super) identity: NodeIdentity,
    pub(super) keys: KeyRing,
    pub(super) under_way: &'a EnrolmentFolder,
    pub(super) machine: &'a Machine,
    pub(super) limits: Limits,
    pub(super) clock: UnixClock,
}

impl Party<'_> {
    /// Tests the link to the producer at `address`, and a handoff from it.
    pub(super) async fn decode(
        &self,
        peer: NodeId,
        address: Address,
        link: Link,
    ) -> Result<(Option<LinkReport>, Qualification), EnrolError> {
        let connector = Arc::new(Connector::new(&self.identity, self.lanes()?)?);
        let wanted = Wanted { role: Role::Producer, id: Some(peer) };
        let link = match link {
            Link::Tested => None,
            Link::ToTest => {
                let lane = connector.connect(address, wanted).await?;
                Some(self.lead(lane).await?)
            }
        };
        let storage =
            FolderStorage::open(&self.under_way.ledger()).map_err(|error| EnrolError::Keep(error.to_string()))?;
        let ledger = Arc::new(Ledger::open(storage, LEDGER_ENTRIES)?);
        let (expires_in, stall_limit) = (self.limits.qualification, STALL_LIMIT);
        let settings = RemoteSettings { address, wanted, expires_in, stall_limit };
        let of_model = (self.machine.shape.clone(), self.member()?);
        let remote = Remote::new(connector, of_model, ledger, Arc::clone(&self.clock), settings);
        let (what, limit) = ("the end of the qualification", self.limits.qualification);
        let qualifying = tokio::time::timeout(limit, self.machine.qualify(&remote)).await;
        Ok((link, qualifying.unwrap_or(Err(EnrolError::TooSlow { what, limit }))?))
    }

    /// Answers a decoder's test of the link and its handoffs at `port`, until `tested` ends.
    pub(super) async fn produce<T>(
        &self,
        peer: NodeId,
        port: Port,
        link: Link,
        tested: impl Future<Output = Result<T, EnrolError>>,
    ) -> Result<T, EnrolError> {
        let wanted = Wanted { role: Role::Decoder, id: Some(peer) };
        let acceptor = Arc::new(Acceptor::new(&self.identity, self.lanes()?, wanted)?);
        let settings = ProducerSettings {
            concurrent_max: 1,
            context: u32::try_from(self.machine.prompt_tokens).unwrap_or(u32::MAX),
            lanes_max: LANES_MAX,
            handshakes_max: HANDSHAKES_MAX,
            stall_limit: STALL_LIMIT,
            // As the link was tested.
            pace: None,
            compress: Compress::Never,
            prefixes: PrefixScope::Node,
        };
        let (host, shape) = (self.machine.host.clone(), self.machine.shape.clone());
        let producer = Arc::new(Producer::new(host, shape, self.member()?, settings));
        let producing = async {
            if link == Link::ToTest {
                self.follow(lane_at(&port, &acceptor).await).await?;
            }
            producer.serve(port, acceptor, pending(), |_| ()).await;
            pending().await
        };
        tokio::select! {
            tested = tested => tested,
            failed = producing => failed,
        }
    }

    fn member(&self) -> Result<Member, EnrolError> {
        Ok(Member::new(self.identity.facts(), &self.keys, &self.machine.shape)?)
    }

    fn lanes(&self) -> Result<LaneSettings, EnrolError> {
        let revocations = Arc::new(self.under_way.revocations()?);
        Ok(LaneSettings { revocations, handshake_timeout: self.limits.step, clock: Arc::clone(&self.clock) })
    }

    async fn lead(&self, lane: Lane) -> Result<LinkReport, EnrolError> {
        let mut channel = Channel::new(lane, self.limits.step);
        let meter = Meter::of(channel.stream.tcp());
        let report = probe::lead(&mut channel, &|| meter.busy_us()).await?;
        channel.linger().await;
        Ok(report)
    }

    async fn follow(&self, lane: Lane) -> Result<(), EnrolError> {
        let mut channel = Channel::new(lane, self.limits.step);
        let meter = Meter::of(channel.stream.tcp());
        probe::answer(&mut channel, &|| meter.busy_us()).await
    }
}

/// The first lane admitted at `port`; refused and broken connections are dropped.
async fn lane_at(port: &Port, acceptor: &Arc<Acceptor>) -> Lane {
    // Side by side: the peer does not wait for a stranger who says nothing.
    let (mut connecting, mut places) = (JoinSet::new(), VecDeque::<AbortHandle>::new());
    loop {
        tokio::select! {
            Some(ended) = connecting.join_next() => if let Ok(Ok(lane)) = ended {
                return lane;
            },
            accepted = port.0.accept() => {
                places.retain(|place| !place.is_finished());
                let is_short = accepted.is_err();
                if is_short || places.len() >= HANDSHAKES_MAX.get() {
                    places.pop_front().iter().for_each(AbortHandle::abort);
                }
                match accepted {
                    Ok((tcp, _)) => {
                        let acceptor = Arc::clone(acceptor);
                        places.push_back(connecting.spawn(async move { acceptor.accept(tcp).await }));
                    }
                    Err(_) => sleep(ACCEPT_PAUSE).await,
                }
            }
        }
    }
}

/// Asks the kernel about a connection, by a descriptor of its own.
struct Meter {
    #[cfg(target_os = "linux")]
    socket: Option<std::os::fd::OwnedFd>,
}

#[cfg(target_os = "linux")]
impl Meter {
    fn of(tcp: &TcpStream) -> Self {
        use std::os::fd::AsFd;
        Self { socket: tcp.as_fd().try_clone_to_owned().ok() }
    }

    fn busy_us(&self) -> Option<u64> {
        use std::os::fd::AsFd;
        muser_lane::socket_options::kernel_times(self.socket.as_ref()?.as_fd()).ok()?.busy_us
    }
}

#[cfg(not(target_os = "linux"))]
impl Meter {
    fn of(_: &TcpStream) -> Self {
        Self {}
    }

    fn busy_us(&self) -> Option<u64> {
        None
    }
}
