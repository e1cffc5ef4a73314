//! Memory that was freed and that the allocator keeps: here for allocators that give it back by themselves.

/// Gives freed memory back to the system.
pub fn give_back() {}
