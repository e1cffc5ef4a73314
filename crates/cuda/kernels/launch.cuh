// Programmatic dependent launch: a kernel starts while the one before it ends. Below sm_90 both are nothing, and the launch
// is never an early one.
#pragma once

// Lets the next kernel of the stream start. It still waits for this one before it reads what this one writes.
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits for the kernel before: every kernel that is launched early calls it before it touches anything that others write.
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
