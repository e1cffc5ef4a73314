//! Bytes of a connection in both directions: frame reader, output buffer, ping limits and idle timer.

use crate::HandoffId;
use crate::failure::Failure;
use crate::header::Limits;
use crate::message::Message;
use crate::reader::FrameReader;
use crate::refuse::Refuse;

/// Bytes of a connection, and the limits on what a peer may send unasked.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) reader: FrameReader,
    output: Vec<u8>,
    /// Bytes at the front of `output` that the caller has sent.
    sent: usize,
    /// Pongs written since `output` was last empty.
    pongs: u32,
    /// Pings written and not answered yet.
    pings: u32,
    /// Unsolicited frames received.
    unasked: u64,
    /// Time at which the connection was opened.
    opened_ms: u64,
    /// Time at which the peer last sent or took bytes.
    pub(crate) moved_ms: u64,
}

/// Buffers that are larger are given back once no handoff is under way.
const RESTING_BYTES_MAX: usize = 64 << 10;
/// More pings than this, while nothing is sent, are a flood.
const UNSENT_PONGS_MAX: u32 = 16;
/// Limit of unsolicited frames: this many, and one more for each [`UNASKED_MS`] since the connection was opened. A
/// computing peer pings twice a second.
const UNASKED_MAX: u64 = 64;
const UNASKED_MS: u64 = 25;
/// Backlog above which no ping is added, in bytes: the waiting bytes keep the connection alive themselves.
const PING_BACKLOG_BYTES: usize = 16 << 10;

impl Link {
    pub(crate) fn new(limits: Limits, now_ms: u64) -> Self {
        Self {
            reader: FrameReader::new(limits),
            output: Vec::new(),
            sent: 0,
            pongs: 0,
            pings: 0,
            unasked: 0,
            opened_ms: now_ms,
            moved_ms: now_ms,
        }
    }

    pub(crate) fn write(&mut self, message: &Message<'_>) {
        message.write_frame(&mut self.output);
    }

    /// The output buffer, to append frames to.
    pub(crate) fn output_mut(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    pub(crate) fn output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    pub(crate) fn output_sent(&mut self, bytes: usize, now_ms: u64) {
        assert!(bytes <= self.output().len(), "{bytes} bytes sent of {}", self.output().len());
        self.sent += bytes;
        self.moved_ms = now_ms;
        if self.sent == self.output.len() {
            self.pongs = 0;
        }
        // Moved to the front only when that frees at least half, so that each byte is moved at most once on average.
        if self.sent * 2 >= self.output.len() {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Gives back the memory that only a handoff needs.
    pub(crate) fn rest(&mut self) {
        self.output.shrink_to(RESTING_BYTES_MAX);
        self.reader.rest(RESTING_BYTES_MAX);
    }

    /// Bytes of memory held for frames that come and go.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.output.capacity() + self.reader.body_capacity()
    }

    pub(crate) fn ping(&mut self, value: u64) {
        if self.output().len() <= PING_BACKLOG_BYTES {
            self.pings = self.pings.saturating_add(1);
            self.write(&Message::Ping(value));
        }
    }

    /// Takes a pong; false if there was no ping for it.
    pub(crate) fn take_pong(&mut self) -> bool {
        let asked = self.pings.checked_sub(1);
        self.pings = asked.unwrap_or(0);
        asked.is_some()
    }

    /// Counts an unsolicited frame that changes nothing.
    pub(crate) fn count_unasked(&mut self, now_ms: u64) -> Result<(), Failure> {
        self.unasked += 1;
        let max = UNASKED_MAX + now_ms.saturating_sub(self.opened_ms) / UNASKED_MS;
        if self.unasked > max { Err(Failure::Unasked(self.unasked)) } else { Ok(()) }
    }

    pub(crate) fn answer_ping(&mut self, value: u64) -> Result<(), Failure> {
        if self.pongs == UNSENT_PONGS_MAX {
            return Err(Failure::PingFlood(self.pongs));
        }
        self.pongs += 1;
        self.write(&Message::Pong(value));
        Ok(())
    }

    /// Sends the peer the refusal for this end's failure, if there is a code for it.
    pub(crate) fn refuse(&mut self, handoff: HandoffId, failure: &Failure) {
        if let Some(code) = failure.code() {
            let field = if let Failure::Identity(component) = failure { *component as u8 } else { 0 };
            let refuse = Refuse { field, ..Refuse::new(handoff, code, &failure.to_string()) };
            self.write(&Message::Refuse(refuse));
        }
    }

    /// Fails if the peer's greeting is not complete in time, whatever other frames arrived.
    pub(crate) fn check_greeted(&self, limit_ms: u64, now_ms: u64) -> Result<(), Failure> {
        let waited_ms = now_ms.saturating_sub(self.opened_ms);
        if waited_ms > limit_ms { Err(Failure::NotGreeted { waited_ms }) } else { Ok(()) }
    }

    pub(crate) fn check_moving(&self, limit_ms: u64, now_ms: u64) -> Result<(), Failure> {
        let silent_ms = now_ms.saturating_sub(self.moved_ms);
        if silent_ms > limit_ms { Err(Failure::Stalled { silent_ms }) } else { Ok(()) }
    }
}

/// Fails once `expires_at_ms` is over.
pub(crate) fn check_time(expires_at_ms: u64, now_ms: u64) -> Result<(), Failure> {
    match now_ms.saturating_sub(expires_at_ms) {
        0 => Ok(()),
        late_ms => Err(Failure::Expired { late_ms }),
    }
}
