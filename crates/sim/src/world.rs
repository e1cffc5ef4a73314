//! A world: decoders and producers, the lanes between them, and the time that passes.
//!
//! First the events and faults of the seed happen. Then the world recovers: frozen, killed and broken parts work again,
//! and all work under way must end. At last every decoder requests a new prompt from every producer, which must work.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use muser_kv::Realm;
use muser_trust::identity::NodeId;
use muser_wire::{Identity, KeyState};

use crate::attempt::{Attempt, End, Excuse, Job};
use crate::change::{Armed, SPARE_KEYS, Step};
use crate::context::{Context, STEP_MS_MAX, TICK_MS};
use crate::coverage::{Coverage, Mark};
use crate::decoder::{Choice, Decoder, EXPIRES_IN_MS};
use crate::fault::{Direction, Fault};
use crate::frame::Frame;
use crate::lane::Lane;
use crate::pipe::Pipe;
use crate::producer::Producer;
use crate::schedule::{self, Event, Weather};
use crate::shape::Shape;
use crate::violation::Violation;

/// Duration of the fault phase.
const STORM_MS: u64 = 2500;
/// Most recorded sessions kept for replay.
pub(crate) const RECORDINGS_MAX: usize = 4;

/// Level of detail of a story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    /// Only counts and the violation are kept.
    Silent,
    /// Every step is kept.
    StepByStep,
}

/// Result of one seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Story {
    /// Counts of the events.
    pub coverage: Coverage,
    /// The events line by line; empty under [`Telling::Silent`].
    pub lines: Vec<String>,
    /// The first broken invariant, if any.
    pub violation: Option<Violation>,
}

/// Plays the world of a seed. The same seed gives the same story.
pub fn run(seed: u64, telling: Telling) -> Story {
    let mut random = fastrand::Rng::with_seed(seed);
    let weather = Weather::random(&mut random);
    let shape = Shape::random(&mut random);
    let context = Context {
        now_ms: 0,
        shape,
        stall_limit_ms: random.u64(250..600),
        stormy: weather == Weather::Storm,
        random,
        trust_random: fastrand::Rng::with_seed(!seed),
        // A quarter of the seeds, so that the stories of the others stay the same.
        trust_changes: seed % 4 == 3,
        liars: BTreeSet::new(),
        coverage: Coverage::default(),
        accepted: BTreeMap::new(),
        story: (telling == Telling::StepByStep).then(Vec::new),
    };
    let mut world = World::new(weather, context);
    let played = catch_unwind(AssertUnwindSafe(|| world.play()));
    let violation = match played {
        Ok(played) => played.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Some(Violation::Panic(text.unwrap_or_default()))
        }
    };
    if let Some(violation) = &violation {
        world.context.say(|| format!("BROKEN: {violation}"));
    }
    Story { coverage: world.context.coverage, lines: world.context.story.unwrap_or_default(), violation }
}

pub(crate) struct World {
    pub(crate) context: Context,
    weather: Weather,
    pub(crate) decoders: Vec<Decoder>,
    pub(crate) producers: Vec<Producer>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) identity: Identity,
    events: Vec<(u64, Event)>,
    prompts: Vec<Vec<u32>>,
    next_lane: u32,
    next_job: u32,
    /// Frames of earlier sessions, by direction.
    pub(crate) recordings: Vec<(Vec<Frame>, Vec<Frame>)>,
    /// Decoders whose next lane is answered by a recording, with the index of the recording.
    pub(crate) ambushed: BTreeMap<usize, usize>,
}

impl World {
    fn new(weather: Weather, mut context: Context) -> Self {
        let (decoders, producers) = (context.random.usize(1..3), context.random.usize(1..4));
        let identity = Identity([context.bytes(), context.bytes(), context.bytes(), context.bytes(), context.bytes()]);
        let mut events = schedule::draw(weather, (decoders, producers), STORM_MS, &mut context.random);
        events.reverse();
        let prompts = (0..3).map(|_| (0..60).map(|_| context.random.u32(0..1000)).collect()).collect();
        let mut world = Self {
            weather,
            decoders: (0..decoders).map(|index| Decoder::new(index, producers, identity, &mut context)).collect(),
            producers: (0..producers).map(|_| Producer::new(identity, &mut context)).collect(),
            lanes: Vec::new(),
            identity,
            events,
            prompts,
            next_lane: 0,
            next_job: 0,
            recordings: Vec::new(),
            ambushed: BTreeMap::new(),
            context,
        };
        world.decoders.iter_mut().for_each(|decoder| decoder.keys.set(1, KeyState::Active));
        world.producers.iter_mut().for_each(|producer| producer.keys.set(1, KeyState::VerifyOnly));
        if world.context.trust_changes {
            world.arm();
        }
        world
    }

    /// Draws the changes of trust and the steps at which they fire.
    fn arm(&mut self) {
        let (producers, context) = (self.producers.len(), &mut self.context);
        let is_common = context.trust_random.u8(0..3) == 0;
        for decoder in &mut self.decoders {
            // In a part of the worlds decoders share one realm, as with --share-prefixes.
            if !is_common {
                let number = 1000 * (1 + u32::try_from(decoder.index).unwrap_or(0));
                decoder.realm = (number, Realm::from_secret(context.trust_bytes()));
            }
            decoder.armed = Armed::some(producers, &mut context.trust_random);
        }
        for producer in &mut self.producers {
            SPARE_KEYS.for_each(|key| producer.keys.set(key, KeyState::VerifyOnly));
            if context.trust_random.bool() {
                producer.keep_apart();
            }
        }
    }

    fn play(&mut self) -> Result<(), Violation> {
        let (weather, shape) = (self.weather, self.context.shape.clone());
        self.context.say(|| format!("{weather:?} weather, {shape:?}"));
        for decoder in &mut self.decoders {
            decoder.open_ledger(&mut self.context)?;
        }
        while self.context.now_ms < STORM_MS {
            self.step()?;
        }
        self.calm_down()?;
        let patience_ms = u64::from(EXPIRES_IN_MS) + 2 * self.context.stall_limit_ms + 1500;
        self.step_until(patience_ms, Self::is_settled)?;
        self.probe()?;
        self.lanes.iter_mut().for_each(|lane| {
            lane.receiver = None;
            lane.reset(&mut self.context);
        });
        self.step_until(2 * STEP_MS_MAX + TICK_MS, |world| world.lanes.is_empty())?;
        let shape = &self.context.shape;
        let is_whole =
            |decoder: &&Decoder| decoder.stores.values().all(|store| store.is_whole(shape, &decoder.trust.log.lying));
        match self.decoders.iter().find(|decoder| !is_whole(decoder)) {
            Some(decoder) => Err(Violation::NoAnswer { decoder: decoder.index, job: self.next_job }),
            None => Ok(()),
        }
    }

    /// Asks every producer for something new, through every decoder.
    fn probe(&mut self) -> Result<(), Violation> {
        for decoder in 0..self.decoders.len() {
            for producer in 0..self.producers.len() {
                // Long enough for every entry of a ledger to be forgotten, so that there is room.
                self.context.now_ms += u64::from(EXPIRES_IN_MS) + 2000;
                let before = self.context.coverage.of(Mark::Completed);
                let mut job = self.new_job(decoder);
                job.tokens = (0..self.context.random.u32(1..60)).map(|token| token + 5000 * self.next_job).collect();
                job.only = Some(producer);
                self.decoders[decoder].waiting.push(job);
                let patience_ms = 6 * self.context.stall_limit_ms + 4000;
                let asked = self.step_until(patience_ms, Self::is_settled);
                if self.context.coverage.of(Mark::Completed) == before {
                    let end = self.decoders[decoder].last_end.clone();
                    return Err(Violation::NotUsedAgain { decoder, producer, end });
                }
                asked?;
                self.context.mark(Mark::RecoveredPeerUsed);
            }
        }
        Ok(())
    }

    fn step_until(&mut self, patience_ms: u64, is_done: impl Fn(&Self) -> bool) -> Result<(), Violation> {
        let end_ms = self.context.now_ms + patience_ms;
        while !is_done(self) {
            if self.context.now_ms > end_ms {
                let waiting = self.decoders.iter().map(|decoder| decoder.waiting.len()).sum::<usize>();
                let lanes = self.lanes.len();
                let what = format!("{waiting} requests wait, {lanes} lanes are open");
                return Err(Violation::NotSettled { now_ms: self.context.now_ms, what });
            }
            self.step()?;
        }
        Ok(())
    }

    /// True when no job waits and all ends are idle or closed.
    fn is_settled(&self) -> bool {
        self.decoders.iter().all(|decoder| decoder.waiting.is_empty() && decoder.brought.is_empty())
            && self.lanes.iter().all(Lane::rests)
    }

    /// Advances the clock by a random step and drives every part of the world.
    fn step(&mut self) -> Result<(), Violation> {
        self.context.now_ms += self.context.random.u64(1..=STEP_MS_MAX);
        while self.events.last().is_some_and(|(at_ms, _)| *at_ms <= self.context.now_ms) {
            let Some((_, event)) = self.events.pop() else { break };
            self.happen(event)?;
        }
        for decoder in 0..self.decoders.len() {
            if self.decoders[decoder].frozen_until_ms <= self.context.now_ms {
                self.take_turns(decoder)?;
                self.take_up(decoder)?;
            }
        }
        let mut order: Vec<usize> = (0..self.lanes.len()).collect();
        self.context.random.shuffle(&mut order);
        for place in order {
            self.drive(place)?;
        }
        for decoder in 0..self.decoders.len() {
            if self.decoders[decoder].disk.take_power_failure() {
                self.restart_decoder(decoder, true)?;
            }
        }
        let Self { lanes, recordings, .. } = self;
        lanes.retain_mut(|lane| {
            if lane.is_over() && recordings.len() < RECORDINGS_MAX {
                let taken = (std::mem::take(&mut lane.to_sender.tape), std::mem::take(&mut lane.to_receiver.tape));
                if taken.0.len() > 1 && taken.1.len() > 1 {
                    recordings.push(taken);
                }
            }
            !lane.is_over()
        });
        Ok(())
    }

    fn drive(&mut self, place: usize) -> Result<(), Violation> {
        let (decoder, producer) = (self.lanes[place].decoder, self.lanes[place].producer);
        let of_producer = |lane: &&Lane| lane.producer == producer;
        let works = |lane: &Lane| lane.sender.as_ref().is_some_and(|end| end.work.is_some());
        let busy = self.lanes.iter().filter(of_producer).filter(|lane| works(lane)).count();
        let (lane, context) = (&mut self.lanes[place], &mut self.context);
        let since = |frozen_until_ms| Some(frozen_until_ms).filter(|awake_ms| *awake_ms <= context.now_ms);
        let awake_decoder = since(self.decoders[decoder].frozen_until_ms);
        let awake_producer = since(self.producers[producer].frozen_until_ms);
        lane.deliver(context);
        if awake_decoder.is_some() {
            self.decoders[decoder].drive(lane, context)?;
            self.fire(decoder);
        }
        let (lane, context) = (&mut self.lanes[place], &mut self.context);
        if awake_producer.is_some() {
            self.producers[producer].drive(lane, busy, context)?;
        }
        lane.check_bounds((awake_decoder, awake_producer), context)
    }

    /// Runs a decoder's engine. A node that its audit condemns loses its trust on every lane.
    fn take_turns(&mut self, decoder: usize) -> Result<(), Violation> {
        for node in self.decoders[decoder].take_turns(&mut self.context)? {
            let lanes = self.lanes.iter_mut().filter(|lane| lane.decoder == decoder && lane.node == node);
            lanes.for_each(|lane| lane.excuses.extend([Excuse::Trust]));
        }
        self.fire(decoder);
        Ok(())
    }

    /// Gives a decoder's waiting jobs to lanes.
    fn take_up(&mut self, decoder: usize) -> Result<(), Violation> {
        if self.context.once_in(150) {
            self.decoders[decoder].forget_old(&mut self.context);
        }
        for job in std::mem::take(&mut self.decoders[decoder].waiting) {
            let context = &mut self.context;
            if job.gone_at_ms.is_some_and(|gone_at_ms| gone_at_ms <= context.now_ms) {
                context.mark(Mark::ClientGone);
                continue;
            }
            let choice = self.decoders[decoder].choose(&job, &self.lanes, context);
            if context.trust_changes && !matches!(choice, Choice::Wait) {
                self.decoders[decoder].take_back_lost(context);
            }
            match choice {
                Choice::Wait => self.decoders[decoder].waiting.push(job),
                Choice::Fallback => self.decoders[decoder].fall_back(&job, context)?,
                Choice::Connect(producer) => self.connect(decoder, producer, job)?,
                Choice::Lane(place) => {
                    let lane = &mut self.lanes[place];
                    if let Some(end) = &mut lane.receiver {
                        end.attempt = Some(Attempt::new(job));
                    }
                    self.decoders[decoder].ask(lane, context)?;
                    self.fire(decoder);
                }
            }
        }
        Ok(())
    }

    fn connect(&mut self, decoder: usize, producer: usize, job: Job) -> Result<(), Violation> {
        let context = &mut self.context;
        let attempt = Attempt::new(job);
        if self.producers[producer].down_until_ms > context.now_ms {
            let end = (End::Unreachable, BTreeSet::from([Excuse::Process]));
            return self.decoders[decoder].finish(attempt, producer, end, context);
        }
        let node = NodeId(self.producers[producer].node.node_id);
        if context.trust_changes && self.decoders[decoder].judge_anew(node, None, context).is_err() {
            context.mark(Mark::UntrustedWhenConnecting);
            let end = (End::Untrusted, BTreeSet::from([Excuse::Trust]));
            return self.decoders[decoder].finish(attempt, producer, end, context);
        }
        let mut faults = [Vec::new(), Vec::new()];
        let mut excuses = BTreeSet::new();
        if self.weather != Weather::Calm && context.now_ms < STORM_MS {
            for _ in 0..context.random.u32(0..5) / 2 {
                let (way, direction) =
                    if context.random.bool() { (0, Direction::ToSender) } else { (1, Direction::ToReceiver) };
                faults[way].push(Fault::random(direction, &mut context.random));
            }
        }
        if self.producers[producer].frozen_until_ms > context.now_ms {
            excuses.insert(Excuse::Process);
        }
        if self.producers[producer].node.identity != self.decoders[decoder].node.identity {
            excuses.insert(Excuse::Identity);
        }
        if self.producers[producer].keys.has_other_bytes {
            excuses.insert(Excuse::KeyBytes);
        }
        let [up, down] = faults;
        let mut to_sender = Pipe::new(Direction::ToSender, up, &mut context.random);
        let mut to_receiver = Pipe::new(Direction::ToReceiver, down, &mut context.random);
        let ambush = self.ambushed.remove(&decoder);
        let recording = ambush.unwrap_or(context.random.usize(0..RECORDINGS_MAX));
        let mut played = Vec::new();
        if let Some((up, down)) = self.recordings.get(recording) {
            (to_sender.others, to_receiver.others) = (up.clone(), down.clone());
            if ambush.is_some() {
                context.mark(Mark::SessionReplayedToReceiver);
                excuses.insert(Excuse::Recording);
                played = down.clone();
            }
        }
        let id = self.next_lane;
        self.next_lane += 1;
        let peer = self.decoders[decoder].node.node_id;
        let sender = played.is_empty().then(|| self.producers[producer].accept(id, peer, context));
        let receiver = Some(self.decoders[decoder].connect(attempt, id, node, context));
        context.say(|| format!("lane {id}: decoder {decoder} connects to producer {producer}"));
        let bite = [1, 7, 100, 10_000][context.random.usize(0..4)];
        let recording = played;
        self.lanes.push(Lane {
            id,
            decoder,
            producer,
            receiver,
            sender,
            to_sender,
            to_receiver,
            node,
            lies: false,
            excuses,
            recording,
            bite,
        });
        self.decoders[decoder].reach(Step::Connected, producer);
        self.fire(decoder);
        Ok(())
    }

    /// A session that somebody recorded is played to a producer.
    pub(crate) fn replay_to(&mut self, producer: usize) {
        let context = &mut self.context;
        let Some((up, _)) = self.recordings.first() else { return };
        if self.producers[producer].down_until_ms > context.now_ms {
            return;
        }
        context.mark(Mark::SessionReplayedToSender);
        let (id, recording) = (self.next_lane, up.clone());
        self.next_lane += 1;
        let lane = Lane {
            id,
            decoder: 0,
            producer,
            receiver: None,
            sender: Some(self.producers[producer].accept(id, self.decoders[0].node.node_id, context)),
            to_sender: Pipe::new(Direction::ToSender, Vec::new(), &mut context.random),
            to_receiver: Pipe::new(Direction::ToReceiver, Vec::new(), &mut context.random),
            node: NodeId(self.producers[producer].node.node_id),
            lies: false,
            excuses: BTreeSet::from([Excuse::Recording]),
            recording,
            bite: 100,
        };
        self.lanes.push(lane);
    }

    /// A prompt for a decoder.
    pub(crate) fn new_job(&mut self, decoder: usize) -> Job {
        let realm = self.decoders[decoder].realm;
        let random = &mut self.context.random;
        let base = &self.prompts[random.usize(0..self.prompts.len())];
        let mut tokens = base[..random.usize(1..=base.len())].to_vec();
        if random.bool() {
            tokens.extend((0..random.usize(0..10)).map(|_| random.u32(0..1000)));
        }
        let leaves = self.context.stormy && random.u8(0..8) == 0;
        let gone_at_ms = leaves.then(|| self.context.now_ms + random.u64(0..300));
        self.next_job += 1;
        Job { id: self.next_job, tokens, tried: BTreeSet::new(), only: None, gone_at_ms, realm }
    }
}
