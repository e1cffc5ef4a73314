//! The side that has the CA: lets one node in by its ticket, tests it, and keeps it or revokes it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use muser_model::Component;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::channel::Channel;
use super::failure::EnrolError;
use super::frame::Kind;
use super::message::{Apply, Grant as GrantMessage, Message};
use super::party::{Limits, Link, Party};
use super::qualify::Machine;
use super::report::{LinkReport, Qualification, Round};
use super::ticket::{IssueError, IssuedTicket, RedeemError, Ticket};
use super::tls;
use crate::handoff::{Address, Port};
use crate::identity::{
    ClusterAuthority, ClusterFolder, Grant, NodeFacts, NodeName, Revocations, Revoked, Role, Roles, Serial,
    facts_of_pem,
};
use crate::lane::UnixClock;

/// Connections that may be in their handshake at once.
const CONNECTING_MAX: usize = 4;

/// What a new node is granted, and how.
#[derive(Clone)]
pub struct IssuerSettings {
    /// What it may do.
    pub roles: Roles,
    /// How long its certificate is valid.
    pub lifetime_s: u64,
    /// How long the ticket is.
    pub ticket_lifetime_s: u64,
    /// How long everything else may take.
    pub limits: Limits,
    /// Seconds since 1970.
    pub clock: UnixClock,
}

/// An enrolment that waits for its ticket.
pub struct Issuer<'a> {
    party: Party<'a>,
    authority: ClusterAuthority,
    revocations: Arc<Revocations>,
    settings: IssuerSettings,
    door: Door,
}

/// What an enrolment came to, on either side.
#[derive(Clone, Debug, PartialEq)]
pub struct Enrolled {
    /// The new node.
    pub node: NodeFacts,
    /// What the enrolling node may do.
    pub issuer_roles: Roles,
    /// Where the other end computes for this one, if it does.
    pub producer: Option<Address>,
    /// The link, led by the decoder of the first qualification.
    pub link: LinkReport,
    /// The new node's pages with the enrolling node's, if that decodes them.
    pub by_node: Option<Qualification>,
    /// The enrolling node's pages with the new node's, if that decodes them.
    pub by_issuer: Option<Qualification>,
}

/// What happens meanwhile, for whoever watches.
#[derive(Debug)]
pub enum Progress<'a> {
    /// Somebody was not let in.
    Refused(&'a EnrolError),
    /// The ticket was used, and the certificate is signed.
    LetIn(&'a NodeFacts),
    /// A test is done.
    Tested(Option<&'a LinkReport>, &'a Qualification),
}

/// Where new nodes knock.
struct Door {
    port: Port,
    tls: TlsAcceptor,
    limit: Duration,
    connecting: JoinSet<Result<Applicant, EnrolError>>,
}

type Knocking = Channel<TlsStream<TcpStream>>;

/// Somebody who showed a secret.
struct Applicant {
    channel: Knocking,
    apply: Apply,
    from: Address,
}

/// A certificate that is revoked unless it is kept.
struct Signed<'a> {
    revocations: &'a Revocations,
    clock: &'a UnixClock,
    serial: Option<Serial>,
}

impl<'a> Issuer<'a> {
    /// Listens at `listen` for a node that is to be granted what `settings` say.
    ///
    /// # Errors
    /// [`EnrolError`]: the folder does not have the CA, or the address is taken.
    pub async fn open(
        folder: &'a ClusterFolder,
        machine: &'a Machine,
        settings: IssuerSettings,
        listen: Address,
    ) -> Result<Self, EnrolError> {
        let (authority, identity) = (folder.load_authority()?, folder.load_identity()?);
        let (ours, theirs) = (identity.facts().roles, settings.roles);
        if directions(ours, theirs) == (false, false) {
            return Err(EnrolError::NothingInCommon { ours, theirs });
        }
        let revocations = Arc::new(folder.load_revocations()?);
        let tls = tls::server(&authority, settings.ticket_lifetime_s.max(1), &settings.clock)?;
        let port = Port::open(listen).await.map_err(|error| EnrolError::Listen { address: listen, error })?;
        let (tls, limit) = (TlsAcceptor::from(Arc::new(tls)), settings.limits.step);
        let door = Door { port, tls, limit, connecting: JoinSet::new() };
        let (limits, clock) = (settings.limits, Arc::clone(&settings.clock));
        let party = Party { folder, identity, machine, limits, clock };
        Ok(Self { party, authority, revocations, settings, door })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> Result<Address, EnrolError> {
        self.door.port.address().map_err(EnrolError::Io)
    }

    /// The ticket for the new node, which will find this one at `advertised` (`host:port`).
    ///
    /// # Errors
    /// [`IssueError`].
    pub fn ticket(&self, advertised: &str) -> Result<(Ticket, IssuedTicket), IssueError> {
        let (now, lifetime_s) = ((self.settings.clock)(), self.settings.ticket_lifetime_s);
        Ticket::issue(self.authority.cluster_id(), advertised, now, lifetime_s)
    }

    /// Waits for the ticket and enrols the node that shows it. `told` hears what happens meanwhile. Dropping the future ends
    /// the enrolment as a failure does.
    ///
    /// # Errors
    /// [`EnrolError`]. If a certificate was signed, it is revoked.
    pub async fn enrol(
        mut self,
        mut ticket: IssuedTicket,
        told: &(dyn Fn(Progress<'_>) + Sync),
    ) -> Result<Enrolled, EnrolError> {
        let left = ticket.expiry_unix_s().saturating_sub((self.settings.clock)());
        let waiting = self.first(&mut ticket, told);
        let first = timeout(Duration::from_secs(left), waiting).await;
        let Applicant { mut channel, apply, from } = first.unwrap_or(Err(EnrolError::NobodyCame))?;
        let admitted = self.admit(&mut channel, &apply, from, &mut ticket, told).await;
        channel.end(admitted).await
    }

    /// The first who shows the right secret.
    async fn first(
        &mut self,
        ticket: &mut IssuedTicket,
        told: &(dyn Fn(Progress<'_>) + Sync),
    ) -> Result<Applicant, EnrolError> {
        let mut failed = 0;
        loop {
            let error = match self.door.next().await {
                Ok(Applicant { channel, apply, from }) => match ticket.redeem(&apply.secret, (self.settings.clock)()) {
                    Ok(()) => return Ok(Applicant { channel, apply, from }),
                    Err(error) => {
                        let error = error.into();
                        channel.refuse(&error).await;
                        error
                    }
                },
                Err(error) => error,
            };
            told(Progress::Refused(&error));
            // Its holder is too late, and nobody else can come.
            if matches!(error, EnrolError::Redeem(RedeemError::Expired { .. })) {
                return Err(error);
            }
            failed += 1;
            if failed >= self.settings.limits.attempts {
                return Err(EnrolError::TooManyAttempts { failed, last: Box::new(error) });
            }
        }
    }

    /// Signs, tests and keeps.
    async fn admit(
        self,
        channel: &mut Knocking,
        apply: &Apply,
        from: Address,
        ticket: &mut IssuedTicket,
        told: &(dyn Fn(Progress<'_>) + Sync),
    ) -> Result<Enrolled, EnrolError> {
        let Self { party, authority, revocations, settings, mut door } = self;
        let ours = party.identity.facts();
        let (by_node, by_issuer) = directions(ours.roles, settings.roles);
        check(&party, apply, by_node)?;
        let name = NodeName::new(&apply.name)?;
        let granted = Grant { name, roles: settings.roles, lifetime_s: settings.lifetime_s };
        let certificate = authority.sign(&apply.request, &granted, (settings.clock)())?;
        let node = facts_of_pem(&certificate)?;
        let mut signed = Signed { revocations: &revocations, clock: &settings.clock, serial: Some(node.serial) };
        let grant = GrantMessage {
            issuer: ours.id,
            issuer_roles: ours.roles,
            authority: authority.certificate_pem().into(),
            certificate,
            keys: party.folder.load_keys()?.to_text(),
            revoked: revocations.list()?,
        };
        channel.send(&Message::Grant(grant)).await?;
        told(Progress::LetIn(&node));
        channel.receive(Kind::Joined).await?;
        let (mut link, mut reports) = (None, (None, None));
        let producer = apply.listen.filter(|_| by_node).map(|listen| seen_from_here(listen, from));
        if let Some(address) = producer {
            let deciding = party.decode(node.id, address, Link::ToTest);
            let (found, qualification) = door.while_turning_away(ticket, &settings.clock, deciding).await?;
            told(Progress::Tested(found.as_ref(), &qualification));
            channel.send(&Message::Report(found.clone(), qualification)).await?;
            (link, reports.0) = (found, Some(good(qualification)?));
        }
        if by_issuer {
            let state = if link.is_some() { Link::Tested } else { Link::ToTest };
            let reported = channel.receive_within(Kind::Report, settings.limits.qualification);
            match party.produce(node.id, door.port, state, reported).await? {
                Message::Report(found, qualification) => {
                    told(Progress::Tested(found.as_ref(), &qualification));
                    (link, reports.1) = (link.or(found), Some(good(qualification)?));
                }
                other => return Err(EnrolError::Unexpected { got: other.kind(), wanted: Kind::Report }),
            }
        }
        channel.send(&Message::Done).await?;
        channel.receive(Kind::Kept).await?;
        signed.serial = None;
        let (link, issuer_roles) = (link.unwrap_or_default(), ours.roles);
        Ok(Enrolled { node, issuer_roles, producer, link, by_node: reports.0, by_issuer: reports.1 })
    }
}

impl Enrolled {
    /// What was measured of the way that the new node's pages go.
    pub fn from_node(&self) -> &[Round] {
        if self.by_node.is_some() { &self.link.to_decoder } else { &self.link.to_producer }
    }

    /// What was measured of the way that the enrolling node's pages go.
    pub fn from_issuer(&self) -> &[Round] {
        // The link was led by the decoder of the first qualification, which is the enrolling node if that decodes.
        if self.by_node.is_some() { &self.link.to_producer } else { &self.link.to_decoder }
    }
}

impl Door {
    /// The next who shows a secret, or why somebody did not get so far.
    async fn next(&mut self) -> Result<Applicant, EnrolError> {
        loop {
            tokio::select! {
                Some(ended) = self.connecting.join_next() => {
                    return ended.unwrap_or_else(|error| Err(EnrolError::Io(error.into())));
                }
                accepted = self.port.0.accept(), if self.connecting.len() < CONNECTING_MAX => {
                    // A connection that failed before it began is nobody's loss.
                    if let Ok((tcp, from)) = accepted {
                        self.connecting.spawn(knock(tcp, from, self.tls.clone(), self.limit));
                    }
                }
            }
        }
    }

    /// Waits for `work` and tells whoever knocks meanwhile that it is too late.
    async fn while_turning_away<T>(
        &mut self,
        ticket: &mut IssuedTicket,
        clock: &UnixClock,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        loop {
            let knocked = tokio::select! {
                done = &mut work => return done,
                knocked = self.next() => knocked,
            };
            if let Ok(Applicant { channel, apply, .. }) = knocked {
                let error = ticket.redeem(&apply.secret, clock()).err().unwrap_or(RedeemError::Used);
                tokio::spawn(async move { channel.refuse(&error.into()).await });
            }
        }
    }
}

impl Drop for Signed<'_> {
    fn drop(&mut self) {
        if let Some(serial) = self.serial.take() {
            // Should the disk fail too, the certificate is in nobody's folder, and runs out.
            let _ = self.revocations.revoke(Revoked::Serial(serial), (self.clock)());
        }
    }
}

/// A connection up to its secret.
async fn knock(tcp: TcpStream, from: Address, tls: TlsAcceptor, limit: Duration) -> Result<Applicant, EnrolError> {
    let knocking = async {
        tcp.set_nodelay(true).map_err(EnrolError::Io)?;
        let stream = match tls.accept(tcp).into_fallible().await {
            Ok(stream) => stream,
            Err((error, tcp)) => {
                // So that the peer can read the alert.
                Channel::new(tcp, limit).linger().await;
                return Err(EnrolError::of_handshake(error));
            }
        };
        let mut channel = Channel::new(stream, limit);
        match channel.receive(Kind::Apply).await {
            Ok(Message::Apply(apply)) => Ok(Applicant { channel, apply, from }),
            Ok(other) => Err(EnrolError::Unexpected { got: other.kind(), wanted: Kind::Apply }),
            Err(error) => {
                channel.refuse(&error).await;
                Err(error)
            }
        }
    };
    // Twice the limit, so that who is slow in the second half is still told.
    let late = EnrolError::TooSlow { what: "a handshake", limit };
    timeout(limit * 2, knocking).await.unwrap_or(Err(late))
}

/// What keeps a node with the right ticket out.
fn check(party: &Party<'_>, apply: &Apply, by_node: bool) -> Result<(), EnrolError> {
    let identity = party.machine.shape.identity();
    let differs = |(component, theirs): &(Component, [u8; 32])| identity.component(*component).0 != *theirs;
    if let Some((component, _)) = Component::ALL.into_iter().zip(apply.identity).find(differs) {
        return Err(EnrolError::OtherModel(component));
    }
    if apply.name == party.identity.facts().name.as_str() {
        return Err(EnrolError::SameName { name: apply.name.clone() });
    }
    if by_node && apply.listen.is_none() {
        return Err(EnrolError::NoAddress);
    }
    Ok(())
}

/// Whether the new node computes for the enrolling one, and the other way round.
pub(super) fn directions(issuer: Roles, node: Roles) -> (bool, bool) {
    let computes = |one: Roles, other: Roles| one.contain(Role::Producer) && other.contain(Role::Decoder);
    (computes(node, issuer), computes(issuer, node))
}

pub(super) fn good(qualification: Qualification) -> Result<Qualification, EnrolError> {
    qualification.difference.map_or(Ok(qualification), |difference| Err(difference.into()))
}

/// Where a node listens that says `listen` and whose connection comes from `from`.
fn seen_from_here(listen: Address, from: Address) -> Address {
    let ip = if listen.ip().is_unspecified() { from.ip().to_canonical() } else { listen.ip() };
    Address::new(ip, listen.port())
}
