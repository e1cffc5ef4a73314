//! Enrolling side, which has the CA: admits one node by its ticket, if every test is good.

use std::sync::Arc;
use std::time::Duration;

use muser_enrol::{
    Apply, Grant as GrantMessage, IssueError, IssuedTicket, Kind, LinkReport, Message, Qualification, RedeemError,
    Round, Ticket,
};
use muser_lane::UnixClock;
use muser_model::Component;
use muser_trust::Address;
use muser_trust::identity::{
    ClusterAuthority, ClusterFolder, Grant, NodeFacts, NodeName, Revocations, Revoked, Role, Roles, Serial,
    facts_of_pem,
};
use tokio::time::timeout;

use super::door::{Applicant, Door, Knocking, refuse};
use super::failure::EnrolError;
use super::party::{Limits, Link, Party};
use super::qualify::Machine;
use super::tls;
use super::trial::Trial;
use super::under_way::EnrolmentFolder;
use crate::handoff::Port;

/// Roles, lifetimes and limits of an enrolment.
#[derive(Clone)]
pub struct IssuerSettings {
    /// Roles granted to the new node.
    pub roles: Roles,
    /// Lifetime of its certificate, seconds.
    pub lifetime_s: u64,
    /// Lifetime of the ticket, seconds.
    pub ticket_lifetime_s: u64,
    /// Time limits of the other steps.
    pub limits: Limits,
    /// Seconds since 1970.
    pub clock: UnixClock,
}

/// An enrolment that waits for its ticket.
pub struct Issuer<'a> {
    state: IssuerState<'a>,
    door: Door,
}

/// Folder, engine and settings of the enrolling node.
struct IssuerState<'a> {
    folder: &'a ClusterFolder,
    ours: NodeFacts,
    machine: &'a Machine,
    authority: ClusterAuthority,
    revocations: Revocations,
    settings: IssuerSettings,
}

/// Reports of the tests.
struct Tests {
    producer: Option<Address>,
    link: LinkReport,
    by_node: Option<Qualification>,
    by_issuer: Option<Qualification>,
}

/// Result of an enrolment, on either side.
#[derive(Clone, Debug, PartialEq)]
pub struct Enrolled {
    /// Certificate facts of the new node.
    pub node: NodeFacts,
    /// Roles of the enrolling node.
    pub issuer_roles: Roles,
    /// Address of the other end's producer; `None` if that computes nothing for this node.
    pub producer: Option<Address>,
    /// Measurements of the link, led by the decoder of the first qualification.
    pub link: LinkReport,
    /// The new node's pages compared with the enrolling node's, if that decodes them.
    pub by_node: Option<Qualification>,
    /// The enrolling node's pages compared with the new node's, if that decodes them.
    pub by_issuer: Option<Qualification>,
}

/// Progress of an enrolment, in the order of its steps.
#[derive(Debug)]
pub enum Progress<'a> {
    /// An applicant was refused; the enrolment goes on waiting.
    Refused(&'a EnrolError),
    /// The ticket was used; the node is tested now, and has been granted nothing.
    LetIn(&'a NodeFacts),
    /// A test is done.
    Tested(Option<&'a LinkReport>, &'a Qualification),
    /// Every test was good: certificate and MAC keys are about to be sent. If the enrolment fails from here on, the certificate
    /// is revoked in this folder, and the other machines of the cluster have to be told.
    Granting(&'a NodeFacts),
}

/// A certificate that is revoked unless it is kept.
struct Signed<'a> {
    revocations: &'a Revocations,
    clock: &'a UnixClock,
    serial: Option<Serial>,
    under_way: EnrolmentFolder,
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
        let (roles, theirs) = (identity.facts().roles, settings.roles);
        if directions(roles, theirs) == (false, false) {
            return Err(EnrolError::NothingInCommon { ours: roles, theirs });
        }
        let (ours, revocations) = (identity.facts().clone(), folder.load_revocations()?);
        let tls = tls::server(&authority, settings.ticket_lifetime_s.max(1), &settings.clock)?;
        let port = Port::open(listen).await.map_err(|error| EnrolError::Listen { address: listen, error })?;
        let door = Door::new(port, tls, settings.limits.step);
        Ok(Self { state: IssuerState { folder, ours, machine, authority, revocations, settings }, door })
    }

    /// Address of the listener.
    ///
    /// # Errors
    /// I/O error of the operating system.
    pub fn address(&self) -> Result<Address, EnrolError> {
        self.door.address().map_err(EnrolError::Io)
    }

    /// The ticket for the new node, which will find this one at `advertised` (`host:port`).
    ///
    /// # Errors
    /// [`IssueError`].
    pub fn ticket(&self, advertised: &str) -> Result<(Ticket, IssuedTicket), IssueError> {
        let settings = &self.state.settings;
        let (now, lifetime_s) = ((settings.clock)(), settings.ticket_lifetime_s);
        Ticket::issue(self.state.authority.cluster_id(), advertised, now, lifetime_s)
    }

    /// Waits for the ticket and enrols the node that shows it. `told` receives progress. Dropping the future ends the
    /// enrolment as a failure does.
    ///
    /// # Errors
    /// [`EnrolError`]. If anything was granted, it is revoked.
    pub async fn enrol(
        mut self,
        mut ticket: IssuedTicket,
        told: &(dyn Fn(Progress<'_>) + Sync),
    ) -> Result<Enrolled, EnrolError> {
        let left = ticket.expiry_unix_s().saturating_sub((self.state.settings.clock)());
        let waiting = self.first(&mut ticket, told);
        let first = timeout(Duration::from_secs(left), waiting).await;
        let Applicant { mut channel, apply, from } = first.unwrap_or(Err(EnrolError::NobodyCame))?;
        let admitted = self.state.admit(self.door, &mut channel, (&apply, from), (&mut ticket, told)).await;
        channel.end(admitted).await
    }

    /// The first applicant with the right secret. Wrong secrets end nothing, however many: 256 bits cannot be guessed.
    async fn first(
        &mut self,
        ticket: &mut IssuedTicket,
        told: &(dyn Fn(Progress<'_>) + Sync),
    ) -> Result<Applicant, EnrolError> {
        loop {
            let error = match self.door.next().await {
                Ok(Applicant { channel, apply, from }) => {
                    match ticket.redeem(&apply.secret, (self.state.settings.clock)()) {
                        Ok(()) => return Ok(Applicant { channel, apply, from }),
                        // Its holder is too late, and nobody else can come.
                        Err(late @ RedeemError::Expired { .. }) => {
                            channel.refuse(&late.into()).await;
                            return Err(late.into());
                        }
                        Err(error) => {
                            refuse(channel, error);
                            error.into()
                        }
                    }
                }
                Err(error) => error,
            };
            told(Progress::Refused(&error));
        }
    }
}

impl IssuerState<'_> {
    /// Tests the node and grants it membership.
    async fn admit(
        &self,
        door: Door,
        channel: &mut Knocking,
        (apply, from): (&Apply, Address),
        (ticket, told): (&mut IssuedTicket, &(dyn Fn(Progress<'_>) + Sync)),
    ) -> Result<Enrolled, EnrolError> {
        let settings = &self.settings;
        let name = self.check(apply)?;
        let under_way = EnrolmentFolder::begin(self.folder.path())?;
        let tested = self.test(door, channel, (apply, &name, from), (ticket, told), &under_way).await?;
        let now = (settings.clock)();
        let granted = Grant { name, roles: settings.roles, lifetime_s: settings.lifetime_s };
        let certificate = self.authority.sign(&apply.request, &granted, now)?;
        let node = facts_of_pem(&certificate)?;
        let grant = GrantMessage {
            authority: self.authority.certificate_pem().into(),
            certificate,
            keys: self.folder.load_keys()?.to_text(),
            revoked: self.revocations.list()?,
        };
        // On record before it is sent: should this process be killed, somebody else takes it back.
        under_way.note(&node, now)?;
        let (revocations, clock, serial) = (&self.revocations, &settings.clock, Some(node.serial));
        let mut signed = Signed { revocations, clock, serial, under_way };
        told(Progress::Granting(&node));
        channel.send(&Message::Grant(grant)).await?;
        channel.receive(Kind::Kept).await?;
        signed.serial = None;
        let Tests { producer, link, by_node, by_issuer } = tested;
        Ok(Enrolled { node, issuer_roles: self.ours.roles, producer, link, by_node, by_issuer })
    }

    /// Tests the node as a member of a cluster that is made for that.
    async fn test(
        &self,
        mut door: Door,
        channel: &mut Knocking,
        (apply, name, from): (&Apply, &NodeName, Address),
        (ticket, told): (&mut IssuedTicket, &(dyn Fn(Progress<'_>) + Sync)),
        under_way: &EnrolmentFolder,
    ) -> Result<Tests, EnrolError> {
        let Self { ours, machine, settings, .. } = self;
        let (by_node, by_issuer) = directions(ours.roles, settings.roles);
        let trial = Trial::begin(ours, settings.limits, (settings.clock)())?;
        let (message, node) = trial.admit(&apply.request, (name.clone(), settings.roles))?;
        channel.send(&Message::Trial(message)).await?;
        told(Progress::LetIn(&node));
        channel.receive(Kind::Joined).await?;
        let Trial { identity, keys, .. } = trial;
        let (limits, clock) = (settings.limits, Arc::clone(&settings.clock));
        let party = Party { identity, keys, under_way, machine, limits, clock };
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
            match party.produce(node.id, door.into_port(), state, reported).await? {
                Message::Report(found, qualification) => {
                    told(Progress::Tested(found.as_ref(), &qualification));
                    (link, reports.1) = (link.or(found), Some(good(qualification)?));
                }
                other => return Err(EnrolError::Unexpected { got: other.kind(), wanted: Kind::Report }),
            }
        }
        Ok(Tests { producer, link: link.unwrap_or_default(), by_node: reports.0, by_issuer: reports.1 })
    }

    /// The name of a node with the right ticket, unless something keeps it out.
    fn check(&self, apply: &Apply) -> Result<NodeName, EnrolError> {
        let identity = self.machine.shape.identity();
        let differs = |(component, theirs): &(Component, [u8; 32])| identity.component(*component).0 != *theirs;
        if let Some((component, _)) = Component::ALL.into_iter().zip(apply.identity).find(differs) {
            return Err(EnrolError::OtherModel(component));
        }
        if apply.name == self.ours.name.as_str() {
            return Err(EnrolError::SameName { name: apply.name.clone() });
        }
        if directions(self.ours.roles, self.settings.roles).0 && apply.listen.is_none() {
            return Err(EnrolError::NoAddress);
        }
        Ok(NodeName::new(&apply.name)?)
    }
}

impl Enrolled {
    /// Measured rounds in the direction of the new node's pages.
    pub fn from_node(&self) -> &[Round] {
        if self.by_node.is_some() { &self.link.to_decoder } else { &self.link.to_producer }
    }

    /// Measured rounds in the direction of the enrolling node's pages.
    pub fn from_issuer(&self) -> &[Round] {
        // The link was led by the decoder of the first qualification, which is the enrolling node if that decodes.
        if self.by_node.is_some() { &self.link.to_producer } else { &self.link.to_decoder }
    }
}

impl Drop for Signed<'_> {
    fn drop(&mut self) {
        if let Some(serial) = self.serial.take()
            && self.revocations.revoke(Revoked::Serial(serial), (self.clock)()).is_err()
        {
            // It stays on record, and the next enrolment takes it back.
            self.under_way.leave();
        }
    }
}

/// True, first, if the new node computes for the enrolling one, and second, if the enrolling one computes for the new
/// node.
pub(super) fn directions(issuer: Roles, node: Roles) -> (bool, bool) {
    let computes = |one: Roles, other: Roles| one.contain(Role::Producer) && other.contain(Role::Decoder);
    (computes(node, issuer), computes(issuer, node))
}

pub(super) fn good(qualification: Qualification) -> Result<Qualification, EnrolError> {
    qualification.difference.map_or(Ok(qualification), |difference| Err(difference.into()))
}

/// Reachable address of a node that announces `listen` over a connection from `from`: an unspecified IP is replaced by
/// the connection's.
fn seen_from_here(listen: Address, from: Address) -> Address {
    let ip = if listen.ip().is_unspecified() { from.ip().to_canonical() } else { listen.ip() };
    Address::new(ip, listen.port())
}
