//! Bytes that were read from a lane and that the state machine has not taken.
//!
//! Nothing more is read before all of them are taken, so they are no more than one reading, whatever the peer sends; and none
//! is moved to be read again.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// One reading.
#[derive(Debug)]
pub(super) struct Inbox {
    buffer: Box<[u8]>,
    taken: usize,
    read: usize,
}

impl Inbox {
    /// Reads up to `bytes` bytes at once.
    pub(super) fn new(bytes: usize) -> Self {
        Self { buffer: vec![0; bytes].into(), taken: 0, read: 0 }
    }

    /// Bytes not taken yet.
    pub(super) fn unread(&self) -> &[u8] {
        &self.buffer[self.taken..self.read]
    }

    /// True if all was taken: time to read more.
    pub(super) fn is_empty(&self) -> bool {
        self.taken == self.read
    }

    /// The first `bytes` bytes were taken.
    ///
    /// # Panics
    /// If there were fewer.
    pub(super) fn took(&mut self, bytes: usize) {
        assert!(bytes <= self.unread().len(), "{bytes} bytes were taken of {}", self.unread().len());
        self.taken += bytes;
    }

    /// Reads more in the place of what was taken, which is all. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The lane's read error; `UnexpectedEof` at its end.
    pub(super) async fn fill(&mut self, reading: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        debug_assert!(self.is_empty(), "what was not taken would be lost");
        let bytes = reading.read(&mut self.buffer).await?;
        (self.taken, self.read) = (0, bytes);
        if bytes == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_in_order_and_no_more_than_one_reading_is_held() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let sent: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        let (mut inbox, mut reading, mut got) = (Inbox::new(64), &sent[..], Vec::new());
        let mut random = fastrand::Rng::with_seed(5);
        while runtime.block_on(inbox.fill(&mut reading)).is_ok() {
            while !inbox.is_empty() {
                let bytes = random.usize(1..=inbox.unread().len());
                got.extend_from_slice(&inbox.unread()[..bytes]);
                inbox.took(bytes);
            }
        }
        assert!(got == sent && inbox.buffer.len() == 64);
        let ended = runtime.block_on(inbox.fill(&mut &[][..])).unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
    }
}
