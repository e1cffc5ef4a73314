// Comparison of buffers on the device, for the checks that repeat an operation hundreds of times.
#include <cuda_runtime.h>
#include <stdint.h>

// Counts the 32-bit words in which two buffers of `words` words differ: found[0] grows by the count, found[1] sinks to the
// lowest index (it starts at all ones). Two NaNs are equal: the payload of a NaN is not defined.
extern "C" __global__ void __launch_bounds__(256)
    count_differences(const uint32_t* left, const uint32_t* right, uint64_t words, unsigned long long* found) {
    unsigned long long count = 0, first = ~0ull;
    for (uint64_t i = blockIdx.x * 256ull + threadIdx.x; i < words; i += gridDim.x * 256ull) {
        const uint32_t a = left[i], b = right[i];
        const bool both_nan = (a & 0x7fffffffu) > 0x7f800000u && (b & 0x7fffffffu) > 0x7f800000u;
        if (a != b && !both_nan) {
            count++;
            first = i < first ? i : first;
        }
    }
    if (count) {
        atomicAdd(&found[0], count);
        atomicMin(&found[1], first);
    }
}
