//! The side of the new node: makes its own key, shows the ticket, and keeps its folder if everything is good.

use std::sync::Arc;

use muser_enrol::{Apply, Grant, Kind, Message, Ticket, Trial};
use muser_lane::UnixClock;
use muser_model::Component;
use muser_trust::Address;
use muser_trust::identity::{ClusterFolder, NodeIdentity, NodeKey, NodeName, cluster_id};
use muser_trust::keys::KeyRing;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use zeroize::Zeroizing;

use super::channel::Channel;
use super::failure::EnrolError;
use super::issuer::{Enrolled, Progress, directions, good};
use super::party::{Limits, Link, Party};
use super::qualify::Machine;
use super::tls;
use super::under_way::EnrolmentFolder;
use crate::handoff::Port;

/// A node that applies for membership.
pub struct Applicant<'a> {
    /// Cluster folder under construction; empty at first.
    pub folder: &'a ClusterFolder,
    /// Its engine and model.
    pub machine: &'a Machine,
    /// Node name that it applies for.
    pub name: NodeName,
    /// Port on which it will serve handoffs, if it is granted the producer's role.
    pub port: Port,
    /// Time limits of the steps.
    pub limits: Limits,
    /// Seconds since 1970.
    pub clock: UnixClock,
}

type Connection = Channel<TlsStream<TcpStream>>;

impl Applicant<'_> {
    /// Shows the ticket, passes the tests, and calls `keep` to complete the folder once all were good. `told` receives
    /// progress.
    ///
    /// # Errors
    /// [`EnrolError`]; the content of the folder is worthless then.
    pub async fn apply(
        self,
        ticket: &Ticket,
        told: &(dyn Fn(Progress<'_>) + Sync),
        keep: impl FnOnce(&Enrolled) -> Result<(), String>,
    ) -> Result<Enrolled, EnrolError> {
        let (mut channel, address) = connect(ticket, self.limits, &self.clock).await?;
        let joined = self.join(&mut channel, ticket, address, told, keep).await;
        channel.end(joined).await
    }

    async fn join(
        self,
        channel: &mut Connection,
        ticket: &Ticket,
        issuer_address: Address,
        told: &(dyn Fn(Progress<'_>) + Sync),
        keep: impl FnOnce(&Enrolled) -> Result<(), String>,
    ) -> Result<Enrolled, EnrolError> {
        let Self { folder, machine, name, port, limits, clock } = self;
        let listen = port.address().map_err(EnrolError::Io)?;
        let key = NodeKey::generate()?;
        folder.save_node_key(&key)?;
        let identity = Component::ALL.map(|component| machine.shape.identity().component(component).0);
        let secret = Zeroizing::new(*ticket.secret());
        let (name, request) = (name.to_string(), key.request()?);
        channel.send(&Message::Apply(Apply { secret, identity, name, listen: Some(listen), request })).await?;
        let Trial { issuer, issuer_roles, authority, certificate, keys } = match channel.receive(Kind::Trial).await? {
            Message::Trial(trial) => trial,
            other => return Err(EnrolError::Unexpected { got: other.kind(), wanted: Kind::Trial }),
        };
        let (identity, keys) = (NodeIdentity::from_pem(&authority, &certificate, key)?, KeyRing::from_text(&keys)?);
        let (by_node, by_issuer) = directions(issuer_roles, identity.facts().roles);
        told(Progress::LetIn(identity.facts()));
        channel.send(&Message::Joined).await?;
        let under_way = EnrolmentFolder::begin(folder.path())?;
        let party = Party { identity, keys, under_way: &under_way, machine, limits, clock };
        let (mut link, mut reports) = (None, (None, None));
        if by_node {
            let reported = channel.receive_within(Kind::Report, limits.qualification);
            match party.produce(issuer, port, Link::ToTest, reported).await? {
                Message::Report(found, qualification) => {
                    told(Progress::Tested(found.as_ref(), &qualification));
                    (link, reports.0) = (found, Some(good(qualification)?));
                }
                other => return Err(EnrolError::Unexpected { got: other.kind(), wanted: Kind::Report }),
            }
        }
        if by_issuer {
            let state = if by_node { Link::Tested } else { Link::ToTest };
            let (found, qualification) = party.decode(issuer, issuer_address, state).await?;
            told(Progress::Tested(found.as_ref(), &qualification));
            channel.send(&Message::Report(found.clone(), qualification)).await?;
            (link, reports.1) = (link.or(found), Some(good(qualification)?));
        }
        match channel.receive(Kind::Grant).await? {
            Message::Grant(grant) => fill(folder, ticket, &grant)?,
            other => return Err(EnrolError::Unexpected { got: other.kind(), wanted: Kind::Grant }),
        }
        drop(under_way);
        let node = folder.load_identity()?.facts().clone();
        let (link, producer) = (link.unwrap_or_default(), by_issuer.then_some(issuer_address));
        let enrolled = Enrolled { node, issuer_roles, producer, link, by_node: reports.0, by_issuer: reports.1 };
        keep(&enrolled).map_err(EnrolError::Keep)?;
        channel.send(&Message::Kept).await?;
        Ok(enrolled)
    }
}

/// A connection to the cluster of the ticket, and its address. Nothing secret was sent on it.
async fn connect(ticket: &Ticket, limits: Limits, clock: &UnixClock) -> Result<(Connection, Address), EnrolError> {
    let connecting = async {
        let at = |error| EnrolError::Connect { address: ticket.address.clone(), error };
        let mut tried = None;
        for address in lookup_host(&ticket.address).await.map_err(at)? {
            match TcpStream::connect(address).await {
                Ok(tcp) => {
                    tcp.set_nodelay(true).map_err(EnrolError::Io)?;
                    let connector = TlsConnector::from(Arc::new(tls::client(ticket.cluster_id, clock)?));
                    let stream = connector.connect(tls::server_name()?, tcp).await.map_err(EnrolError::of_handshake)?;
                    return match stream.get_ref().1.alpn_protocol() {
                        Some(tls::PROTOCOL) => Ok((Channel::new(stream, limits.step), address)),
                        _ => Err(EnrolError::NotEnrolling),
                    };
                }
                Err(error) => tried = Some(error),
            }
        }
        Err(at(tried.unwrap_or_else(|| std::io::ErrorKind::NotFound.into())))
    };
    let late = EnrolError::TooSlow { what: "a connection", limit: limits.step };
    timeout(limits.step, connecting).await.unwrap_or(Err(late))
}

/// Writes what was granted.
fn fill(folder: &ClusterFolder, ticket: &Ticket, grant: &Grant) -> Result<(), EnrolError> {
    let authority = CertificateDer::from_pem_slice(grant.authority.as_bytes()).map_err(|_| EnrolError::OtherCluster)?;
    if cluster_id(&authority) != ticket.cluster_id {
        return Err(EnrolError::OtherCluster);
    }
    folder.join(&grant.authority, &KeyRing::from_text(&grant.keys)?)?;
    folder.save_node_certificate(&grant.certificate)?;
    folder.load_revocations()?.revoke_all(&grant.revoked)?;
    Ok(())
}
