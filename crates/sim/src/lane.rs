//! A connection between a decoder and a producer: two pipes, and a state machine or a recording at each end.

use std::collections::BTreeSet;

use muser_handoff::{DecoderCore, ProducerCore};
use muser_trust::identity::NodeId;
use muser_wire::{LaneBinding, Limits};

use crate::attempt::{Attempt, Excuse};
use crate::context::{Context, STEP_MS_MAX, TICK_MS};
use crate::frame::Frame;
use crate::pipe::{Broken, Pipe};
use crate::producer::{BACKLOG_BYTES_MAX, Work};
use crate::violation::Violation;

/// A connection.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) id: u32,
    pub(crate) decoder: usize,
    pub(crate) producer: usize,
    /// `None` once closed, or if a recording takes its place.
    pub(crate) receiver: Option<ReceiverEnd>,
    pub(crate) sender: Option<SenderEnd>,
    pub(crate) to_sender: Pipe,
    pub(crate) to_receiver: Pipe,
    /// Node id in the producer's certificate.
    pub(crate) node: NodeId,
    /// The pages of the handoff under way are wrong.
    pub(crate) lies: bool,
    /// Faults of the connection.
    pub(crate) excuses: BTreeSet<Excuse>,
    /// Frames still to be replayed in the place of a missing end.
    pub(crate) recording: Vec<Frame>,
    /// Most bytes given to a state machine in one call.
    pub(crate) bite: usize,
}

/// The decoder's end.
#[derive(Debug)]
pub(crate) struct ReceiverEnd {
    pub(crate) core: DecoderCore,
    pub(crate) attempt: Option<Attempt>,
    /// Time up to which the producer has to acknowledge the end of a handoff that was given up.
    pub(crate) acknowledged_by_ms: Option<u64>,
    /// Time at which a byte last moved or a call restarted the idle timeout.
    pub(crate) moved_ms: u64,
    pub(crate) tick_at_ms: u64,
}

/// The producer's end.
#[derive(Debug)]
pub(crate) struct SenderEnd {
    pub(crate) core: ProducerCore,
    pub(crate) work: Option<Work>,
    pub(crate) moved_ms: u64,
    pub(crate) tick_at_ms: u64,
}

impl Lane {
    /// True once both ends are closed.
    pub(crate) fn is_over(&self) -> bool {
        self.receiver.is_none() && self.sender.is_none()
    }

    /// True when no handoff runs and no byte is in flight in either direction.
    pub(crate) fn rests(&self) -> bool {
        let (receiver, sender) = (self.receiver.as_ref(), self.sender.as_ref());
        let asked = receiver.map_or(&[][..], |end| end.core.output());
        let answered = sender.map_or(&[][..], |end| end.core.output());
        receiver.is_none_or(|end| end.attempt.is_none() && end.core.is_idle() && self.to_receiver.is_quiet(answered))
            && sender.is_none_or(|end| end.work.is_none() && self.to_sender.is_quiet(asked))
    }

    /// The key of the attempt under way.
    pub(crate) fn key_id(&self) -> Option<u32> {
        Some(self.receiver.as_ref()?.attempt.as_ref()?.asked.as_ref()?.request.key_id)
    }

    /// Adds a reason why the attempt under way may fail.
    pub(crate) fn excuse_attempt(&mut self, excuse: Excuse) {
        if let Some(attempt) = self.receiver.as_mut().and_then(|end| end.attempt.as_mut()) {
            attempt.excuses.insert(excuse);
        }
    }

    /// Delivers the bytes that are due in both directions, and replays a recording.
    pub(crate) fn deliver(&mut self, context: &mut Context) {
        self.to_sender.deliver(context.now_ms);
        self.to_receiver.deliver(context.now_ms);
        self.play(context);
    }

    /// Moves the receiver's output into its pipe, as far as there is room.
    pub(crate) fn carry_to_sender(&mut self, context: &mut Context) {
        let Some(end) = &mut self.receiver else { return };
        let bytes = some_of(end.core.output(), &self.to_sender, context);
        if bytes == 0 {
            return;
        }
        let (broken, struck) = self.to_sender.write(&end.core.output()[..bytes], context);
        end.core.output_sent(bytes, context.now_ms);
        end.moved_ms = context.now_ms;
        self.suffer(broken, struck, context);
    }

    /// Moves the sender's output into its pipe, as far as there is room.
    pub(crate) fn carry_to_receiver(&mut self, context: &mut Context) {
        let Some(end) = &mut self.sender else { return };
        let bytes = some_of(end.core.output(), &self.to_receiver, context);
        if bytes == 0 {
            return;
        }
        let (broken, struck) = self.to_receiver.write(&end.core.output()[..bytes], context);
        end.core.output_sent(bytes, context.now_ms);
        end.moved_ms = context.now_ms;
        self.suffer(broken, struck, context);
    }

    /// Breaks the connection, and loses any part of the bytes in flight.
    pub(crate) fn reset(&mut self, context: &mut Context) {
        self.to_sender.reset(&mut context.random);
        self.to_receiver.reset(&mut context.random);
        self.recording.clear();
    }

    /// Makes the connection half-open in both directions: bytes are dropped, and neither end sees a close.
    pub(crate) fn vanish(&mut self) {
        self.to_sender.vanish();
        self.to_receiver.vanish();
    }

    /// Checks the waiting time and the buffer size of each end against their limits. Each end comes with the time since
    /// which it is awake, or `None` while it is frozen.
    pub(crate) fn check_bounds(
        &self,
        (receiver, sender): (Option<u64>, Option<u64>),
        context: &Context,
    ) -> Result<(), Violation> {
        let slack_ms = 2 * TICK_MS + STEP_MS_MAX;
        let late = |end, since_ms: u64, limit_ms: u64| {
            let waited_ms = context.now_ms - since_ms.min(context.now_ms);
            let broken = Violation::NotNoticed { end, lane: self.id, waited_ms, limit_ms };
            if waited_ms > limit_ms { Err(broken) } else { Ok(()) }
        };
        let large = |end, bytes, max| {
            let broken = Violation::Memory { end, lane: self.id, bytes, max };
            if bytes > max { Err(broken) } else { Ok(()) }
        };
        // A forged header can announce the longest control message.
        let is_forged = self.excuses.contains(&Excuse::Network);
        let forged = if is_forged { usize::try_from(Limits::CONTROL_BYTES_MAX).unwrap_or(usize::MAX) } else { 0 };
        if let (Some(end), Some(awake_ms)) = (&self.receiver, receiver) {
            let waits = end.attempt.as_ref().is_none_or(|attempt| !attempt.awaits_ledger());
            if !end.core.is_idle() && !end.core.is_spent() {
                if waits {
                    late("receiver", end.moved_ms.max(awake_ms), context.stall_limit_ms + slack_ms)?;
                }
                if let Some(acknowledged_by_ms) = end.acknowledged_by_ms {
                    late("receiver", acknowledged_by_ms.max(awake_ms), slack_ms)?;
                }
            }
            if let Some(asked) = end.attempt.as_ref().and_then(|attempt| attempt.asked.as_ref()) {
                late("receiver", asked.due_ms.max(awake_ms), slack_ms)?;
            }
            large("receiver", end.core.buffer_bytes(), RECEIVER_BYTES_MAX + forged)?;
        }
        if let (Some(end), Some(awake_ms)) = (&self.sender, sender) {
            if let Some(work) = &end.work {
                let limit_ms = context.stall_limit_ms + slack_ms;
                late("sender", (work.began_ms + work.expires_in_ms()).max(awake_ms), limit_ms)?;
            }
            if !end.core.output().is_empty() && !end.core.is_closed() && end.work.is_some() {
                late("sender", end.moved_ms.max(awake_ms), context.stall_limit_ms + slack_ms)?;
            }
            large("sender", end.core.buffer_bytes(), sender_bytes_max(end) + forged)?;
        }
        Ok(())
    }

    /// Replays the next frame of a recording in the place of the missing end.
    fn play(&mut self, context: &mut Context) {
        if self.recording.is_empty() || context.once_in(3) {
            return;
        }
        let frame = self.recording.remove(0);
        let (broken, struck) = match (&self.receiver, &self.sender) {
            (Some(_), None) => self.to_receiver.write(&frame.0, context),
            (None, Some(_)) => self.to_sender.write(&frame.0, context),
            _ => (None, None),
        };
        self.suffer(broken, struck, context);
        if self.recording.is_empty() {
            self.to_receiver.finish();
            self.to_sender.finish();
        }
    }

    fn suffer(&mut self, broken: Option<Broken>, struck: Option<Excuse>, context: &mut Context) {
        self.excuses.extend(struck);
        match broken {
            None => {}
            // The other direction ends as well, somewhere; this one ended where the fault says.
            Some(Broken::Cut) => {
                self.to_sender.finish();
                self.to_receiver.finish();
                if context.random.bool() {
                    self.to_sender.lose_some(&mut context.random);
                }
            }
            Some(Broken::HalfOpen(crate::fault::Ways::One)) => {}
            Some(Broken::HalfOpen(crate::fault::Ways::Both)) => self.vanish(),
        }
    }
}

/// Binding of a lane: the same at both of its ends, different for each lane.
pub(crate) fn binding(lane: u32) -> LaneBinding {
    LaneBinding(*blake3::hash(&lane.to_le_bytes()).as_bytes())
}

/// Number of bytes of `output` taken now, at random up to the pipe's room.
fn some_of(output: &[u8], pipe: &Pipe, context: &mut Context) -> usize {
    let most = output.len().min(pipe.room());
    if most > 1 && context.once_in(4) { context.random.usize(1..=most) } else { most }
}

/// Buffer limit of a receiver: one incoming frame of pages, one outgoing request and control messages.
const RECEIVER_BYTES_MAX: usize = 16 << 10;

/// Buffer limit of a sender: twice the backlog plus one frame, because a buffer grows by doubling, plus control
/// messages.
fn sender_bytes_max(end: &SenderEnd) -> usize {
    2 * (BACKLOG_BYTES_MAX + end.core.frame_bytes_max() as usize) + (8 << 10)
}
