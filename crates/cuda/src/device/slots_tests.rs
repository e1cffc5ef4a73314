//! Random histories of pages, steps and stores against a model that knows what every slot holds.

use std::collections::HashMap;

use super::*;

/// A page, shared by all stores.
struct Page {
    stamp: u64,
    hint: AtomicU64,
}

/// One store, and the stamp of what its caller has put into each slot.
struct Store {
    slots: PageSlots,
    contents: Vec<u64>,
    slabs: usize,
    per_slab: usize,
    /// Slabs for which there is memory: fewer than the store may have, now and then.
    room: usize,
    /// Slots of the current step, by page.
    used: HashMap<usize, usize>,
    /// Slots that the step uses without looking for them.
    known: Vec<usize>,
}

/// Counts of the events of random histories.
#[derive(Debug, Default)]
struct Seen {
    copied: usize,
    taken: usize,
    evicted: usize,
    exhausted: usize,
    no_slab: usize,
}

impl Page {
    fn key(&self) -> PageKey<'_> {
        PageKey { stamp: self.stamp, hint: &self.hint }
    }
}

impl Store {
    fn new(random: &mut fastrand::Rng) -> Self {
        let (per_slab, slabs_max) = (random.usize(1..5), random.usize(1..5));
        let room = random.usize(1..=slabs_max);
        let slots = PageSlots::new(per_slab, slabs_max);
        Self { slots, contents: Vec::new(), slabs: 0, per_slab, room, used: HashMap::new(), known: Vec::new() }
    }

    /// A step that sees `pages` of all pages; the ones found are copied. Ends early if there is no slot.
    fn step(&mut self, all: &[Page], pages: &[usize], seen: &mut Seen, what: &str) {
        self.slots.begin_step();
        // Some of the last step's pages are used again by the slot that they had.
        self.known = self.used.iter().filter(|(page, _)| pages.contains(page)).map(|(_, slot)| *slot).collect();
        let known: HashMap<usize, usize> = self.used.drain().filter(|(page, _)| *page % 2 == 0).collect();
        for &page in pages {
            let slot = match known.get(&page) {
                Some(&slot) if self.contents[slot] == all[page].stamp => slot,
                _ => match self.find(&all[page], seen) {
                    Some(slot) => slot,
                    None => {
                        let most = self.per_slab * self.room;
                        let distinct = pages.iter().collect::<std::collections::HashSet<_>>().len();
                        assert!(distinct + self.known.len() > most, "{what}: refused {distinct} pages of {most} slots");
                        return;
                    }
                },
            };
            self.used.insert(page, slot);
            for (page, slot) in &self.used {
                assert_eq!(self.contents[*slot], all[*page].stamp, "{what}: page {page} in slot {slot}");
            }
        }
    }

    fn find(&mut self, page: &Page, seen: &mut Seen) -> Option<usize> {
        let Self { slots, slabs, room, known, .. } = self;
        let mut add_slab = || {
            let fits = *slabs < *room;
            *slabs += usize::from(fits);
            fits.then_some(()).ok_or("no memory")
        };
        let mut marked = false;
        let found = slots.find(page.key(), &mut add_slab, &mut |slots| {
            marked = true;
            known.iter().for_each(|slot| slots.mark(*slot));
        });
        self.contents.resize(self.slabs * self.per_slab, 0);
        seen.evicted += usize::from(marked);
        match found {
            Ok(Found::Copied(slot)) => {
                seen.copied += 1;
                Some(slot)
            }
            Ok(Found::Taken(slot)) => {
                seen.taken += 1;
                self.contents[slot] = page.stamp;
                Some(slot)
            }
            Err(NoSlot::Exhausted) => {
                seen.exhausted += 1;
                None
            }
            Err(NoSlot::NoSlab(_)) => {
                seen.no_slab += 1;
                None
            }
        }
    }

    /// Pages of the current step get new content, on the host and in their slots.
    fn write(&mut self, all: &mut [Page], stamp: &mut u64, random: &mut fastrand::Rng) {
        let mut used: Vec<(usize, usize)> = self.used.iter().map(|(page, slot)| (*page, *slot)).collect();
        used.sort_unstable();
        for (page, slot) in used.into_iter().filter(|_| random.u8(..4) == 0) {
            *stamp += 1;
            (all[page].stamp, self.contents[slot]) = (*stamp, *stamp);
            self.slots.set_stamp(slot, *stamp);
        }
    }
}

#[test]
fn a_page_is_found_where_its_content_is_and_nothing_that_a_step_uses_makes_way() {
    let mut seen = Seen::default();
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut stamp = 30;
        let mut pages: Vec<Page> = (1..=30).map(|stamp| Page { stamp, hint: AtomicU64::new(0) }).collect();
        // The same pages are known by two stores: of two devices, or of two layouts by an error of the caller.
        let mut stores = [Store::new(&mut random), Store::new(&mut random)];
        for step in 0..60 {
            let what = format!("seed {seed}, step {step}");
            let store = &mut stores[random.usize(..2)];
            let count = random.usize(1..12);
            let chosen: Vec<usize> = (0..count).map(|_| random.usize(..30)).collect();
            store.step(&pages, &chosen, &mut seen, &what);
            store.write(&mut pages, &mut stamp, &mut random);
            // The host writes pages itself, memory is used for other pages, and hints are overwritten by other devices.
            for page in &mut pages {
                match random.u8(..20) {
                    0 => {
                        stamp += 1;
                        page.stamp = stamp;
                    }
                    1 => page.hint.store(random.u64(..20), Ordering::Relaxed),
                    2 => page.hint.store(u64::MAX, Ordering::Relaxed),
                    _ => {}
                }
            }
            if random.u8(..30) == 0 {
                let store = &mut stores[random.usize(..2)];
                store.slots.forget_all();
                store.contents.fill(0);
                store.used.clear();
            }
        }
    }
    let Seen { copied, taken, evicted, exhausted, no_slab } = seen;
    assert!(copied > 1000 && taken > 1000 && evicted > 1000 && exhausted > 100 && no_slab > 100, "{seen:?}");
}

/// The slot of a page in a store that has memory for every slab.
fn slot_of(slots: &mut PageSlots, page: &Page) -> Result<Found, NoSlot<()>> {
    slots.find(page.key(), &mut || Ok(()), &mut |_| ())
}

#[test]
fn the_copies_that_were_not_used_for_longest_make_way() {
    let mut slots = PageSlots::new(8, 1);
    let pages: Vec<Page> = (1..=9).map(|stamp| Page { stamp, hint: AtomicU64::new(0) }).collect();
    for page in &pages[..8] {
        slots.begin_step();
        slot_of(&mut slots, page).unwrap();
    }
    slots.begin_step();
    slot_of(&mut slots, &pages[0]).unwrap();
    slots.begin_step();
    assert!(matches!(slot_of(&mut slots, &pages[8]), Ok(Found::Taken(_))));
    // A quarter of eight: the second and the third, since the first was used again.
    let there = |page: &Page| slots.copy_of(page.key()).is_some();
    let expected: Vec<bool> = (0..9).map(|page| page != 1 && page != 2).collect();
    assert_eq!(pages.iter().map(there).collect::<Vec<_>>(), expected);
}

#[test]
fn a_store_that_forgot_everything_uses_its_slots_again_before_it_asks_for_a_slab() {
    let mut slots = PageSlots::new(4, 2);
    let pages: Vec<Page> = (1..=4).map(|stamp| Page { stamp, hint: AtomicU64::new(0) }).collect();
    slots.begin_step();
    pages.iter().for_each(|page| assert!(slot_of(&mut slots, page).is_ok()));
    slots.forget_all();
    for page in &pages {
        let found = slots.find(page.key(), &mut || Err("another slab"), &mut |_| ());
        assert!(matches!(found, Ok(Found::Taken(_))), "{found:?}");
    }
}
