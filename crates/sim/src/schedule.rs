//! Timed events of processes, disks, clocks and keys in a world.

use muser_wire::KeyState;

use crate::disk::{DiskFault, Operation};

/// Event of a world, at one node or at all.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A decoder receives a prompt.
    Prompt {
        decoder: usize,
    },
    /// A producer is killed and restarted after a downtime, possibly with another identity or other keys.
    KillProducer {
        producer: usize,
        down_ms: u64,
        other: Option<Other>,
    },
    /// A process is frozen for a time.
    FreezeProducer {
        producer: usize,
        frozen_ms: u64,
    },
    FreezeDecoder {
        decoder: usize,
        frozen_ms: u64,
    },
    /// A decoder restarts; with a power loss, unsynced writes may be lost.
    RestartDecoder {
        decoder: usize,
        with_power: bool,
    },
    /// An operation of a decoder's disk fails soon.
    FailDisk {
        decoder: usize,
        fault: DiskFault,
    },
    /// A decoder's clock is set back.
    SetClockBack {
        decoder: usize,
        back_ms: u64,
    },
    /// A decoder's random numbers repeat, as after a restored snapshot.
    RepeatNonces {
        decoder: usize,
    },
    /// A decoder's memory, but not its disk, is restored from its start; an attacker replays the answers of that time.
    RestoreSnapshot {
        decoder: usize,
    },
    /// A node sets the state of a key.
    Key {
        node: NodeIndex,
        id: u32,
        state: KeyState,
    },
    /// An attacker replays a recorded session to a decoder or to a producer.
    Replay {
        to: Replayed,
    },
}

/// Difference between a restarted producer and the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    /// Another component of the identity, by its index.
    Component(usize),
    /// Keys with the right ids and other bytes.
    KeyBytes,
}

/// One of the world's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeIndex {
    Decoder(usize),
    Producer(usize),
}

/// Target of a replayed session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replayed {
    ToDecoder(usize),
    ToProducer(usize),
}

/// Fault level of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Nothing goes wrong.
    Calm,
    /// The network misbehaves.
    Network,
    /// Network, processes, disks, clocks and keys misbehave.
    Storm,
}

impl Weather {
    pub(crate) fn random(random: &mut fastrand::Rng) -> Self {
        match random.u8(0..16) {
            0..2 => Self::Calm,
            2..6 => Self::Network,
            _ => Self::Storm,
        }
    }
}

/// Draws the events up to `end_ms`, in order of time, for a world of so many decoders and producers.
pub(crate) fn draw(
    weather: Weather,
    (decoders, producers): (usize, usize),
    end_ms: u64,
    random: &mut fastrand::Rng,
) -> Vec<(u64, Event)> {
    let mut events: Vec<(u64, Event)> = (0..random.usize(4..20))
        .map(|_| (random.u64(0..end_ms * 3 / 4), Event::Prompt { decoder: random.usize(0..decoders) }))
        .collect();
    if weather == Weather::Storm {
        for _ in 0..random.usize(1..8) {
            events.push((random.u64(0..end_ms), one(decoders, producers, random)));
        }
        if random.u8(0..3) == 0 {
            rotate((decoders, producers), end_ms, random, &mut events);
        }
        if random.u8(0..8) == 0 {
            lie(random.usize(0..decoders), end_ms, random, &mut events);
        }
    }
    events.sort_by_key(|(at_ms, _)| *at_ms);
    events
}

fn one(decoders: usize, producers: usize, random: &mut fastrand::Rng) -> Event {
    let (decoder, producer) = (random.usize(0..decoders), random.usize(0..producers));
    match random.u8(0..20) {
        0 | 1 => Event::KillProducer { producer, down_ms: random.u64(0..400), other: None },
        2 => {
            let other = Some(Other::Component(random.usize(0..5)));
            Event::KillProducer { producer, down_ms: random.u64(0..100), other }
        }
        3 => Event::KillProducer { producer, down_ms: random.u64(0..100), other: Some(Other::KeyBytes) },
        4 | 5 => Event::FreezeProducer { producer, frozen_ms: random.u64(10..1500) },
        6 => Event::FreezeDecoder { decoder, frozen_ms: random.u64(10..1500) },
        7 | 8 => Event::RestartDecoder { decoder, with_power: false },
        9 | 10 => Event::RestartDecoder { decoder, with_power: true },
        11..14 => {
            let operations = [None, Some(Operation::Replace), Some(Operation::Sync), Some(Operation::Read)];
            let operation = operations[random.usize(0..operations.len())];
            let after = if operation.is_some() { 0 } else { random.u32(0..5) };
            Event::FailDisk { decoder, fault: DiskFault { operation, after, how: random.u32(..) } }
        }
        14 => Event::SetClockBack { decoder, back_ms: random.u64(0..10_000) },
        15 => Event::RepeatNonces { decoder },
        16 | 17 => Event::RestoreSnapshot { decoder },
        18 => Event::Replay { to: Replayed::ToDecoder(decoder) },
        _ => Event::Replay { to: Replayed::ToProducer(producer) },
    }
}

/// Adds a lying disk: a failed sync drops dirty bytes as clean, the process restarts and goes on, then the power fails.
fn lie(decoder: usize, end_ms: u64, random: &mut fastrand::Rng, events: &mut Vec<(u64, Event)>) {
    let start_ms = random.u64(0..end_ms / 2);
    let fault = DiskFault { operation: Some(Operation::Sync), after: 0, how: 0 };
    events.push((start_ms, Event::FailDisk { decoder, fault }));
    let again_ms = start_ms + random.u64(100..end_ms / 4);
    events.push((again_ms, Event::RestartDecoder { decoder, with_power: false }));
    let lost_ms = again_ms + random.u64(100..end_ms / 4);
    events.push((lost_ms, Event::RestartDecoder { decoder, with_power: true }));
}

/// Adds a key rotation: a second key is distributed and becomes active, and the first one is revoked; each node takes
/// part at its own time.
fn rotate(
    (decoders, producers): (usize, usize),
    end_ms: u64,
    random: &mut fastrand::Rng,
    events: &mut Vec<(u64, Event)>,
) {
    let nodes = (0..decoders).map(NodeIndex::Decoder).chain((0..producers).map(NodeIndex::Producer));
    let (spread_ms, active_ms, revoked_ms) = (end_ms / 6, end_ms / 5, end_ms / 3);
    for node in nodes {
        let mut after = |from_ms: u64| from_ms + random.u64(0..end_ms / 4);
        events.push((after(spread_ms), Event::Key { node, id: 2, state: KeyState::VerifyOnly }));
        if matches!(node, NodeIndex::Decoder(_)) {
            events.push((after(active_ms), Event::Key { node, id: 2, state: KeyState::Active }));
        }
        events.push((after(revoked_ms), Event::Key { node, id: 1, state: KeyState::Revoked }));
    }
}
