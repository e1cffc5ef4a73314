//! Messages of an enrolment, with their byte tables.
//!
//! `Joined` and `Kept` have no body. `Bulk` is any bytes. The others:
//!
//! | kind       | at  | field         | meaning                                                             |
//! |------------|-----|---------------|---------------------------------------------------------------------|
//! | `Apply`    | 0   | secret        | 32 bytes, of the ticket                                             |
//! |            | 32  | identity      | five digests of 32 bytes: tensors, tokenizer, configuration, arithmetic, KV layout |
//! |            | 192 | name          | `u8` of length, then as many of text                                |
//! |            |     | listen        | `u8` of length, then as many of text: `address:port`; 0 for none    |
//! |            |     | request       | `u16` of length, then as many of text: the request for a certificate, PEM |
//! | `Trial`    | 0   | issuer        | 32 bytes, the node id of who grants, in the cluster of the tests    |
//! |            | 32  | issuer roles  | `u8`, 1 decoder, 2 producer, 3 both                                 |
//! |            | 33  | authority     | `u32` of length, then as many of text: the certificate of the CA of the tests, PEM |
//! |            |     | certificate   | likewise: the new node's                                            |
//! |            |     | keys          | likewise: the MAC keys of the tests                                 |
//! | `Grant`    | 0   | authority     | `u32` of length, then as many of text: the CA's certificate, PEM    |
//! |            |     | certificate   | likewise: the new node's                                            |
//! |            |     | keys          | likewise: the MAC keys, see [`muser_trust::keys`]                         |
//! |            |     | revoked       | `u32` of count, then for each a `u8` (0 node, 1 serial), 32 or 16 bytes, and `u64` seconds since 1970 |
//! | `Report`   | 0   | link          | `u8`, 1 if there is a link report: see [`LinkReport`], else 0       |
//! |            |     | qualification | see [`Qualification`]                                               |
//! | `Refuse`   | 0   | code          | `u8`, see [`RefuseCode`]                                            |
//! |            | 1   | detail        | `u16` of length, then as many of text                               |
//! | `Ping`, `Pong` | 0 | number      | `u64`                                                               |
//! | `AskBulk`  | 0   | bytes_max     | `u64`, no more is sent                                              |
//! |            | 8   | time_max_ms   | `u32`, for no longer                                                |
//! | `BulkEnd`, `BulkSeen` | 0 | bytes | `u64`, sent or seen                                               |
//! | `BulkSent` | 0   | round         | 24 bytes, see [`Round`]                                             |

use muser_trust::Address;
use muser_trust::identity::{NodeId, Revoked, Roles, Serial};
use zeroize::Zeroizing;

use super::frame::{Fields, FrameError, HEADER_BYTES, Kind, header_of};
use super::report::{LinkReport, Qualification, Round};

/// Longest detail of a refusal, in bytes; longer ones are cut.
const DETAIL_BYTES_MAX: usize = 1024;

/// One message.
#[derive(Debug, PartialEq)]
pub enum Message {
    /// Application of a new node.
    Apply(Apply),
    /// Membership in the cluster of the tests.
    Trial(Trial),
    /// Certificate and keys: every test was good.
    Grant(Grant),
    /// The new node is ready to be tested.
    Joined,
    /// Results of the tests; the link is reported once.
    Report(Option<LinkReport>, Qualification),
    /// The new node has completed its folder.
    Kept,
    /// Refusal with its reason; ends the connection.
    Refuse(RefuseCode, String),
    /// Request for a pong with the same number.
    Ping(u64),
    /// Answer to a ping, with its number.
    Pong(u64),
    /// Request for bulk bytes.
    AskBulk {
        /// Upper bound, bytes.
        bytes_max: u64,
        /// Upper bound of the sending time, ms.
        time_max_ms: u32,
    },
    /// Bulk bytes of any value.
    Bulk(Vec<u8>),
    /// End of the bulk bytes, with their number.
    BulkEnd(u64),
    /// Number of bulk bytes received.
    BulkSeen(u64),
    /// Bytes and times of a round that the peer sent.
    BulkSent(Round),
}

/// Application of a new node: ticket secret, model identity, name, address and certificate request.
#[derive(PartialEq)]
pub struct Apply {
    /// Secret of the ticket.
    pub secret: Zeroizing<[u8; 32]>,
    /// Digests of its model and layout.
    pub identity: [[u8; 32]; 5],
    /// Node name that it applies for.
    pub name: String,
    /// Address of its producer, if it is to be one.
    pub listen: Option<Address>,
    /// Certificate signing request, PEM.
    pub request: String,
}

/// Membership in the cluster of the tests.
#[derive(PartialEq)]
pub struct Trial {
    /// Node id of the issuer in the cluster of the tests.
    pub issuer: NodeId,
    /// Roles of the issuer.
    pub issuer_roles: Roles,
    /// The certificate of the CA of the tests, PEM.
    pub authority: String,
    /// The new node's certificate, PEM.
    pub certificate: String,
    /// The MAC keys of the tests, as in a file.
    pub keys: Zeroizing<String>,
}

/// Membership in the cluster.
#[derive(PartialEq)]
pub struct Grant {
    /// The CA's certificate, PEM.
    pub authority: String,
    /// The new node's certificate, PEM.
    pub certificate: String,
    /// The MAC keys as in their file.
    pub keys: Zeroizing<String>,
    /// The deny-list, with seconds since 1970.
    pub revoked: Vec<(Revoked, u64)>,
}

/// Reason of a refusal, as a byte on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RefuseCode {
    /// The secret is not that of the ticket.
    WrongTicket = 1,
    /// Another node was admitted by this ticket.
    UsedTicket = 2,
    /// The ticket has expired.
    ExpiredTicket = 3,
    /// Not a valid name, or the issuer's own.
    BadName = 4,
    /// Not a valid certificate signing request.
    BadRequest = 5,
    /// Another model, or another layout.
    OtherModel = 6,
    /// A malformed, unexpected or late message.
    Protocol = 7,
    /// The link, or the handoff over it, failed.
    Link = 8,
    /// The brought pages, or the logits from them, have other bits.
    OtherBits = 9,
    /// Ended by a person or by the system.
    Stopped = 10,
    /// Something failed that is no fault of the other end.
    Internal = 11,
}

impl RefuseCode {
    /// Every code.
    pub const ALL: [Self; 11] = [
        Self::WrongTicket,
        Self::UsedTicket,
        Self::ExpiredTicket,
        Self::BadName,
        Self::BadRequest,
        Self::OtherModel,
        Self::Protocol,
        Self::Link,
        Self::OtherBits,
        Self::Stopped,
        Self::Internal,
    ];
}

/// Hides the secret.
impl std::fmt::Debug for Apply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Apply").field("name", &self.name).field("listen", &self.listen).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grant").field("revoked", &self.revoked.len()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Trial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trial").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

impl Message {
    /// Kind of the message's frame.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Apply(_) => Kind::Apply,
            Self::Trial(_) => Kind::Trial,
            Self::Grant(_) => Kind::Grant,
            Self::Joined => Kind::Joined,
            Self::Report(..) => Kind::Report,
            Self::Kept => Kind::Kept,
            Self::Refuse(..) => Kind::Refuse,
            Self::Ping(_) => Kind::Ping,
            Self::Pong(_) => Kind::Pong,
            Self::AskBulk { .. } => Kind::AskBulk,
            Self::Bulk(_) => Kind::Bulk,
            Self::BulkEnd(_) => Kind::BulkEnd,
            Self::BulkSeen(_) => Kind::BulkSeen,
            Self::BulkSent(_) => Kind::BulkSent,
        }
    }

    /// The whole frame.
    ///
    /// # Errors
    /// [`FrameError::TooLong`] or [`FrameError::Value`] if a text or a list is longer than the frame can hold.
    pub fn frame(&self) -> Result<Zeroizing<Vec<u8>>, FrameError> {
        let kind = self.kind();
        let mut out = Zeroizing::new(vec![0; HEADER_BYTES]);
        self.put_body(&mut out).map_err(|field| FrameError::Value { kind, field })?;
        let (body_bytes, most) = (u32::try_from(out.len() - HEADER_BYTES).unwrap_or(u32::MAX), kind.body_bytes_max());
        if body_bytes > most {
            return Err(FrameError::TooLong { kind, bytes: body_bytes, most });
        }
        out[..HEADER_BYTES].copy_from_slice(&header_of(kind, body_bytes));
        Ok(out)
    }

    /// Appends the body. The error is the name of a field that is too long.
    fn put_body(&self, out: &mut Vec<u8>) -> Result<(), &'static str> {
        match self {
            Self::Apply(apply) => apply.put(out)?,
            Self::Trial(trial) => trial.put(out)?,
            Self::Grant(grant) => grant.put(out)?,
            Self::Joined | Self::Kept => {}
            Self::Report(link, qualification) => {
                out.push(link.is_some().into());
                if let Some(link) = link {
                    link.put(out)?;
                }
                qualification.put(out);
            }
            Self::Refuse(code, detail) => {
                out.push(*code as u8);
                let whole = (0..=DETAIL_BYTES_MAX.min(detail.len())).rev().find(|end| detail.is_char_boundary(*end));
                put_text16(out, &detail[..whole.unwrap_or(0)], "detail")?;
            }
            Self::Ping(number) | Self::Pong(number) | Self::BulkEnd(number) | Self::BulkSeen(number) => {
                out.extend(number.to_le_bytes());
            }
            Self::AskBulk { bytes_max, time_max_ms } => {
                out.extend(bytes_max.to_le_bytes());
                out.extend(time_max_ms.to_le_bytes());
            }
            Self::Bulk(bytes) => out.extend(bytes),
            Self::BulkSent(round) => round.put(out),
        }
        Ok(())
    }

    /// The message in the body of a frame of this kind.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn decode(kind: Kind, body: &[u8]) -> Result<Self, FrameError> {
        let mut fields = Fields::new(kind, body);
        let message = match kind {
            Kind::Apply => Self::Apply(Apply::read(&mut fields)?),
            Kind::Trial => Self::Trial(Trial::read(&mut fields)?),
            Kind::Grant => Self::Grant(Grant::read(&mut fields)?),
            Kind::Joined => Self::Joined,
            Kind::Report => {
                let link = match fields.u8()? {
                    0 => None,
                    1 => Some(LinkReport::read(&mut fields)?),
                    _ => return Err(fields.value("link")),
                };
                Self::Report(link, Qualification::read(&mut fields)?)
            }
            Kind::Kept => Self::Kept,
            Kind::Refuse => {
                let code = fields.u8()?;
                let code = RefuseCode::ALL.into_iter().find(|known| *known as u8 == code);
                let code = code.ok_or_else(|| fields.value("code"))?;
                let count = usize::from(fields.u16()?);
                if count > DETAIL_BYTES_MAX {
                    return Err(fields.value("detail"));
                }
                Self::Refuse(code, fields.text(count, "detail")?.into())
            }
            Kind::Ping => Self::Ping(fields.u64()?),
            Kind::Pong => Self::Pong(fields.u64()?),
            Kind::AskBulk => Self::AskBulk { bytes_max: fields.u64()?, time_max_ms: fields.u32()? },
            Kind::Bulk => Self::Bulk(fields.rest().to_vec()),
            Kind::BulkEnd => Self::BulkEnd(fields.u64()?),
            Kind::BulkSeen => Self::BulkSeen(fields.u64()?),
            Kind::BulkSent => Self::BulkSent(Round::read(&mut fields)?),
        };
        fields.finish()?;
        Ok(message)
    }
}

impl Apply {
    fn put(&self, out: &mut Vec<u8>) -> Result<(), &'static str> {
        out.extend(*self.secret);
        out.extend(self.identity.as_flattened());
        put_text8(out, &self.name, "name")?;
        let listen = self.listen.map(|address| address.to_string()).unwrap_or_default();
        put_text8(out, &listen, "listen")?;
        put_text16(out, &self.request, "request")
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, FrameError> {
        let secret = Zeroizing::new(fields.array()?);
        let mut identity = [[0; 32]; 5];
        for digest in &mut identity {
            *digest = fields.array()?;
        }
        let count = usize::from(fields.u8()?);
        let name = fields.text(count, "name")?.into();
        let count = usize::from(fields.u8()?);
        let listen = match fields.text(count, "listen")? {
            "" => None,
            text => {
                let address: Address = text.parse().map_err(|_| fields.value("listen"))?;
                // One address, one text.
                (address.to_string() == text).then_some(Some(address)).ok_or_else(|| fields.value("listen"))?
            }
        };
        let count = usize::from(fields.u16()?);
        Ok(Self { secret, identity, name, listen, request: fields.text(count, "request")?.into() })
    }
}

impl Trial {
    fn put(&self, out: &mut Vec<u8>) -> Result<(), &'static str> {
        out.extend(self.issuer.0);
        out.push(match self.issuer_roles {
            Roles::Decoder => 1,
            Roles::Producer => 2,
            Roles::Both => 3,
        });
        put_member(out, [&self.authority, &self.certificate, &self.keys])
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, FrameError> {
        let issuer = NodeId(fields.array()?);
        let issuer_roles = match fields.u8()? {
            1 => Roles::Decoder,
            2 => Roles::Producer,
            3 => Roles::Both,
            _ => return Err(fields.value("issuer roles")),
        };
        let (authority, certificate, keys) = read_member(fields)?;
        Ok(Self { issuer, issuer_roles, authority, certificate, keys })
    }
}

impl Grant {
    fn put(&self, out: &mut Vec<u8>) -> Result<(), &'static str> {
        put_member(out, [&self.authority, &self.certificate, &self.keys])?;
        out.extend(u32::try_from(self.revoked.len()).map_err(|_| "revoked")?.to_le_bytes());
        for (revoked, since_unix_s) in &self.revoked {
            match revoked {
                Revoked::Node(NodeId(id)) => {
                    out.push(0);
                    out.extend(id);
                }
                Revoked::Serial(Serial(serial)) => {
                    out.push(1);
                    out.extend(serial);
                }
            }
            out.extend(since_unix_s.to_le_bytes());
        }
        Ok(())
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, FrameError> {
        let (authority, certificate, keys) = read_member(fields)?;
        let count = fields.u32()?;
        // Grows with what is there, whatever the count says.
        let mut revoked = Vec::new();
        for _ in 0..count {
            let what = match fields.u8()? {
                0 => Revoked::Node(NodeId(fields.array()?)),
                1 => Revoked::Serial(Serial(fields.array()?)),
                _ => return Err(fields.value("revoked")),
            };
            revoked.push((what, fields.u64()?));
        }
        Ok(Self { authority, certificate, keys, revoked })
    }
}

/// The texts of a member: the CA's certificate, its own, and the MAC keys.
fn put_member(out: &mut Vec<u8>, texts: [&str; 3]) -> Result<(), &'static str> {
    for (text, field) in texts.into_iter().zip(["authority", "certificate", "keys"]) {
        out.extend(u32::try_from(text.len()).map_err(|_| field)?.to_le_bytes());
        out.extend(text.as_bytes());
    }
    Ok(())
}

fn read_member(fields: &mut Fields<'_>) -> Result<(String, String, Zeroizing<String>), FrameError> {
    let mut text = |field| {
        let count = fields.u32()?;
        fields.text(count as usize, field)
    };
    Ok((text("authority")?.into(), text("certificate")?.into(), Zeroizing::new(text("keys")?.into())))
}

fn put_text8(out: &mut Vec<u8>, text: &str, field: &'static str) -> Result<(), &'static str> {
    out.push(u8::try_from(text.len()).map_err(|_| field)?);
    out.extend(text.as_bytes());
    Ok(())
}

fn put_text16(out: &mut Vec<u8>, text: &str, field: &'static str) -> Result<(), &'static str> {
    out.extend(u16::try_from(text.len()).map_err(|_| field)?.to_le_bytes());
    out.extend(text.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests;
