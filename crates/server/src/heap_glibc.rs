//! Memory that was freed and that the allocator keeps: glibc holds what its threads have freed, gigabytes after large requests.

/// Gives freed memory back to the system. Takes milliseconds for each gigabyte, and holds up other threads' allocations.
pub fn give_back() {
    // SAFETY: `malloc_trim` may be called at any time from any thread; it touches free memory only.
    unsafe { libc::malloc_trim(0) };
}
