//! Turns: which of the waiting requests starts next, and whose place it gets.
//!
//! Places go to clients in turn, then to the requests of a client, then to the answers of a request. The next is the client
//! with the fewest running sequences, of several the one whose turn is longest ago; within the client it is the same with
//! its requests. So a client that fills the queue makes another wait for a place at most, and not even for that while it
//! has two more than the other: then it gives up the one that it got last. A place that only differs by one goes over once
//! [`TURN_TOKENS`] tokens came of it. A sequence that gives up its place keeps its pages, as long as no running one needs
//! their memory, and goes on where it was: nothing is computed twice, and no bit depends on it.

use muser_kv::SequenceCache;

use super::Engine;
use super::error::SubmitError;
use super::event::{OnEvent, RequestEvent};
use super::scope::Flow;
use super::sequence::{Parked, Running, Sequence};

/// Tokens of a sequence after which its place may go to a client that has fewer.
const TURN_TOKENS: usize = 64;

/// Keys in the order of their last turns: those that have waiting or running sequences.
#[derive(Debug)]
pub(super) struct Rotation<K> {
    last_turns: Vec<(K, u64)>,
    clock: u64,
}

impl<K: Copy + PartialEq> Rotation<K> {
    pub(super) fn new() -> Self {
        Self { last_turns: Vec::new(), clock: 0 }
    }

    /// Lets a key take part; a new one is the last.
    fn join(&mut self, key: K) {
        if !self.last_turns.iter().any(|(known, _)| *known == key) {
            self.clock += 1;
            self.last_turns.push((key, self.clock));
        }
    }

    /// Moves a key to the end of the rotation: it has had its turn.
    fn serve(&mut self, key: K) {
        self.last_turns.retain(|(known, _)| *known != key);
        self.join(key);
    }

    fn last_turn(&self, key: K) -> u64 {
        self.last_turns.iter().find(|(known, _)| *known == key).map_or(u64::MAX, |(_, turn)| *turn)
    }

    fn retain(&mut self, is_there: impl Fn(K) -> bool) {
        self.last_turns.retain(|(key, _)| is_there(*key));
    }
}

impl Engine {
    /// Refuses a request that finds the queue full. A client with less than an equal share of it still gets a place: it need
    /// not wait because others fill it.
    pub(super) fn check_queue(&self, flow: Flow) -> Result<(), SubmitError> {
        let (waiting, max) = (self.waiting.len(), self.settings.waiting_max);
        if waiting < max {
            return Ok(());
        }
        let mut clients: Vec<u64> = self.waiting.iter().map(|sequence| sequence.flow.client).collect();
        let own = clients.iter().filter(|client| **client == flow.client).count();
        clients.push(flow.client);
        clients.sort_unstable();
        clients.dedup();
        if own < max / clients.len() { Ok(()) } else { Err(SubmitError::QueueFull { waiting, max }) }
    }

    /// The last of those that wait.
    pub(super) fn queue(&mut self, sequence: Sequence) {
        self.join(sequence.flow);
        self.waiting.push_back(sequence);
    }

    /// The first of its request's answers to have the next turn.
    pub(super) fn queue_again(&mut self, sequence: Sequence) {
        self.join(sequence.flow);
        self.waiting.push_front(sequence);
    }

    fn join(&mut self, flow: Flow) {
        let Self { waiting, running, clients, groups, .. } = self;
        let flows = || waiting.iter().map(|s| s.flow).chain(running.iter().map(|r| r.sequence.flow));
        clients.retain(|client| flows().any(|flow| flow.client == client));
        groups.retain(|group| flows().any(|flow| flow == group));
        clients.join(flow.client);
        groups.join(flow);
    }

    /// The waiting sequences, by index, in the order in which they are to start.
    pub(super) fn in_turn(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.waiting.len()).collect();
        order.sort_by_cached_key(|&index| {
            let flow = self.waiting[index].flow;
            let client = (self.running_of(|other| other.client == flow.client), self.clients.last_turn(flow.client));
            (client, (self.running_of(|other| other == flow), self.groups.last_turn(flow)), index)
        });
        order
    }

    /// A sequence of this flow starts.
    pub(super) fn take_turn(&mut self, flow: Flow) {
        self.clients.serve(flow.client);
        self.groups.serve(flow);
    }

    /// The running sequence, by index, whose place is to go to one of `flow`, if any.
    pub(super) fn to_pause_for(&self, flow: Flow) -> Option<usize> {
        let own = self.running_of(|other| other.client == flow.client);
        let count = |running: &Running| self.running_of(|other| other.client == running.sequence.flow.client);
        let others = || self.running.iter().enumerate().filter(|(_, r)| r.sequence.flow.client != flow.client);
        if let Some((index, most)) = others().map(|(index, r)| (index, count(r))).max_by_key(|(index, n)| (*n, *index))
            && most >= own + 2
        {
            return Some(index);
        }
        let had_its_turn =
            |running: &Running| running.decodes() && running.sequence.generated() >= running.turn_began + TURN_TOKENS;
        if let Some((index, _)) = others().find(|(_, r)| count(r) > own && had_its_turn(r)) {
            return Some(index);
        }
        let answers = |of: Flow| self.running_of(|other| other == of);
        let siblings = self.running.iter().enumerate().filter(|(_, r)| r.sequence.flow.client == flow.client);
        let (index, most) =
            siblings.map(|(index, r)| (index, answers(r.sequence.flow))).max_by_key(|(index, n)| (*n, *index))?;
        (most >= answers(flow) + 2).then_some(index)
    }

    /// Takes a place away; the pages stay.
    pub(super) fn pause(&mut self, index: usize, on_event: &mut OnEvent<'_>) {
        let Running { mut sequence, cache, shared_pages, landmark, .. } = self.running.remove(index);
        sequence.parked = Some(Box::new(Parked { cache, shared_pages, landmark }));
        on_event(sequence.id, RequestEvent::Paused);
        self.queue_again(sequence);
    }

    /// Gives up the pages of a waiting sequence other than `but`, the last one in the queue. False if none has any.
    pub(super) fn give_up_parked(&mut self, but: Option<usize>, on_event: &mut OnEvent<'_>) -> bool {
        let parked = |(index, sequence): &(usize, &mut Sequence)| Some(*index) != but && sequence.parked.is_some();
        let Some((_, sequence)) = self.waiting.iter_mut().enumerate().rfind(parked) else { return false };
        let cache: Option<SequenceCache> = sequence.parked.take().map(|parked| parked.cache);
        if let Some(cache) = cache {
            let rows = cache.rows();
            Self::keep_prefix(&mut self.prefixes, &self.settings.identity, sequence, &cache, rows);
        }
        sequence.preemptions += 1;
        on_event(sequence.id, RequestEvent::Preempted);
        true
    }

    fn running_of(&self, is_meant: impl Fn(Flow) -> bool) -> usize {
        self.running.iter().filter(|running| is_meant(running.sequence.flow)).count()
    }
}
