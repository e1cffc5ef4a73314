//! Listener of an enrolment: it admits connections up to their first message, each within a time limit and each address
//! within a share.
//!
//! A peer without the ticket's secret can neither end an enrolment nor keep the ticket's holder out: at most 16
//! connections of one address are in their handshake, and at most 64 of all. For one more, the oldest connection of its
//! own address is closed, or of the address that has the most.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use muser_enrol::{Apply, IssuedTicket, Kind, Message, RedeemError};
use muser_lane::UnixClock;
use muser_trust::Address;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::channel::Channel;
use super::failure::EnrolError;
use crate::handoff::Port;

/// Connections in their handshake at once.
const KNOCKING_MAX: usize = 64;
/// Of these, connections from one address.
const OF_ADDRESS_MAX: usize = 16;
/// Pause of accepting after an attempt that failed: the system may have no descriptor to give.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listener for new nodes, with the connections that have not sent a secret yet.
pub(super) struct Door {
    port: Port,
    tls: TlsAcceptor,
    limit: Duration,
    connecting: JoinSet<Result<Applicant, EnrolError>>,
    /// The same connections, oldest first, and refusals being sent.
    places: Vec<(IpAddr, AbortHandle)>,
}

pub(super) type Knocking = Channel<TlsStream<TcpStream>>;

/// A connection that sent a secret, with its application.
pub(super) struct Applicant {
    pub(super) channel: Knocking,
    pub(super) apply: Apply,
    pub(super) from: Address,
}

impl Door {
    /// A door at `port`, for handshakes that take twice `limit` at most.
    pub(super) fn new(port: Port, tls: ServerConfig, limit: Duration) -> Self {
        let (tls, connecting) = (TlsAcceptor::from(Arc::new(tls)), JoinSet::new());
        Self { port, tls, limit, connecting, places: Vec::new() }
    }

    pub(super) fn address(&self) -> io::Result<Address> {
        self.port.address()
    }

    /// The listening port, without its pending connections.
    pub(super) fn into_port(self) -> Port {
        self.port
    }

    /// The next connection that sends a secret, or the failure of one that did not get so far.
    pub(super) async fn next(&mut self) -> Result<Applicant, EnrolError> {
        loop {
            tokio::select! {
                Some(ended) = self.connecting.join_next() => match ended {
                    // It made way.
                    Err(error) if error.is_cancelled() => {}
                    ended => return ended.unwrap_or_else(|error| Err(EnrolError::Io(error.into()))),
                },
                accepted = self.port.0.accept() => match accepted {
                    Ok((tcp, from)) => {
                        self.make_way(share_of(from));
                        let task = self.connecting.spawn(knock(tcp, from, self.tls.clone(), self.limit));
                        self.places.push((share_of(from), task));
                    }
                    // Out of descriptors, or a connection that failed before it began.
                    Err(_) => {
                        self.end_oldest();
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
    }

    /// Runs `work`, and meanwhile refuses further applicants: the ticket is used.
    pub(super) async fn while_turning_away<T>(
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
                refuse(channel, error);
            }
        }
    }

    /// Gives the system a descriptor back, if a connection in its handshake has one.
    fn end_oldest(&mut self) {
        self.places.retain(|(_, task)| !task.is_finished());
        if !self.places.is_empty() {
            self.places.remove(0).1.abort();
        }
    }

    /// Closes the connection that a new one from `address` displaces, if a limit is reached.
    fn make_way(&mut self, address: IpAddr) {
        self.places.retain(|(_, task)| !task.is_finished());
        let mut shares: HashMap<IpAddr, usize> = HashMap::new();
        self.places.iter().for_each(|(address, _)| *shares.entry(*address).or_default() += 1);
        let own = shares.get(&address).copied().unwrap_or(0);
        let most = shares.iter().max_by_key(|(_, count)| **count).map(|(address, _)| *address);
        let from =
            if own >= OF_ADDRESS_MAX { Some(address) } else { most.filter(|_| self.places.len() >= KNOCKING_MAX) };
        let oldest = from.and_then(|from| self.places.iter().position(|(address, _)| *address == from));
        if let Some(oldest) = oldest {
            self.places.remove(oldest).1.abort();
        }
    }
}

/// Refuses a wrong or spent secret in a task of its own, while others connect.
pub(super) fn refuse(channel: Knocking, why: RedeemError) {
    tokio::spawn(async move { channel.refuse(&why.into()).await });
}

/// Network that counts as one address: for IPv6 its first 64 bits, as a machine has as many addresses within them as it
/// likes.
fn share_of(address: Address) -> IpAddr {
    match address.ip().to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 64 << 64).into()),
        ip => ip,
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
