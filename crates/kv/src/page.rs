//! One page's memory: shared by reference, copied before it is changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::makers::Makers;
use crate::pool::{OutOfPages, PagePool};

/// A page's bytes, 64-byte aligned, as one cache holds them.
///
/// Several holders may share the bytes; shared bytes never change, a holder that must change them copies them first. When
/// the last holder drops them, the memory returns to its pool.
#[derive(Debug)]
pub struct Page {
    /// `None` only while `drop` runs.
    buffer: Option<Arc<Buffer>>,
    pool: PagePool,
    makers: Makers,
}

/// A share in a full page whose 64 rows are all committed. Its bytes never change.
///
/// Cloning shares the bytes and allocates nothing. Only whole pages are ever shared, so a cache's last, partial page has
/// one holder and is written in place.
#[derive(Debug)]
pub struct SealedPage(Page);

/// Page memory that only a pool creates.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// One page and up to [`Buffer::ALIGNMENT`] - 1 bytes around it.
    storage: Box<[u8]>,
    /// Offset of the page in `storage`, bytes.
    start: usize,
    page_bytes: usize,
    stamp: u64,
    hint: AtomicU64,
}

/// A stamp that no page and no cache of this process has had.
pub(crate) fn next_stamp() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Only uniqueness matters: a thread that compares stamps got the page through something that synchronises.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Page {
    /// The page's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.buffer().bytes()
    }

    /// True if another [`Page`] shares these bytes.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(self.buffer()) > 1
    }

    /// True if `self` and `other` are one memory.
    pub fn shares_memory_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.buffer(), other.buffer())
    }

    /// The other machines that the bytes depend on.
    pub fn makers(&self) -> &Makers {
        &self.makers
    }

    pub(crate) fn set_makers(&mut self, makers: Makers) {
        self.makers = makers;
    }

    /// The bytes for writing; if they are shared, this page gets a copy of its own first.
    ///
    /// # Errors
    /// [`OutOfPages`] if the copy does not fit the pool's budget. The page is then unchanged.
    pub(crate) fn make_mut(&mut self) -> Result<&mut [u8], OutOfPages> {
        if self.is_shared() {
            let mut copy = self.pool.take_unspecified(self.bytes().len())?;
            copy.unshared_mut().copy_from_slice(self.bytes());
            copy.makers = self.makers.clone();
            *self = copy;
        }
        Ok(self.unshared_mut())
    }

    /// Number of the page's content, unique in this process: each borrow of the page for writing gives it another one.
    /// Equal stamps mean equal bytes.
    pub fn stamp(&self) -> u64 {
        self.buffer().stamp
    }

    /// A word that a device may keep with the page's memory, to find its copy of the page again. A hint only: the copy is
    /// good if it was made at the same [`Self::stamp`].
    pub fn hint(&self) -> &AtomicU64 {
        &self.buffer().hint
    }

    /// The bytes for writing.
    ///
    /// # Panics
    /// If the page is shared.
    pub(crate) fn unshared_mut(&mut self) -> &mut [u8] {
        // `buffer` is `Some` until `drop`. No `Weak` is ever made, so an unshared `Arc` can be borrowed mutably.
        let buffer = self.buffer.as_mut().and_then(Arc::get_mut).expect("an unshared page");
        buffer.stamp = next_stamp();
        let end = buffer.start + buffer.page_bytes;
        &mut buffer.storage[buffer.start..end]
    }

    /// Another holder of the same bytes.
    pub(crate) fn share(&self) -> Self {
        Self { buffer: Some(Arc::clone(self.buffer())), pool: self.pool.clone(), makers: self.makers.clone() }
    }

    pub(crate) fn from_buffer(buffer: Arc<Buffer>, pool: PagePool) -> Self {
        Self { buffer: Some(buffer), pool, makers: Makers::default() }
    }

    fn buffer(&self) -> &Arc<Buffer> {
        // Only `drop` takes the buffer, and nothing runs after it.
        self.buffer.as_ref().expect("a page holds its buffer until it is dropped")
    }
}

impl SealedPage {
    /// The page's bytes, in canonical form.
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// True if a cache or another share holds these bytes too: dropping this share alone would free nothing.
    pub fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    /// The other machines that the bytes depend on.
    pub fn makers(&self) -> &Makers {
        self.0.makers()
    }

    /// Seals `page`, all of whose rows must be committed.
    pub(crate) fn of(page: &Page) -> Self {
        Self(page.share())
    }

    pub(crate) fn share(&self) -> Page {
        self.0.share()
    }
}

impl Clone for SealedPage {
    fn clone(&self) -> Self {
        Self(self.share())
    }
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.give_back(buffer);
        }
    }
}

impl Buffer {
    /// A cache line, and the widest vector register.
    pub(crate) const ALIGNMENT: usize = 64;

    /// Zeroed memory for a page.
    pub(crate) fn zeroed(page_bytes: usize) -> Self {
        let storage = vec![0; page_bytes + Self::ALIGNMENT - 1].into_boxed_slice();
        let start = storage.as_ptr().addr().wrapping_neg() % Self::ALIGNMENT;
        Self { storage, start, page_bytes, stamp: next_stamp(), hint: AtomicU64::new(0) }
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn bytes(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.page_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_aligned_to_cache_lines_and_start_zeroed() {
        let pool = PagePool::new(1 << 20);
        for page_bytes in [1, 63, 64, 65, 4096, 33792] {
            let mut page = pool.take(page_bytes).unwrap();
            assert_eq!(page.bytes().len(), page_bytes);
            assert_eq!(page.bytes().as_ptr().addr() % 64, 0);
            assert!(page.bytes().iter().all(|&byte| byte == 0));
            page.make_mut().unwrap().fill(9);
            drop(page);
            assert!(pool.take(page_bytes).unwrap().bytes().iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn changing_a_shared_page_leaves_the_other_share_as_it_was() {
        let pool = PagePool::new(1 << 20);
        let mut ours = pool.take(256).unwrap();
        ours.make_mut().unwrap().fill(1);
        let theirs = ours.share();
        assert!(ours.is_shared() && ours.shares_memory_with(&theirs));
        ours.make_mut().unwrap()[3] = 2;
        assert!(!ours.is_shared() && !theirs.is_shared());
        assert!(theirs.bytes().iter().all(|&byte| byte == 1));
        assert_eq!((ours.bytes()[3], ours.bytes()[4]), (2, 1));
    }

    #[test]
    fn a_stamp_is_shared_with_the_bytes_and_changes_with_every_write() {
        let pool = PagePool::new(1 << 20);
        let mut ours = pool.take(256).unwrap();
        let taken = ours.stamp();
        ours.make_mut().unwrap()[3] = 2;
        assert_ne!(ours.stamp(), taken);
        let theirs = ours.share();
        assert_eq!(ours.stamp(), theirs.stamp());
        ours.make_mut().unwrap();
        assert_ne!(ours.stamp(), theirs.stamp(), "a copy has content of its own");
        let (old, first) = (ours.stamp(), theirs.stamp());
        drop((ours, theirs));
        let again = [pool.take(256).unwrap(), pool.take(256).unwrap()];
        assert!(again.iter().all(|page| page.stamp() != old && page.stamp() != first), "memory used again");
    }

    #[test]
    fn a_copy_that_does_not_fit_the_budget_leaves_the_page_shared_and_unchanged() {
        let pool = PagePool::new(256);
        let mut ours = pool.take(256).unwrap();
        let theirs = ours.share();
        assert!(ours.make_mut().is_err());
        assert!(ours.shares_memory_with(&theirs));
        drop(theirs);
        assert!(ours.make_mut().is_ok());
    }

    #[test]
    fn shares_dropped_by_many_threads_at_once_return_every_page_to_the_free_list() {
        let pool = PagePool::new(1 << 20);
        pool.reserve(64, 8).unwrap();
        for _ in 0..200 {
            let pages: Vec<Page> = (0..8).map(|_| pool.take(64).unwrap()).collect();
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    let shares: Vec<Page> = pages.iter().map(Page::share).collect();
                    scope.spawn(move || drop(shares));
                }
                drop(pages);
            });
            let held = pool.usage();
            assert_eq!((held.live_pages, held.free_pages), (0, 8));
        }
    }
}
