//! Messages over a connection, each within a time: a peer that trickles its bytes is too slow, however much it sends.

use std::time::Duration;

use muser_enrol::{HEADER_BYTES, Kind, Message, parse_header};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::failure::EnrolError;

/// Memory that a body is given before any of it has come.
const BODY_BYTES_AT_FIRST: u32 = 64 << 10;
/// Time and bytes for which a refused peer's connection is drained, so that it can read the refusal.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_BYTES: usize = 64 << 10;

/// A connection that carries messages.
pub(super) struct Channel<S> {
    pub(super) stream: S,
    /// For each message, from the moment at which it is awaited.
    pub(super) limit: Duration,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Channel<S> {
    pub(super) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit }
    }

    /// Sends a message and sees to it that it leaves.
    pub(super) async fn send(&mut self, message: &Message) -> Result<(), EnrolError> {
        let frame = message.frame()?;
        let sending = async {
            self.stream.write_all(&frame).await?;
            self.stream.flush().await
        };
        let late = EnrolError::TooSlow { what: "room for what is sent", limit: self.limit };
        timeout(self.limit, sending).await.map_or(Err(late), |sent| sent.map_err(EnrolError::of_io))
    }

    /// The next message, which has to be `wanted` or the peer's refusal.
    pub(super) async fn receive(&mut self, wanted: Kind) -> Result<Message, EnrolError> {
        self.receive_within(wanted, self.limit).await
    }

    /// Likewise, by another time limit.
    pub(super) async fn receive_within(&mut self, wanted: Kind, limit: Duration) -> Result<Message, EnrolError> {
        let receiving = async { self.next(&[wanted]).await?.ok_or(EnrolError::Closed) };
        timeout(limit, receiving).await.unwrap_or(Err(EnrolError::TooSlow { what: name_of(wanted), limit }))
    }

    /// The next message, if it is of one of these kinds; none if the peer closed the connection between two messages. Any
    /// time limit is the caller's.
    pub(super) async fn next(&mut self, wanted: &[Kind]) -> Result<Option<Message>, EnrolError> {
        let mut header = [0; HEADER_BYTES];
        match self.stream.read(&mut header).await {
            Ok(0) => return Ok(None),
            Ok(read) => self.stream.read_exact(&mut header[read..]).await.map_err(EnrolError::of_io)?,
            Err(error) => return Err(EnrolError::of_io(error)),
        };
        let (kind, body_bytes) = parse_header(&header)?;
        // Before its body is read, which may be long.
        if kind != Kind::Refuse && !wanted.contains(&kind) {
            return Err(EnrolError::Unexpected { got: kind, wanted: wanted.first().copied().unwrap_or(Kind::Refuse) });
        }
        let mut body = zeroize::Zeroizing::new(Vec::with_capacity(body_bytes.min(BODY_BYTES_AT_FIRST) as usize));
        let read = (&mut self.stream).take(body_bytes.into()).read_to_end(&mut body).await;
        if read.map_err(EnrolError::of_io)? < body_bytes as usize {
            return Err(EnrolError::Closed);
        }
        match Message::decode(kind, &body)? {
            Message::Refuse(code, detail) => Err(EnrolError::RefusedByPeer { code, detail }),
            message => Ok(Some(message)),
        }
    }

    /// Closes the connection with the enrolment's outcome; a failure is sent to the peer.
    pub(super) async fn end<T>(self, ended: Result<T, EnrolError>) -> Result<T, EnrolError> {
        match &ended {
            Ok(_) => self.linger().await,
            Err(error) => self.refuse(error).await,
        }
        ended
    }

    /// Sends the reason of the failure to the peer, within the time limit.
    pub(super) async fn refuse(mut self, why: &EnrolError) {
        if matches!(why, EnrolError::RefusedByPeer { .. } | EnrolError::Closed) {
            return;
        }
        // The failure stands, whether or not the peer can be told.
        let _ = self.send(&Message::Refuse(why.code(), why.to_string())).await;
        self.linger().await;
    }

    /// Closes a connection so that the last bytes sent arrive: closing with unread input would reset it.
    pub(super) async fn linger(mut self) {
        let reading = async {
            let _ = self.stream.shutdown().await;
            let (mut bytes, mut read) = ([0; 4096], 0);
            while read < LINGER_BYTES {
                match self.stream.read(&mut bytes).await {
                    Ok(0) | Err(_) => return,
                    Ok(more) => read += more,
                }
            }
        };
        // The limit is the expected end for a peer that keeps the connection open.
        let _ = timeout(LINGER, reading).await;
    }
}

fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Apply => "the ticket's secret",
        Kind::Trial => "word that the ticket is taken",
        Kind::Grant => "a certificate",
        Kind::Joined => "word that the new node is ready",
        Kind::Report => "the report of a test",
        Kind::Kept => "word that the new node has kept its folder",
        _ => "an answer to a test of the link",
    }
}
