//! One direction of a connection: bytes are delayed, arrive in pieces of any size, and are struck by faults.

use std::collections::VecDeque;
use std::ops::Range;

use crate::attempt::Excuse;
use crate::context::Context;
use crate::fault::{Direction, Fault, Ways, What};
use crate::frame::Frame;

/// Most frames recorded of one direction for a later replay.
const TAPE_FRAMES_MAX: usize = 200;

/// Bytes on their way from one end to the other.
#[derive(Debug)]
pub(crate) struct Pipe {
    direction: Direction,
    /// The written part of an incomplete frame.
    staging: Vec<u8>,
    flight: VecDeque<(u64, Vec<u8>)>,
    /// A frame to be delivered behind the next one.
    held_back: Option<Frame>,
    /// Delivered bytes not yet read.
    pub(crate) arrived: Vec<u8>,
    /// Bytes written and not yet delivered.
    on_the_way: usize,
    capacity: usize,
    delay_ms: Range<u64>,
    late_ms: u64,
    vanishing: bool,
    over: bool,
    faults: Vec<Fault>,
    /// The frames that were written.
    pub(crate) tape: Vec<Frame>,
    /// Frames of other handoffs, to be inserted by faults.
    pub(crate) others: Vec<Frame>,
}

/// Effect of a fault on the whole connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    Cut,
    HalfOpen(Ways),
}

impl Pipe {
    pub(crate) fn new(direction: Direction, faults: Vec<Fault>, random: &mut fastrand::Rng) -> Self {
        let slowest = random.u64(1..25);
        Self {
            direction,
            staging: Vec::new(),
            flight: VecDeque::new(),
            held_back: None,
            arrived: Vec::new(),
            on_the_way: 0,
            capacity: random.usize(1500..20_000),
            delay_ms: random.u64(0..slowest)..slowest,
            late_ms: 0,
            vanishing: false,
            over: false,
            faults,
            tape: Vec::new(),
            others: Vec::new(),
        }
    }

    /// Bytes that can be written now. A started frame can always be finished.
    pub(crate) fn room(&self) -> usize {
        let room = self.capacity.saturating_sub(self.on_the_way);
        if self.staging.is_empty() { room } else { room.max(64) }
    }

    /// Takes bytes from the writer. The second value is the excuse of a fault that struck.
    pub(crate) fn write(&mut self, bytes: &[u8], context: &mut Context) -> (Option<Broken>, Option<Excuse>) {
        self.on_the_way += bytes.len();
        let mut struck = None;
        if self.over || self.vanishing {
            return (None, struck);
        }
        self.staging.extend_from_slice(bytes);
        while let Some(frame) = Frame::split_off(&mut self.staging) {
            if self.tape.len() < TAPE_FRAMES_MAX {
                self.tape.push(frame.clone());
            }
            let kind = frame.kind();
            let Some(fault) = self.faults.iter_mut().position(|fault| fault.strikes(kind)) else {
                self.carry(frame, context);
                continue;
            };
            let fault = self.faults.swap_remove(fault);
            context.say(|| format!("network: {:?} at a {kind:?} frame {:?}", fault.what, self.direction));
            fault.what.mark(self.direction, kind, context);
            struck = struck.max(Some(fault.what.excuse()));
            if let Some(broken) = self.strike(&fault.what, frame, context) {
                self.staging.clear();
                return (Some(broken), struck);
            }
        }
        (None, struck)
    }

    /// Moves the bytes that are due at `now_ms` to the reader.
    pub(crate) fn deliver(&mut self, now_ms: u64) {
        while self.flight.front().is_some_and(|(at_ms, _)| *at_ms <= now_ms) {
            let Some((_, bytes)) = self.flight.pop_front() else { return };
            self.on_the_way -= bytes.len().min(self.on_the_way);
            self.arrived.extend_from_slice(&bytes);
        }
    }

    /// Closes the writing side; bytes in flight are still delivered.
    pub(crate) fn finish(&mut self) {
        // A half-open connection never delivers a close.
        self.over |= !self.vanishing;
    }

    /// Breaks the direction and loses any part of the bytes in flight.
    pub(crate) fn reset(&mut self, random: &mut fastrand::Rng) {
        self.lose_some(random);
        (self.over, self.vanishing) = (true, false);
    }

    /// Drops a random tail of the bytes in flight.
    pub(crate) fn lose_some(&mut self, random: &mut fastrand::Rng) {
        let mut left = random.usize(0..=self.flight.iter().map(|(_, bytes)| bytes.len()).sum());
        for (_, bytes) in &mut self.flight {
            bytes.truncate(left);
            left -= bytes.len();
        }
    }

    /// Removes all faults.
    pub(crate) fn calm(&mut self) {
        self.faults.clear();
    }

    /// Drops the bytes in flight and every byte written later.
    pub(crate) fn vanish(&mut self) {
        self.flight.clear();
        self.vanishing = !self.over;
    }

    /// True when no byte is in flight or unread, and `output` is empty or the pipe has no room for it.
    pub(crate) fn is_quiet(&self, output: &[u8]) -> bool {
        self.flight.is_empty() && self.arrived.is_empty() && (output.is_empty() || self.room() == 0)
    }

    /// True once the direction is closed and the reader has read every byte.
    pub(crate) fn is_drained(&self) -> bool {
        self.over && self.flight.is_empty() && self.arrived.is_empty()
    }

    fn carry(&mut self, frame: Frame, context: &mut Context) {
        self.fly(frame.0, context);
        if let Some(late) = self.held_back.take() {
            self.fly(late.0, context);
        }
    }

    fn fly(&mut self, bytes: Vec<u8>, context: &mut Context) {
        let at_ms = context.now_ms + context.random.u64(self.delay_ms.clone()) + self.late_ms;
        self.late_ms = 0;
        let at_ms = self.flight.back().map_or(at_ms, |(before_ms, _)| at_ms.max(*before_ms));
        self.flight.push_back((at_ms, bytes));
    }

    fn strike(&mut self, what: &What, mut frame: Frame, context: &mut Context) -> Option<Broken> {
        match what {
            What::Cut(place) => {
                frame.0.truncate(frame.offset(*place, &mut context.random));
                self.fly(frame.0, context);
                self.over = true;
                return Some(Broken::Cut);
            }
            What::HalfOpen(place, ways) => {
                frame.0.truncate(frame.offset(*place, &mut context.random));
                self.fly(frame.0, context);
                self.vanishing = true;
                return Some(Broken::HalfOpen(*ways));
            }
            What::Flip(place) => frame.flip(*place, &mut context.random),
            What::Forge(place) => frame.forge(*place, &mut context.random),
            What::Repeat => self.fly(frame.0.clone(), context),
            What::RepeatRenumbered => {
                self.fly(frame.0.clone(), context);
                frame.renumber();
            }
            What::Empty => frame.empty(),
            What::Drop => {
                self.on_the_way -= frame.0.len().min(self.on_the_way);
                return None;
            }
            What::Exchange => {
                self.held_back = Some(frame);
                return None;
            }
            What::Late(late_ms) => self.late_ms = *late_ms,
            What::Insert(inserted) => {
                let bytes = inserted.bytes(&self.others, &mut context.random);
                self.fly(bytes, context);
            }
        }
        self.carry(frame, context);
        None
    }
}
