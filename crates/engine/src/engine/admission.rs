//! Admission, before the forward pass: sequences to start, rows of the step, and room for their pages.

use muser_kv::{PAGE_ROWS, SequenceCache};

use super::Engine;
use super::event::{OnEvent, RequestEvent};
use super::job::Origin;
use super::sequence::{Running, Sequence, StepRows};
use crate::policy::has_pages;

/// Obstacle to starting a sequence now.
#[derive(Clone, Copy, Debug)]
enum Obstacle {
    /// The budget has no room for its pages.
    Memory,
    /// A running sequence is computing pages that it can then reuse.
    Awaited,
}

/// Starting point of an admitted sequence.
#[derive(Clone, Copy, Debug)]
struct Admission {
    /// Pages from which it resumes.
    reused_pages: usize,
    /// See [`Running::shared_pages`].
    shared_pages: usize,
    /// See [`Running::landmark`].
    landmark: Option<usize>,
}

impl Engine {
    /// Starts waiting requests while there is room for them, and plans the step.
    pub(super) fn hand_out_rows(&mut self, on_event: &mut OnEvent<'_>) {
        while self.start_next(on_event) {}
        let running = || self.running.iter().enumerate();
        let decoders = running().filter(|(_, running)| running.decodes()).map(|(index, _)| index);
        let prompts = running().filter(|(_, running)| !running.decodes());
        let prompts = prompts.map(|(index, running)| (index, running.prefill_rows()));
        self.plan.share_out(decoders, prompts, self.settings.chunk, self.executor.rows_max());
        self.running.iter_mut().for_each(|running| running.rows = None);
        for work in &self.plan.work {
            self.running[work.sequence].rows = Some(StepRows::planned(*work));
        }
    }

    /// Starts the first waiting sequence, in the order of turns, for which there is a place and that need not wait for what
    /// another is computing. False if there is none, or no memory for it: no later one starts before it then.
    fn start_next(&mut self, on_event: &mut OnEvent<'_>) -> bool {
        for index in self.in_turn() {
            let is_full = self.running.len() >= self.places;
            let paused = if is_full { self.to_pause_for(self.waiting[index].flow) } else { None };
            if is_full && paused.is_none() {
                continue;
            }
            let Some(mut sequence) = self.waiting.remove(index) else { continue };
            match self.admit(&mut sequence) {
                Ok(admission) => {
                    paused.into_iter().for_each(|index| self.pause(index, on_event));
                    self.start(sequence, admission, on_event);
                    return true;
                }
                Err(Obstacle::Memory) => {
                    self.waiting.insert(index, sequence);
                    // Pages of parked sequences are freed, and then it is tried again.
                    return self.give_up_parked(Some(index), on_event);
                }
                Err(Obstacle::Awaited) => self.waiting.insert(index, sequence),
            }
        }
        false
    }

    /// Makes sure that the planned rows find their pages: first by giving up kept prefixes and the pages of sequences that
    /// wait for their turn, then by interrupting those that started last. One alone fits, or it would not have been
    /// accepted; what others share of its pages' room comes on top.
    pub(super) fn make_room(&mut self, on_event: &mut OnEvent<'_>) {
        loop {
            let needed: usize = self.running.iter().map(Running::pages_to_take).sum();
            if needed == 0 || needed <= self.free_pages() {
                return;
            }
            if !self.prefixes.evict_one() && !self.give_up_parked(None, on_event) {
                if self.running.len() <= 1 {
                    return;
                }
                self.interrupt_youngest(on_event);
            }
        }
    }

    /// Starting point of the next sequence in line, or the obstacle to starting it now.
    fn admit(&self, sequence: &mut Sequence) -> Result<Admission, Obstacle> {
        let identity = &self.settings.identity;
        // At least one token is computed: it gives the logits.
        let pages = (sequence.tokens.len() - 1) / PAGE_ROWS;
        let mut admission = Admission { reused_pages: 0, shared_pages: 0, landmark: None };
        if let Some(parked) = &sequence.parked {
            admission.shared_pages = parked.shared_pages;
        } else if matches!(sequence.origin, Origin::Kept(_)) && pages > 0 {
            let is_new = sequence.reused.is_none();
            let names = sequence.names(identity, pages);
            // A running sequence in prefill with the same first page will leave pages that this one can then reuse.
            let awaited = |running: &Running| running.sequence.first_name() == names.first() && !running.decodes();
            if is_new && self.running.iter().any(awaited) {
                return Err(Obstacle::Awaited);
            }
            let found = self.prefixes.longest(names);
            admission.reused_pages = found.resumable;
            admission.shared_pages = self.prefixes.pages_in_use(&names[..found.resumable]);
            admission.landmark = (found.known > found.resumable).then_some(found.known * PAGE_ROWS);
        }
        let parked = |sequence: &Sequence| Some(self.pages_soon(sequence, sequence.parked.as_ref()?.shared_pages));
        let running = self.running.iter().map(|running| self.pages_soon(&running.sequence, running.shared_pages));
        let promised = running.chain(self.waiting.iter().filter_map(parked)).sum();
        let wanted = self.pages_soon(sequence, admission.shared_pages);
        let pages = self.settings.budget_bytes / self.spec.layout().page_bytes();
        if has_pages(promised, wanted, pages) { Ok(admission) } else { Err(Obstacle::Memory) }
    }

    fn start(&mut self, mut sequence: Sequence, admission: Admission, on_event: &mut OnEvent<'_>) {
        let Admission { reused_pages, shared_pages, mut landmark } = admission;
        let cache = match sequence.parked.take() {
            Some(parked) => {
                landmark = parked.landmark;
                parked.cache
            }
            None => self.first_cache(&mut sequence, reused_pages),
        };
        sequence.reserve();
        let is_free = |slot: &usize| self.running.iter().all(|running| running.slot != *slot);
        let slot = (0..=self.running.len()).find(is_free).expect("one more slot than there are running sequences");
        if sequence.reused.is_none() {
            sequence.reused = Some(cache.rows());
            on_event(sequence.id, RequestEvent::Started { reused: cache.rows(), slot });
        } else {
            on_event(sequence.id, RequestEvent::Resumed { slot });
        }
        self.take_turn(sequence.flow);
        let turn_began = sequence.generated();
        let (rows, chosen) = (None, None);
        self.running.push(Running { sequence, cache, slot, shared_pages, landmark, turn_began, rows, chosen });
    }

    /// Cache with which a sequence begins, or begins again: by its origin, of which kept pages may be gone but for the first
    /// `reused_pages`.
    fn first_cache(&mut self, sequence: &mut Sequence, reused_pages: usize) -> SequenceCache {
        if let Some(installed) = self.take_trusted(sequence) {
            return installed;
        }
        match &sequence.origin {
            Origin::Base(base) => base.cache(&self.pool),
            Origin::Kept(_) if reused_pages > 0 => {
                self.prefixes.resume(sequence.names(&self.settings.identity, reused_pages), &self.pool)
            }
            _ => SequenceCache::new(self.spec.clone(), self.pool.clone()),
        }
    }

    /// Cache that was installed for a sequence, if its pages are still trusted; if not, the sequence computes everything
    /// here.
    fn take_trusted(&self, sequence: &mut Sequence) -> Option<SequenceCache> {
        let (cache, provenance) = sequence.origin.take_installed()?.into_parts();
        match self.trusts_cache(&cache, &provenance) {
            Ok(()) => {
                sequence.provenance = provenance;
                Some(cache)
            }
            Err(_) => {
                sequence.distrust();
                None
            }
        }
    }

    /// Pages that a sequence may come to hold soon, without those that others held already when it started.
    fn pages_soon(&self, sequence: &Sequence, shared_pages: usize) -> usize {
        if let Origin::Base(base) = &sequence.origin {
            return base.pages_to_take(sequence.tokens.len());
        }
        self.spec.most_pages(sequence.rows_soon(), self.chunk_max()).saturating_sub(shared_pages)
    }

    /// Pages that can be taken now.
    fn free_pages(&self) -> usize {
        let held = self.memory();
        if held.live_bytes + held.free_bytes > held.budget_bytes {
            self.pool.trim();
        }
        held.budget_bytes.saturating_sub(held.live_bytes) / self.spec.layout().page_bytes()
    }

    fn interrupt_youngest(&mut self, on_event: &mut OnEvent<'_>) {
        let Some(Running { mut sequence, cache, .. }) = self.running.pop() else { return };
        let rows = cache.rows();
        Self::keep_prefix(&mut self.prefixes, &self.settings.identity, &mut sequence, &cache, rows);
        sequence.preemptions += 1;
        on_event(sequence.id, RequestEvent::Preempted);
        self.queue_again(sequence);
    }
}
