//! Enrolment tickets: a text with the cluster's address, the digest of its CA, and a secret that admits one node once.
//!
//! A ticket is made on the node that has the CA and carried by a person to the new one. Its text is `muser-ticket-` and
//! base 32 (RFC 4648, lower case, no padding) of:
//!
//! | at | field         | meaning                                                      |
//! |----|---------------|--------------------------------------------------------------|
//! | 0  | version       | 1 byte, 1                                                    |
//! | 1  | cluster_id    | 32 bytes, BLAKE3 of the CA's certificate                     |
//! | 33 | secret        | 32 bytes, proves that its holder was given the ticket        |
//! | 65 | expiry_unix_s | u64, little-endian                                           |
//! | 73 | address       | 1 byte of length, then as many of text: `host:port`          |
//! |    | checksum      | the first 4 bytes of BLAKE3 of everything before             |

use std::fmt;

use muser_trust::random::{self, NoRandomness};
use zeroize::Zeroizing;

const PREFIX: &str = "muser-ticket-";
const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 4;
const ADDRESS_BYTES_MAX: usize = 255;
const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Separates these hashes from all other uses of BLAKE3.
const HASH_CONTEXT: &str = "muser enrolment ticket v1 secret";

/// Enrolment ticket. `Debug` shows no secret; [`Ticket::text`] is the ticket itself.
pub struct Ticket {
    /// BLAKE3 of the CA's certificate.
    pub cluster_id: [u8; 32],
    /// `host:port` of the enrolling node.
    pub address: String,
    /// Refused from this second on.
    pub expiry_unix_s: u64,
    secret: Zeroizing<[u8; 32]>,
}

/// Text that is not a valid ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TicketTextError {
    /// The text does not begin like a ticket.
    #[error("a ticket begins with `{PREFIX}`")]
    NoPrefix,
    /// A character that is in no ticket.
    #[error("the character at {at} is in no ticket")]
    BadDigit {
        /// Counted from 0, of the whole text.
        at: usize,
    },
    /// Cut short, or mistyped.
    #[error("the ticket is incomplete or mistyped: its checksum does not match")]
    WrongChecksum,
    /// Of another version.
    #[error("the ticket has version {found}, this program reads version {VERSION}")]
    WrongVersion {
        /// Version of the ticket.
        found: u8,
    },
    /// The parts do not fill the decoded bytes.
    #[error("the ticket's parts do not fill its {bytes} bytes")]
    WrongLength {
        /// Its length, decoded.
        bytes: usize,
    },
    /// The address is not UTF-8.
    #[error("the ticket's address is not text")]
    BadAddress,
}

/// Failure to make a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    /// The address is empty or too long.
    #[error("an address of {bytes} bytes does not fit into a ticket, 1 to {ADDRESS_BYTES_MAX} do")]
    BadAddress {
        /// Its length.
        bytes: usize,
    },
    /// No secret can be made.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
}

/// Issuer's record of one ticket: a hash of its secret, from which the secret cannot be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedTicket {
    hash: [u8; 32],
    expiry_unix_s: u64,
    used: bool,
}

/// Refusal of a ticket's secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedeemError {
    /// Not the secret of this ticket.
    #[error("this is not the ticket that was issued")]
    Wrong,
    /// Another node was admitted by this ticket.
    #[error("this ticket was used already")]
    Used,
    /// The ticket has expired.
    #[error("this ticket expired {} s ago", now_unix_s - expiry_unix_s)]
    Expired {
        /// Its expiry.
        expiry_unix_s: u64,
        /// The time now, not before it.
        now_unix_s: u64,
    },
}

impl Ticket {
    /// A new ticket, and what the issuing side keeps.
    ///
    /// # Errors
    /// [`IssueError`].
    pub fn issue(
        cluster_id: [u8; 32],
        address: &str,
        now_unix_s: u64,
        lifetime_s: u64,
    ) -> Result<(Self, IssuedTicket), IssueError> {
        if !(1..=ADDRESS_BYTES_MAX).contains(&address.len()) {
            return Err(IssueError::BadAddress { bytes: address.len() });
        }
        let secret = Zeroizing::new(random::bytes()?);
        let expiry_unix_s = now_unix_s.saturating_add(lifetime_s);
        let issued = IssuedTicket { hash: hash_of(&secret), expiry_unix_s, used: false };
        Ok((Self { cluster_id, address: address.into(), expiry_unix_s, secret }, issued))
    }

    /// The ticket as a person carries it.
    pub fn text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(vec![VERSION]);
        bytes.extend(self.cluster_id);
        bytes.extend(*self.secret);
        bytes.extend(self.expiry_unix_s.to_le_bytes());
        // `issue` and `parse` let in no longer address.
        bytes.push(u8::try_from(self.address.len()).unwrap_or(u8::MAX));
        bytes.extend(self.address.as_bytes());
        let checksum = checksum_of(&bytes);
        bytes.extend(checksum);
        let mut text = Zeroizing::new(String::from(PREFIX));
        let (mut bits, mut count) = (0u32, 0);
        for byte in bytes.iter() {
            (bits, count) = (bits << 8 | u32::from(*byte), count + 8);
            while count >= 5 {
                count -= 5;
                text.push(digit_of(bits >> count));
            }
            // Only the digits to come are kept.
            bits &= (1 << count) - 1;
        }
        if count > 0 {
            text.push(digit_of(bits << (5 - count)));
        }
        text
    }

    /// Reads a ticket's text; surrounding white space is ignored.
    ///
    /// # Errors
    /// [`TicketTextError`].
    pub fn parse(text: &str) -> Result<Self, TicketTextError> {
        let digits = text.trim().strip_prefix(PREFIX).ok_or(TicketTextError::NoPrefix)?;
        let bytes = bytes_of(digits)?;
        let bad_length = TicketTextError::WrongLength { bytes: bytes.len() };
        let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(TicketTextError::WrongChecksum)?;
        if *checksum != checksum_of(body) {
            return Err(TicketTextError::WrongChecksum);
        }
        let (&[version], rest) = body.split_first_chunk().ok_or(bad_length)?;
        if version != VERSION {
            return Err(TicketTextError::WrongVersion { found: version });
        }
        let (cluster_id, rest) = rest.split_first_chunk().ok_or(bad_length)?;
        let (secret, rest) = rest.split_first_chunk().ok_or(bad_length)?;
        let (expiry, rest) = rest.split_first_chunk().ok_or(bad_length)?;
        let (&[address_bytes], address) = rest.split_first_chunk().ok_or(bad_length)?;
        if address.len() != usize::from(address_bytes) || address.is_empty() {
            return Err(bad_length);
        }
        let address = std::str::from_utf8(address).map_err(|_| TicketTextError::BadAddress)?;
        Ok(Self {
            cluster_id: *cluster_id,
            address: address.into(),
            expiry_unix_s: u64::from_le_bytes(*expiry),
            secret: Zeroizing::new(*secret),
        })
    }

    /// The secret, sent by the new node once the other end has proved to be the cluster of [`Self::cluster_id`].
    pub fn secret(&self) -> &[u8; 32] {
        &self.secret
    }
}

impl IssuedTicket {
    /// The first second in which it is refused.
    pub fn expiry_unix_s(&self) -> u64 {
        self.expiry_unix_s
    }

    /// Accepts the right secret, once. The comparison takes the same time for every wrong secret.
    ///
    /// # Errors
    /// [`RedeemError`]. Only a peer with the right secret learns that the ticket is used or expired.
    pub fn redeem(&mut self, secret: &[u8; 32], now_unix_s: u64) -> Result<(), RedeemError> {
        // Hashes of this type are compared in constant time.
        if blake3::Hash::from_bytes(hash_of(secret)) != blake3::Hash::from_bytes(self.hash) {
            return Err(RedeemError::Wrong);
        }
        if self.used {
            return Err(RedeemError::Used);
        }
        if now_unix_s >= self.expiry_unix_s {
            return Err(RedeemError::Expired { expiry_unix_s: self.expiry_unix_s, now_unix_s });
        }
        self.used = true;
        Ok(())
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Ticket");
        shown.field("address", &self.address).field("expiry_unix_s", &self.expiry_unix_s).finish_non_exhaustive()
    }
}

fn hash_of(secret: &[u8; 32]) -> [u8; 32] {
    blake3::derive_key(HASH_CONTEXT, secret)
}

fn checksum_of(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let [a, b, c, d, ..] = *blake3::hash(bytes).as_bytes();
    [a, b, c, d]
}

fn digit_of(bits: u32) -> char {
    char::from(DIGITS[(bits & 31) as usize])
}

/// The bytes of base 32 digits. Bits that do not fill a byte must be zeros, so that a ticket has one text.
fn bytes_of(digits: &str) -> Result<Zeroizing<Vec<u8>>, TicketTextError> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(digits.len()));
    let (mut bits, mut count) = (0u32, 0);
    for (at, digit) in digits.bytes().enumerate() {
        let value = DIGITS.iter().zip(0u32..).find(|(known, _)| **known == digit);
        let (_, value) = value.ok_or(TicketTextError::BadDigit { at: PREFIX.len() + at })?;
        (bits, count) = (bits << 5 | value, count + 5);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count).to_le_bytes()[0]);
            bits &= (1 << count) - 1;
        }
    }
    if bits != 0 || count >= 5 {
        return Err(TicketTextError::WrongChecksum);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issued() -> (Ticket, IssuedTicket) {
        Ticket::issue([0x5a; 32], "10.0.0.7:4710", 1000, 600).unwrap()
    }

    #[test]
    fn a_ticket_is_read_back_and_shows_no_secret_in_debug_output() {
        let (ticket, _) = issued();
        let text = ticket.text();
        let read = Ticket::parse(&format!("  {}\n", *text)).unwrap();
        assert_eq!((read.cluster_id, read.address.as_str(), read.expiry_unix_s), ([0x5a; 32], "10.0.0.7:4710", 1600));
        assert_eq!(read.secret(), ticket.secret());
        assert_eq!(format!("{ticket:?}"), "Ticket { address: \"10.0.0.7:4710\", expiry_unix_s: 1600, .. }");
    }

    #[test]
    fn every_shorter_text_and_every_mistyped_character_is_refused() {
        let text = issued().0.text();
        for len in 0..text.len() {
            assert!(Ticket::parse(&text[..len]).is_err(), "{len}");
        }
        for at in 0..text.len() {
            for wrong in ['a', 'b', '7', '1', 'A', '-'] {
                let mut other: Vec<char> = text.chars().collect();
                if other[at] != wrong {
                    other[at] = wrong;
                    assert!(Ticket::parse(&other.into_iter().collect::<String>()).is_err(), "{at} {wrong}");
                }
            }
        }
        assert_eq!(Ticket::parse("hello").unwrap_err(), TicketTextError::NoPrefix);
        assert_eq!(Ticket::parse("muser-ticket-a!").unwrap_err(), TicketTextError::BadDigit { at: 14 });
        assert!(Ticket::parse(&format!("{}a", *text)).is_err());
    }

    #[test]
    fn a_ticket_lets_one_node_in_before_it_expires() {
        let (ticket, mut kept) = issued();
        assert_eq!(kept.redeem(&[0; 32], 1000), Err(RedeemError::Wrong));
        let late = RedeemError::Expired { expiry_unix_s: 1600, now_unix_s: 1607 };
        assert_eq!(kept.redeem(ticket.secret(), 1607), Err(late));
        assert_eq!(late.to_string(), "this ticket expired 7 s ago");
        assert_eq!(kept.redeem(ticket.secret(), 1599), Ok(()));
        assert_eq!(kept.redeem(ticket.secret(), 1599), Err(RedeemError::Used));
        assert_eq!(kept.redeem(&[0; 32], 9999), Err(RedeemError::Wrong));
        let too_long = "a".repeat(256);
        assert!(Ticket::issue([0; 32], &too_long, 0, 1).is_err() && Ticket::issue([0; 32], "", 0, 1).is_err());
    }
}
