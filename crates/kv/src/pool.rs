//! The budget of page memory, and the free lists that make a running decode allocate nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::page::{Buffer, Page};

/// A budget of page memory shared by every cache made from it. Cloning gives another handle to the same pool.
///
/// Memory of dropped pages stays in the pool, listed by size, until [`PagePool::trim`] or until the budget is needed for
/// pages of another size.
#[derive(Clone, Debug)]
pub struct PagePool {
    state: Arc<Mutex<State>>,
}

/// The budget has no room for the pages asked for. The caller frees pages (preempts a sequence) or refuses the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted_bytes} more bytes of KV pages do not fit: {live_bytes} of {budget_bytes} are in use")]
pub struct OutOfPages {
    /// Bytes asked for.
    pub wanted_bytes: usize,
    /// Bytes in live pages at that moment.
    pub live_bytes: usize,
    /// The pool's budget.
    pub budget_bytes: usize,
}

/// Pages and bytes of a pool at one moment. A page shared by several owners counts once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// Pages with an owner.
    pub live_pages: usize,
    /// Bytes of those.
    pub live_bytes: usize,
    /// Pages ready for reuse.
    pub free_pages: usize,
    /// Bytes of those.
    pub free_bytes: usize,
    /// The limit on live and free bytes together.
    pub budget_bytes: usize,
}

impl PagePool {
    /// An empty pool that will hold at most `budget_bytes` bytes of pages, live and free together. `usize::MAX` means as
    /// much as the system gives.
    pub fn new(budget_bytes: usize) -> Self {
        // No more than this can be addressed, and sums of two such budgets do not overflow.
        let budget_bytes = budget_bytes.min(isize::MAX.unsigned_abs());
        let state = State { budget_bytes, classes: Vec::new() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Makes `pages` pages of `page_bytes` bytes ready, so that taking them allocates nothing.
    ///
    /// A warm-up, not a claim: the first to take pages of this size gets them.
    ///
    /// # Errors
    /// [`OutOfPages`] if they do not fit beside the live pages. Nothing is then made ready.
    pub fn reserve(&self, page_bytes: usize, pages: usize) -> Result<(), OutOfPages> {
        let mut state = self.lock();
        let class = state.class(page_bytes);
        let missing = pages.saturating_sub(state.classes[class].free.len());
        state.make_room(class, missing)?;
        let class = &mut state.classes[class];
        class.free.reserve(class.live + missing);
        for _ in 0..missing {
            class.free.push(Arc::new(Buffer::zeroed(page_bytes)));
        }
        Ok(())
    }

    /// A page of `page_bytes` zeroes.
    ///
    /// # Errors
    /// [`OutOfPages`] if it does not fit the budget.
    pub(crate) fn take(&self, page_bytes: usize) -> Result<Page, OutOfPages> {
        let mut page = self.take_unspecified(page_bytes)?;
        page.unshared_mut().fill(0);
        Ok(page)
    }

    /// Gives the memory of free pages back to the system.
    pub fn trim(&self) {
        for class in &mut self.lock().classes {
            class.free.clear();
        }
    }

    /// Pages and bytes of the pool now.
    pub fn usage(&self) -> PoolUse {
        let state = self.lock();
        PoolUse {
            live_pages: state.classes.iter().map(|class| class.live).sum(),
            live_bytes: state.live_bytes(),
            free_pages: state.classes.iter().map(|class| class.free.len()).sum(),
            free_bytes: state.classes.iter().map(SizeClass::free_bytes).sum(),
            budget_bytes: state.budget_bytes,
        }
    }

    /// A page with unspecified content.
    pub(crate) fn take_unspecified(&self, page_bytes: usize) -> Result<Page, OutOfPages> {
        let mut state = self.lock();
        let class = state.class(page_bytes);
        if state.classes[class].free.is_empty() {
            state.make_room(class, 1)?;
        }
        let class = &mut state.classes[class];
        let buffer = match class.free.pop() {
            Some(buffer) => buffer,
            None => {
                // Room for every page of this size, so that giving pages back never allocates.
                class.free.reserve(class.live + 1);
                Arc::new(Buffer::zeroed(page_bytes))
            }
        };
        class.live += 1;
        drop(state);
        Ok(Page::from_buffer(buffer, self.clone()))
    }

    /// Drops one share of `buffer`; the last one puts it on its free list.
    ///
    /// Shares are only dropped here, under the lock, so exactly one of several threads sees the count reach one.
    pub(crate) fn give_back(&self, buffer: Arc<Buffer>) {
        let mut state = self.lock();
        if Arc::strong_count(&buffer) == 1 {
            let class = state.class(buffer.page_bytes());
            let class = &mut state.classes[class];
            class.live -= 1;
            class.free.push(buffer);
        } else {
            drop(buffer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The counters are consistent between any two statements that can panic, so a poisoned lock is still sound.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct State {
    budget_bytes: usize,
    /// One entry per page size ever used: a handful.
    classes: Vec<SizeClass>,
}

#[derive(Debug)]
struct SizeClass {
    page_bytes: usize,
    live: usize,
    /// Unshared buffers.
    free: Vec<Arc<Buffer>>,
}

impl State {
    /// The index of the class for pages of `page_bytes` bytes.
    fn class(&mut self, page_bytes: usize) -> usize {
        self.classes.iter().position(|class| class.page_bytes == page_bytes).unwrap_or_else(|| {
            self.classes.push(SizeClass { page_bytes, live: 0, free: Vec::new() });
            self.classes.len() - 1
        })
    }

    fn live_bytes(&self) -> usize {
        self.classes.iter().map(|class| class.live * class.page_bytes).sum()
    }

    /// Makes sure that `pages` new pages of `class` fit the budget, freeing memory of other sizes where that helps.
    fn make_room(&mut self, class: usize, pages: usize) -> Result<(), OutOfPages> {
        let wanted_bytes = self.classes[class].page_bytes.saturating_mul(pages);
        let live_bytes = self.live_bytes();
        let kept = live_bytes + self.classes[class].free_bytes();
        if kept.checked_add(wanted_bytes).is_none_or(|bytes| bytes > self.budget_bytes) {
            return Err(OutOfPages { wanted_bytes, live_bytes, budget_bytes: self.budget_bytes });
        }
        let mut idle: usize = self.classes.iter().map(SizeClass::free_bytes).sum();
        for (index, other) in self.classes.iter_mut().enumerate() {
            while index != class && live_bytes + idle > self.budget_bytes - wanted_bytes && other.free.pop().is_some() {
                idle -= other.page_bytes;
            }
        }
        Ok(())
    }
}

impl SizeClass {
    fn free_bytes(&self) -> usize {
        self.free.len() * self.page_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_refuses_the_page_that_would_exceed_it_and_says_by_how_much() {
        let pool = PagePool::new(1000);
        let held: Vec<Page> = (0..3).map(|_| pool.take(300).unwrap()).collect();
        let refused = OutOfPages { wanted_bytes: 300, live_bytes: 900, budget_bytes: 1000 };
        assert_eq!(pool.take(300).unwrap_err(), refused);
        assert!(pool.take(100).is_ok());
        drop(held);
        assert!(pool.take(300).is_ok());
    }

    #[test]
    fn dropped_pages_are_reused_and_counted_as_free() {
        let pool = PagePool::new(1 << 20);
        let page = pool.take(128).unwrap();
        let share = page.share();
        drop(page);
        let budget_bytes = 1 << 20;
        let live = PoolUse { live_pages: 1, live_bytes: 128, free_pages: 0, free_bytes: 0, budget_bytes };
        assert_eq!(pool.usage(), live);
        let address = share.bytes().as_ptr();
        drop(share);
        let free = PoolUse { live_pages: 0, live_bytes: 0, free_pages: 1, free_bytes: 128, budget_bytes };
        assert_eq!(pool.usage(), free);
        assert_eq!(pool.take(128).unwrap().bytes().as_ptr(), address);
        pool.trim();
        assert_eq!(pool.usage().free_pages, 0);
    }

    #[test]
    fn a_reservation_counts_pages_already_free_and_is_refused_whole() {
        let pool = PagePool::new(1000);
        pool.reserve(100, 4).unwrap();
        pool.reserve(100, 6).unwrap();
        assert_eq!(pool.usage().free_pages, 6);
        assert!(pool.reserve(100, 11).is_err());
        assert!(pool.reserve(usize::MAX, 2).is_err());
        assert_eq!(pool.usage().free_pages, 6);
        assert!(PagePool::new(usize::MAX).reserve(usize::MAX, 2).is_err());
    }

    #[test]
    fn idle_memory_of_another_size_is_released_only_as_far_as_needed() {
        let pool = PagePool::new(1000);
        pool.reserve(100, 10).unwrap();
        let page = pool.take(250).unwrap();
        assert_eq!(pool.usage().free_pages, 7);
        assert_eq!(pool.usage().live_bytes + pool.usage().free_bytes, 950);
        drop(page);
    }

    #[test]
    fn free_pages_of_one_size_do_not_make_room_for_more_of_that_size() {
        let pool = PagePool::new(1000);
        let held = pool.take(600).unwrap();
        pool.reserve(100, 4).unwrap();
        assert!(pool.reserve(100, 5).is_err());
        let four: Vec<Page> = (0..4).map(|_| pool.take(100).unwrap()).collect();
        assert!(pool.take(100).is_err());
        drop((held, four));
    }
}
