//! One block of memory for all weights of a model: aligned, in huge pages where the system gives them, filled once, then
//! shared read-only.

use std::sync::Arc;

use memmap2::MmapMut;

/// Every range starts at a multiple of this many bytes: a cache line.
const RANGE_ALIGNMENT: usize = 64;
/// The block starts at a multiple of this many bytes, the size of a huge page on the systems that have them.
const BLOCK_ALIGNMENT: usize = 2 << 20;

/// The memory of a model could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// The sum of all ranges passes the address space.
    #[error("the ranges of one arena pass {} bytes", usize::MAX)]
    TooLarge,
    /// The system refused the memory.
    #[error("no memory for an arena of {bytes} bytes")]
    OutOfMemory {
        /// Size asked for.
        bytes: usize,
    },
}

/// Location of one matrix in its [`Arena`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaRange {
    start: usize,
    len: usize,
}

impl ArenaRange {
    /// Length in bytes, as asked for.
    pub fn bytes(&self) -> usize {
        self.len
    }
}

/// The ranges that an arena will hold, before any memory is taken.
#[derive(Debug, Default)]
pub struct ArenaPlan {
    ranges: Vec<ArenaRange>,
    end: Option<usize>,
    overflowed: bool,
}

impl ArenaPlan {
    /// A plan without ranges.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a range of `bytes` bytes, aligned to a cache line, after all earlier ones.
    pub fn add(&mut self, bytes: usize) -> ArenaRange {
        let range = ArenaRange { start: self.end.unwrap_or(0), len: bytes };
        let end = range.start.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(RANGE_ALIGNMENT));
        self.overflowed |= end.is_none();
        self.end = Some(end.unwrap_or(range.start));
        self.ranges.push(range);
        range
    }

    /// Bytes of all ranges together, alignment included.
    pub fn bytes(&self) -> usize {
        self.end.unwrap_or(0)
    }

    /// Takes the memory, all zero.
    ///
    /// # Errors
    /// If the ranges pass the address space or the system has not enough memory.
    pub fn allocate(self) -> Result<ArenaBuilder, ArenaError> {
        if self.overflowed {
            return Err(ArenaError::TooLarge);
        }
        let (memory, start) = Memory::zeroed(self.bytes())?;
        Ok(ArenaBuilder { ranges: self.ranges, arena: Arena { memory, start, len: self.end.unwrap_or(0) } })
    }
}

/// An arena whose ranges are being filled.
#[derive(Debug)]
pub struct ArenaBuilder {
    ranges: Vec<ArenaRange>,
    arena: Arena,
}

impl ArenaBuilder {
    /// Every range of the plan, in the order they were added, disjoint and therefore fillable in parallel.
    pub fn slices_mut(&mut self) -> Vec<&mut [u8]> {
        let Arena { memory, start, len } = &mut self.arena;
        let mut rest = &mut memory.bytes_mut()[*start..*start + *len];
        let mut at = 0;
        let mut slices = Vec::with_capacity(self.ranges.len());
        for range in &self.ranges {
            // Ranges ascend without overlap, so each starts at or after the end of the one before.
            let (_, from_start) = rest.split_at_mut(range.start - at);
            let (slice, after) = from_start.split_at_mut(range.len);
            slices.push(slice);
            rest = after;
            at = range.start + range.len;
        }
        slices
    }

    /// Ends the filling: from here on the bytes are shared and never change.
    pub fn freeze(self) -> Arc<Arena> {
        Arc::new(self.arena)
    }
}

/// The weights of a model in one block of memory.
#[derive(Debug)]
pub struct Arena {
    memory: Memory,
    start: usize,
    len: usize,
}

impl Arena {
    /// The bytes of `range`.
    ///
    /// # Panics
    /// If `range` is of another, larger arena.
    pub fn bytes(&self, range: ArenaRange) -> &[u8] {
        &self.memory.bytes()[self.start..self.start + self.len][range.start..range.start + range.len]
    }
}

/// Anonymous pages, or the heap on systems without them.
#[derive(Debug)]
enum Memory {
    Pages(MmapMut),
    Heap(Vec<u8>),
}

impl Memory {
    /// `len` zero bytes and the offset of their first byte, which is aligned to a huge page (pages) or a cache line.
    fn zeroed(len: usize) -> Result<(Self, usize), ArenaError> {
        let out_of_memory = ArenaError::OutOfMemory { bytes: len };
        // Bytes in front of the aligned start are never touched, so the system gives no memory for them.
        let Some(reserved) = len.checked_add(BLOCK_ALIGNMENT) else { return Err(out_of_memory) };
        if let Ok(pages) = MmapMut::map_anon(reserved) {
            advise_huge_pages(&pages);
            let start = pages.as_ptr().align_offset(BLOCK_ALIGNMENT);
            return Ok((Self::Pages(pages), start));
        }
        let mut heap = Vec::new();
        heap.try_reserve_exact(len + RANGE_ALIGNMENT).map_err(|_| out_of_memory)?;
        heap.resize(len + RANGE_ALIGNMENT, 0);
        let start = heap.as_ptr().align_offset(RANGE_ALIGNMENT);
        Ok((Self::Heap(heap), start))
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Pages(pages) => pages,
            Self::Heap(heap) => heap,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Pages(pages) => pages,
            Self::Heap(heap) => heap,
        }
    }
}

/// Huge pages save 15 to 25 % of read bandwidth. A system that refuses them still gives the memory, so that is no error.
#[cfg(target_os = "linux")]
fn advise_huge_pages(pages: &MmapMut) {
    let _ = pages.advise(memmap2::Advice::HugePage);
}

/// This system has no such advice.
#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_pages: &MmapMut) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_disjoint_aligned_zero_and_keep_what_was_filled() {
        let sizes = [1, 64, 0, 65, 4096, 3];
        let mut plan = ArenaPlan::new();
        let ranges = sizes.map(|bytes| plan.add(bytes));
        let mut builder = plan.allocate().unwrap();
        for (slice, (index, size)) in builder.slices_mut().into_iter().zip(sizes.into_iter().enumerate()) {
            assert_eq!(slice.len(), size);
            assert!(slice.iter().all(|&byte| byte == 0));
            assert_eq!(slice.as_ptr().align_offset(RANGE_ALIGNMENT), 0);
            slice.fill(u8::try_from(index).unwrap() + 1);
        }
        let arena = builder.freeze();
        for (index, range) in ranges.into_iter().enumerate() {
            assert_eq!(arena.bytes(range), vec![u8::try_from(index).unwrap() + 1; sizes[index]]);
        }
    }

    #[test]
    fn a_plan_beyond_the_address_space_is_refused() {
        let mut plan = ArenaPlan::new();
        plan.add(usize::MAX - 100);
        plan.add(200);
        assert!(matches!(plan.allocate(), Err(ArenaError::TooLarge)));
    }

    #[test]
    fn memory_that_the_system_does_not_have_is_refused() {
        let mut plan = ArenaPlan::new();
        plan.add(usize::MAX / 2 - (4 << 20));
        assert!(matches!(plan.allocate(), Err(ArenaError::OutOfMemory { .. })));
    }
}
