//! Enrolment: admission of a new node to a cluster over the network, once, with tests of link and engine before
//! anything is granted.
//!
//! The node with the CA issues a *ticket*, which a person carries to the new node. That connects, makes sure that the other
//! end has the CA's key, and only then shows the ticket's secret. It makes its own private key, which never leaves it. Both
//! become members of a cluster that is made for the tests, and open lanes as they will later: they test the link in both
//! directions and bring a qualification prompt by a handoff, which must have the bits of a local prefill. Only then the new
//! node is granted its certificate, the MAC keys and the deny-list; what is granted is on record before it is sent. If
//! anything fails after that, the certificate is revoked; and the new node keeps nothing.
//!
//! - The protocol is that of `muser-enrol`: `channel` sends and receives its messages within time limits, `tls`
//!   authenticates the issuer before the applicant has a certificate.
//! - `issuer` and `applicant` are the two sides, `door` is the issuer's listener; `party` is code that both share,
//!   `probe` and `qualify` are the tests.
//! - `trial` is the cluster of the tests, `under_way` the state of an enrolment on disk, and its revocation after a
//!   crash.
//! - `failure` has the error type.

mod applicant;
mod channel;
mod door;
mod failure;
mod issuer;
mod party;
mod probe;
mod qualify;
mod tls;
mod trial;
mod under_way;

use muser_trust::Address;

pub use applicant::Applicant;
pub use failure::EnrolError;
pub use issuer::{Enrolled, Issuer, IssuerSettings, Progress};
pub use party::Limits;
pub use qualify::Machine;
pub use tls::PROTOCOL;
pub use under_way::{Pending, PendingState, pending, take_back};

/// The address by which other machines most likely reach one that listens at `listen`: that itself, or, where it is any of
/// this machine's, the one that packets to elsewhere leave from. None is sent.
///
/// # Errors
/// If there is no way to elsewhere.
pub async fn advertised(listen: Address) -> std::io::Result<Address> {
    if !listen.ip().is_unspecified() {
        return Ok(listen);
    }
    // An address that is nobody's: it has to be routed, not reached.
    let socket = tokio::net::UdpSocket::bind(("0.0.0.0", 0)).await?;
    socket.connect(("192.0.2.1", 9)).await?;
    Ok(Address::new(socket.local_addr()?.ip(), listen.port()))
}
