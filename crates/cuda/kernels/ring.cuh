// Ring of slots in shared memory that one thread fills by bulk copies and the warps of several warpgroups read.
//
// Steps are numbered through over all parts of a thread block's share; step s lies in slot s % SLOTS. A warp releases a slot
// only where its program order already needs every value that it loaded from there: after the next matrix product that
// overwrites the sums these values were multiplied with, or after an instruction that used them. Released right after the
// loads were issued, the copy engine now and then overtakes them.
#pragma once
#include "hopper.cuh"

#if HOPPER
template <int SLOTS>
struct Ring {
    uint32_t barriers; // shared address of 16 * SLOTS bytes

    __device__ __forceinline__ uint32_t full(int step) const { return barriers + 8 * (step % SLOTS); }
    __device__ __forceinline__ uint32_t free(int step) const { return barriers + 8 * (SLOTS + step % SLOTS); }

    // Called by one thread before all others go on.
    __device__ __forceinline__ void init(int reading_warps) const {
        for (int slot = 0; slot < SLOTS; slot++) {
            barrier_init(full(slot), 1);
            barrier_init(free(slot), reading_warps);
        }
        barrier_init_done();
    }
    // Waits until the slot of `step` may be written, and announces `bytes` of copies to full(step).
    __device__ __forceinline__ void begin_copies(int step, uint32_t bytes) const {
        barrier_wait(free(step), (step / SLOTS & 1) ^ 1);
        barrier_expect(full(step), bytes);
    }
    __device__ __forceinline__ void wait_full(int step) const { barrier_wait(full(step), step / SLOTS & 1); }
    // Called by one lane of every reading warp.
    __device__ __forceinline__ void release(int step) const { barrier_arrive(free(step)); }
};
#endif
