//! Faults of frames in transit: the frame that each one strikes, and its effect.

use muser_wire::{FrameKind, Limits};

use crate::attempt::Excuse;
use crate::context::Context;
use crate::coverage::Mark;
use crate::frame::{Frame, Place};

/// One of a connection's two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToSender,
    ToReceiver,
}

/// A fault that strikes one frame.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// Frame kind to strike; `None` for any.
    kind: Option<FrameKind>,
    /// Matching frames to let through before.
    skip: u32,
    pub(crate) what: What,
}

/// Effect of a fault on the frame.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// The connection breaks.
    Cut(Place),
    /// From there on bytes are dropped silently, in this direction or in both.
    HalfOpen(Place, Ways),
    /// A bit flips, and the checksums no longer match.
    Flip(Place),
    /// A bit flips, and the checksums are recomputed to match.
    Forge(Place),
    Repeat,
    /// The frame is sent twice; the copy of a `Pages` frame has the sequence number that is due.
    RepeatRenumbered,
    /// A `Pages` frame has no pages but the right sequence number.
    Empty,
    Drop,
    /// The frame is swapped with the next one.
    Exchange,
    /// The frame and everything behind it are delayed, ms.
    Late(u64),
    /// Other bytes are inserted in front of the frame.
    Insert(Inserted),
}

/// Directions in which bytes are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ways {
    One,
    Both,
}

/// Bytes inserted in front of a frame.
#[derive(Clone, Debug)]
pub(crate) enum Inserted {
    Pings(u32),
    LengthTooLarge,
    Noise,
    /// A well-formed frame of random kind and body.
    Strange,
    /// A frame of another handoff in the same direction.
    OfAnotherHandoff,
}

impl Fault {
    /// A fault for frames in `direction`.
    pub(crate) fn random(direction: Direction, random: &mut fastrand::Rng) -> Self {
        use FrameKind as Kind;
        let kinds: &[FrameKind] = match direction {
            Direction::ToSender => &[Kind::Hello, Kind::Request, Kind::Installed, Kind::Cancel, Kind::Pong],
            Direction::ToReceiver => &[
                Kind::HelloAck,
                Kind::Accept,
                Kind::Accept,
                Kind::Pages,
                Kind::Pages,
                Kind::Progress,
                Kind::Commit,
                Kind::Commit,
                Kind::Ping,
            ],
        };
        let kind = random.choice(kinds).copied().filter(|_| random.u8(0..8) > 0);
        let skip = if kind == Some(Kind::Hello) || kind == Some(Kind::HelloAck) { 0 } else { random.u32(0..4) / 2 };
        Self { kind, skip, what: What::random(random) }
    }

    /// True if the fault strikes a frame of `kind`; counts down [`Self::skip`] otherwise.
    pub(crate) fn strikes(&mut self, kind: FrameKind) -> bool {
        if self.kind.is_some_and(|wanted| wanted != kind) {
            return false;
        }
        let now = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        now
    }
}

impl What {
    fn random(random: &mut fastrand::Rng) -> Self {
        let place = Place::ALL[random.usize(0..Place::ALL.len())];
        match random.u8(0..23) {
            0..6 => Self::Cut(place),
            6 => Self::HalfOpen(place, Ways::One),
            7 => Self::HalfOpen(place, Ways::Both),
            8 | 9 => Self::Flip(place),
            10 | 11 => Self::Forge(place),
            12 => Self::Repeat,
            13 => Self::Drop,
            14 => Self::Exchange,
            15 => Self::Late(random.u64(1..900)),
            16 => Self::Insert(Inserted::Pings(random.u32(1..200))),
            17 => Self::Insert([Inserted::LengthTooLarge, Inserted::Noise][random.usize(0..2)].clone()),
            18 => Self::Insert(Inserted::Strange),
            19 => Self::Insert(Inserted::OfAnotherHandoff),
            20 => Self::RepeatRenumbered,
            21 => Self::Empty,
            _ => Self::Forge(Place::InBody),
        }
    }

    /// Excuse of an attempt that fails because of the fault.
    pub(crate) fn excuse(&self) -> Excuse {
        if matches!(self, Self::Flip(_) | Self::Insert(Inserted::LengthTooLarge)) {
            Excuse::Detected
        } else {
            Excuse::Network
        }
    }

    /// Counts the fault.
    pub(crate) fn mark(&self, direction: Direction, kind: FrameKind, context: &mut Context) {
        match self {
            Self::Cut(place) => mark_cut(*place, direction, kind, context),
            Self::HalfOpen(_, Ways::One) => context.mark(Mark::HalfOpenOneWay),
            Self::HalfOpen(_, Ways::Both) => context.mark(Mark::HalfOpenBothWays),
            Self::Flip(Place::InHeader | Place::HeaderEnd) => context.mark(Mark::FlippedHeader),
            Self::Flip(Place::InBody) => context.mark(Mark::FlippedBody),
            Self::Flip(_) => context.mark(Mark::FlippedDigest),
            Self::Forge(Place::InHeader | Place::HeaderEnd) => context.mark(Mark::ForgedHeader),
            Self::Forge(_) => context.mark(Mark::ForgedBody),
            Self::Repeat => context.mark(Mark::FrameRepeated),
            Self::RepeatRenumbered => context.mark(Mark::FrameRenumbered),
            Self::Empty => context.mark(Mark::FrameEmptied),
            Self::Drop => context.mark(Mark::FrameDropped),
            Self::Exchange => context.mark(Mark::FramesExchanged),
            Self::Late(_) => context.mark(Mark::FrameLate),
            Self::Insert(Inserted::Pings(_)) => context.mark(Mark::PingsWithoutEnd),
            Self::Insert(Inserted::LengthTooLarge) => context.mark(Mark::LengthTooLarge),
            Self::Insert(Inserted::Noise) => context.mark(Mark::Noise),
            Self::Insert(Inserted::Strange) => context.mark(Mark::StrangeFrame),
            Self::Insert(Inserted::OfAnotherHandoff) => context.mark(Mark::FrameOfAnotherHandoff),
        }
    }
}

impl Inserted {
    /// The bytes; `others` are frames of other handoffs.
    pub(crate) fn bytes(&self, others: &[Frame], random: &mut fastrand::Rng) -> Vec<u8> {
        let mut any = |count: usize| (0..count).map(|_| random.u8(..)).collect::<Vec<_>>();
        match self {
            Self::Pings(count) => (0..*count).flat_map(|_| Frame::new(FrameKind::Ping, &[7; 8]).0).collect(),
            Self::LengthTooLarge => {
                let mut bytes = any(80);
                let kind = FrameKind::ALL[usize::from(bytes[0]) % FrameKind::ALL.len()];
                let most = if kind == FrameKind::Pages { 1 << 24 } else { Limits::CONTROL_BYTES_MAX };
                bytes.splice(..0, Frame::header(kind, most + 1 + (u64::from(bytes[1]) << (bytes[2] % 48))));
                bytes
            }
            Self::Noise => any(100),
            Self::Strange => {
                let bytes = any(120);
                let kind = FrameKind::ALL[usize::from(bytes[0]) % FrameKind::ALL.len()];
                Frame::new(kind, &bytes[..usize::from(bytes[1]) % 120]).0
            }
            Self::OfAnotherHandoff => {
                others.get(random.usize(0..others.len().max(1))).map_or(Vec::new(), |frame| frame.0.clone())
            }
        }
    }
}

fn mark_cut(place: Place, direction: Direction, kind: FrameKind, context: &mut Context) {
    context.mark(match place {
        Place::InHeader => Mark::CutInHeader,
        Place::HeaderEnd => Mark::CutAtHeaderEnd,
        Place::InBody => Mark::CutInBody,
        Place::BodyEnd => Mark::CutAtBodyEnd,
        Place::InDigest => Mark::CutInDigest,
        Place::FrameEnd => Mark::CutAtFrameEnd,
    });
    context.mark(match direction {
        Direction::ToReceiver => Mark::CutTowardsReceiver,
        Direction::ToSender => Mark::CutTowardsSender,
    });
    match (kind, place) {
        (FrameKind::Hello | FrameKind::HelloAck, _) => context.mark(Mark::CutInHandshake),
        (FrameKind::Commit, Place::FrameEnd) | (FrameKind::Installed, _) => {
            context.mark(Mark::CutBetweenCommitAndInstalled);
        }
        (FrameKind::Commit, _) => context.mark(Mark::CutInCommit),
        _ => {}
    }
}
