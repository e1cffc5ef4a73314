//! Effects of a schedule's events on a world, and the recovery after them.

use muser_trust::identity::NodeId;
use muser_wire::KeyState;

use crate::attempt::{End, Excuse};
use crate::coverage::Mark;
use crate::disk::Disk;
use crate::keys::KeyTable;
use crate::producer::Producer;
use crate::schedule::{Event, NodeIndex, Other, Replayed};
use crate::violation::Violation;
use crate::world::{RECORDINGS_MAX, World};

impl World {
    /// Applies an event.
    pub(crate) fn happen(&mut self, event: Event) -> Result<(), Violation> {
        self.context.say(|| format!("{event:?}"));
        let now_ms = self.context.now_ms;
        match event {
            Event::Prompt { decoder } => {
                let job = self.new_job(decoder);
                self.decoders[decoder].waiting.push(job);
            }
            Event::KillProducer { producer, down_ms, other } => self.kill_producer(producer, down_ms, other),
            Event::FreezeProducer { producer, frozen_ms } => {
                self.context.mark(Mark::ProducerFrozen);
                self.producers[producer].frozen_until_ms = now_ms + frozen_ms;
                self.excuse(NodeIndex::Producer(producer), Excuse::Process);
            }
            Event::FreezeDecoder { decoder, frozen_ms } => {
                self.context.mark(Mark::DecoderFrozen);
                self.decoders[decoder].frozen_until_ms = now_ms + frozen_ms;
                self.excuse(NodeIndex::Decoder(decoder), Excuse::Process);
            }
            Event::RestartDecoder { decoder, with_power } => self.restart_decoder(decoder, with_power)?,
            Event::FailDisk { decoder, fault } => self.decoders[decoder].disk.fail(fault),
            Event::SetClockBack { decoder, back_ms } => {
                self.context.mark(Mark::ClockSetBack);
                self.decoders[decoder].clock_back_ms += back_ms;
            }
            Event::RepeatNonces { decoder } => {
                let decoder = &mut self.decoders[decoder];
                decoder.nonces = decoder.nonces_before.clone();
            }
            Event::RestoreSnapshot { decoder } => self.restore_snapshot(decoder)?,
            Event::Key { node, id, state } => self.set_key(node, id, state),
            Event::Replay { to: Replayed::ToDecoder(decoder) } => {
                self.ambushed.insert(decoder, self.context.random.usize(0..RECORDINGS_MAX));
            }
            Event::Replay { to: Replayed::ToProducer(producer) } => self.replay_to(producer),
        }
        Ok(())
    }

    /// Ends every fault: frozen, killed and broken parts work again.
    pub(crate) fn calm_down(&mut self) -> Result<(), Violation> {
        self.context.say(|| "it calms down".to_owned());
        self.context.stormy = false;
        self.ambushed.clear();
        self.restore_trust();
        for lane in &mut self.lanes {
            lane.to_sender.calm();
            lane.to_receiver.calm();
        }
        for producer in 0..self.producers.len() {
            let now_ms = self.context.now_ms;
            self.producers[producer].wake(now_ms);
            let Producer { node, keys, .. } = &self.producers[producer];
            if node.identity != self.identity || keys.has_other_bytes {
                self.kill_producer(producer, 0, None);
            }
            self.producers[producer].down_until_ms = 0;
        }
        for decoder in 0..self.decoders.len() {
            let now_ms = self.context.now_ms;
            self.decoders[decoder].wake(now_ms);
            self.decoders[decoder].clock_back_ms = 0;
            self.decoders[decoder].disk.heal();
            self.decoders[decoder].nonces = fastrand::Rng::with_seed(self.context.random.u64(..));
            // After a write that failed it comes back by itself.
            self.decoders[decoder].is_ledger_spoilt = false;
            if self.decoders[decoder].ledger.is_none() {
                self.restart_decoder(decoder, false)?;
            }
            if self.decoders[decoder].ledger.is_none() {
                self.begin_ledger_anew(decoder)?;
            }
        }
        for decoder in &self.decoders {
            for id in decoder.keys.ids() {
                self.producers.iter_mut().for_each(|producer| producer.keys.set(id, KeyState::VerifyOnly));
            }
        }
        for node in self.nodes() {
            self.spread_keys(node);
        }
        Ok(())
    }

    /// Lifts quarantines, and replaces nodes that cannot be admitted again.
    fn restore_trust(&mut self) {
        for producer in 0..self.producers.len() {
            let node = NodeId(self.producers[producer].node.node_id);
            let is_lost = self.decoders.iter().any(|decoder| decoder.trust.needs_another(node));
            let lied = std::mem::take(&mut self.producers[producer].lies);
            if is_lost || lied {
                self.producers[producer].node.node_id = self.context.trust_bytes();
                self.kill_producer(producer, 0, None);
            }
        }
        for decoder in &mut self.decoders {
            decoder.armed.clear();
            decoder.trust.readmit_all();
        }
    }

    fn nodes(&self) -> Vec<NodeIndex> {
        let decoders = (0..self.decoders.len()).map(NodeIndex::Decoder);
        decoders.chain((0..self.producers.len()).map(NodeIndex::Producer)).collect()
    }

    fn kill_producer(&mut self, index: usize, down_ms: u64, other: Option<Other>) {
        let producer = &mut self.producers[index];
        self.context.mark(Mark::ProducerKilled);
        producer.down_until_ms = self.context.now_ms + down_ms;
        producer.node.boot_id = self.context.bytes();
        producer.node.identity = self.identity;
        producer.forget();
        producer.keys.has_other_bytes = other == Some(Other::KeyBytes);
        match other {
            None => {}
            Some(Other::KeyBytes) => self.context.mark(Mark::ProducerOfOtherKeys),
            Some(Other::Component(component)) => {
                self.context.mark(Mark::ProducerOfOtherIdentity);
                producer.node.identity.0[component][0] ^= 1;
            }
        }
        for lane in self.lanes.iter_mut().filter(|lane| lane.producer == index) {
            lane.excuses.insert(Excuse::Process);
            lane.sender = None;
            lane.recording.clear();
            // A machine that loses its power tells nobody.
            if self.context.random.u8(0..3) == 0 { lane.vanish() } else { lane.reset(&mut self.context) }
        }
    }

    pub(crate) fn restart_decoder(&mut self, index: usize, with_power: bool) -> Result<(), Violation> {
        self.context.mark(Mark::DecoderRestarted);
        self.break_lanes(index, with_power)?;
        let decoder = &mut self.decoders[index];
        // Who waited is gone with the process, but asks again: the prompt is answered by the next one.
        decoder.lose_memory();
        decoder.node.boot_id = self.context.bytes();
        for mark in decoder.disk.take_marks() {
            self.context.mark(mark);
        }
        if with_power {
            self.context.mark(Mark::PowerLost);
            if decoder.disk.lose_power(&mut self.context.random) {
                self.context.mark(Mark::LedgerTorn);
            }
        }
        decoder.open_ledger(&mut self.context)?;
        if decoder.ledger.is_some() {
            self.context.mark(Mark::LedgerReopened);
        }
        Ok(())
    }

    /// Breaks the lanes of a decoder. After a power loss the peer may see no reset.
    fn break_lanes(&mut self, index: usize, with_power: bool) -> Result<(), Violation> {
        for place in 0..self.lanes.len() {
            let lane = &mut self.lanes[place];
            if !self.decoders[index].has(lane) {
                continue;
            }
            lane.excuses.insert(Excuse::Process);
            self.decoders[index].end(lane, End::Dropped, &mut self.context)?;
            lane.receiver = None;
            if with_power && self.context.random.bool() { lane.vanish() } else { lane.reset(&mut self.context) }
        }
        Ok(())
    }

    /// Restarts a decoder from a snapshot of its start, with the same random numbers. If its first session was
    /// recorded, the same prompt is asked again and the recording answers.
    fn restore_snapshot(&mut self, index: usize) -> Result<(), Violation> {
        let handoff = self.decoders[index].first_handoff();
        let found = self
            .recordings
            .iter()
            .enumerate()
            .find_map(|(place, (up, _))| Some((place, up.iter().find_map(|frame| frame.tokens_of(handoff))?)));
        let Some((recording, tokens)) = found else { return Ok(()) };
        self.context.mark(Mark::SnapshotRestored);
        self.break_lanes(index, false)?;
        let mut job = self.new_job(index);
        (job.tokens, job.gone_at_ms) = (tokens, None);
        self.ambushed.insert(index, recording);
        let decoder = &mut self.decoders[index];
        decoder.lose_memory();
        decoder.nonces = decoder.nonces_before.clone();
        decoder.waiting.insert(0, job);
        Ok(())
    }

    /// Recovers from a damaged ledger as an operator does: moves it away and revokes the keys of its handoffs.
    fn begin_ledger_anew(&mut self, index: usize) -> Result<(), Violation> {
        let id = 10 + u32::try_from(index).unwrap_or(0);
        let decoder = &mut self.decoders[index];
        decoder.disk = Disk::default();
        decoder.forgotten_unix_ms = (0, 0);
        // Their keys are revoked, which refuses them.
        self.context.accepted.retain(|(decoder, ..), _| *decoder != index);
        decoder.keys = KeyTable::default();
        decoder.keys.set(id, KeyState::Active);
        decoder.open_ledger(&mut self.context)
    }

    fn set_key(&mut self, node: NodeIndex, id: u32, state: KeyState) {
        self.context.mark(match state {
            KeyState::VerifyOnly => Mark::KeySpread,
            KeyState::Active => Mark::KeyRotated,
            KeyState::Revoked => Mark::KeyRevoked,
        });
        match node {
            NodeIndex::Decoder(index) => {
                if state == KeyState::Revoked {
                    self.decoders[index].trust.revoke_key(id);
                }
                let keys = &mut self.decoders[index].keys;
                // A key that is active already has not to be spread, and one that was revoked never comes back.
                if !keys.has_revoked(id) && (state != KeyState::VerifyOnly || keys.active() != Some(id)) {
                    keys.set(id, state);
                }
            }
            NodeIndex::Producer(index) => self.producers[index].keys.set(id, state),
        }
        for lane in &mut self.lanes {
            if is_of(lane, node) && state == KeyState::Revoked && lane.key_id() == Some(id) {
                self.context.mark(Mark::KeyChangedUnderWay);
                lane.excuse_attempt(Excuse::Keys);
            }
        }
        self.spread_keys(node);
    }

    /// Gives the state machines of a producer its current keys.
    fn spread_keys(&mut self, node: NodeIndex) {
        for lane in self.lanes.iter_mut().filter(|lane| is_of(lane, node)) {
            // A decoder takes those of the moment with each request.
            if let NodeIndex::Producer(index) = node {
                let keys = self.producers[index].keys.mac_keys();
                lane.sender.iter_mut().for_each(|end| end.core.set_keys(keys.clone()));
            }
        }
    }

    fn excuse(&mut self, node: NodeIndex, excuse: Excuse) {
        for lane in self.lanes.iter_mut().filter(|lane| is_of(lane, node)) {
            lane.excuses.insert(excuse);
        }
    }
}

fn is_of(lane: &crate::lane::Lane, node: NodeIndex) -> bool {
    match node {
        NodeIndex::Decoder(index) => lane.decoder == index,
        NodeIndex::Producer(index) => lane.producer == index,
    }
}
