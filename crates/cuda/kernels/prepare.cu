// Repacking of weights as the file stores them into the layouts of the Hopper kernels, once at load; rule 1 of
// docs/numerics.md. Memory-bound: 0.56 bytes per weight in and 0.64 (half tiles) or
// 2.02 (planes) out; for float scales up to 1.06 in and 1.13 or 1.25 out.
#include "formats.cuh"
#include "prepared.cuh"
#include "scaled_tiles.cuh"

// The limits of the f16-exact product (matmul_half.cu): |w'| and |M| are integers that f16 holds, and every sum of a
// block of 256 products with 8-bit activations stays below 2^24.
constexpr int HALF_WEIGHT_MAX = 2048;
constexpr int HALF_SUM_MAX = ((1 << 24) - 1) / 127;

// Sets *refused to 1 if some block of the tensor is beyond the limits. One thread per block of 256.
extern "C" __global__ void __launch_bounds__(256)
    check_half(const uint8_t* raw, uint64_t blocks, uint32_t form, uint32_t* refused) {
    const uint64_t index = blockIdx.x * 256ull + threadIdx.x;
    if (index >= blocks) return;
    const uint8_t* block = raw + index * 144;
    uint32_t header[4];
    words_at(header, block);
    const float d = half_at(block), dmin = half_at(block + 2);
    int sum = 0;
    bool fits = true;
    for (int j = 0; j < 8; j++) {
        int scale, min;
        six_bit_pair(header + 1, j, scale, min);
        fits &= fabsf(integer_min(d, dmin, min, form)) <= (float)HALF_WEIGHT_MAX;
        IntegerWeights weights;
        decode_integer_scales<Q4_K>(weights, block, j, form);
        for (int k = 0; k < 32; k++) {
            const int size = abs(weights.weight[k]);
            fits &= size <= HALF_WEIGHT_MAX;
            sum += size;
        }
    }
    if (!fits || sum > HALF_SUM_MAX) atomicExch(refused, 1u);
}

__device__ __forceinline__ int q4_k_code(const uint8_t* raw, int outputs, int blocks, int output, int block, int k) {
    if (output >= outputs) return 0;
    const uint8_t* nibbles = raw + ((size_t)output * blocks + block) * 144 + 16 + k / 64 * 32;
    return nibbles[k % 32] >> (k / 32 % 2 * 4) & 15;
}

// One tile of 192 outputs by block `blockIdx.y` of a Q4_K tensor whose form is not GEN.
extern "C" __global__ void __launch_bounds__(256)
    prepare_half(const uint8_t* raw, uint8_t* tiles, uint32_t outputs_, uint32_t blocks_, uint32_t form) {
    const int outputs = (int)outputs_, blocks = (int)blocks_, block = blockIdx.y, first = blockIdx.x * HALF_OUTPUTS;
    uint8_t* tile = tiles + ((size_t)blockIdx.x * blocks + block) * HALF_TILE_BYTES;
    for (int i = threadIdx.x; i < HALF_FACTORS_AT / 4; i += 256) {
        // A word holds, of outputs g and g + 8 of a warp's 16, two neighbouring columns each of two k-groups of 8.
        const int word = i % 4, lane = i / 4 % 32, chunk = i / 128 % 4, warp = i / 512;
        const int output = first + warp * 16 + lane / 4;
        const int k = chunk * 64 + word / 2 * 32 + word % 2 * 16 + 2 * (lane % 4);
        uint32_t packed = 0;
#pragma unroll
        for (int side = 0; side < 2; side++) {
            packed |= (uint32_t)q4_k_code(raw, outputs, blocks, output, block, k + side) << (16 * side);
            packed |= (uint32_t)q4_k_code(raw, outputs, blocks, output + 8, block, k + side) << (16 * side + 4);
            packed |= (uint32_t)q4_k_code(raw, outputs, blocks, output, block, k + 8 + side) << (16 * side + 8);
            packed |= (uint32_t)q4_k_code(raw, outputs, blocks, output + 8, block, k + 8 + side) << (16 * side + 12);
        }
        *(uint32_t*)(tile + i * 4) = packed;
    }
    for (int i = threadIdx.x; i < HALF_OUTPUTS * 8; i += 256) {
        const int r = i / 8, j = i % 8;
        int scale = 0, min = 0;
        float offset = 0.0f;
        if (first + r < outputs) {
            const uint8_t* source = raw + ((size_t)(first + r) * blocks + block) * 144;
            uint32_t header[4];
            words_at(header, source);
            six_bit_pair(header + 1, j, scale, min);
            offset = integer_min(half_at(source), half_at(source + 2), min, form);
        }
        // A field in bits 0 to 3 of an f16 is code * 2^-24, one in bits 4 to 7 code * 2^-20: the factors make both
        // sc * code * 2^-14 (w' = 2 sc code - M in units of 2^-15 with e = 1).
        __half* pair = (__half*)(tile + HALF_FACTORS_AT + r * 32 + j * 4);
        pair[0] = __float2half_rn((float)scale * (r % 16 < 8 ? 1024.0f : 64.0f));
        pair[1] = __float2half_rn(-offset * (form == HALF_STEPS ? 0x1p-15f : 0x1p-14f));
    }
    for (int r = threadIdx.x; r < HALF_OUTPUTS; r += 256) {
        float d = 0.0f;
        if (first + r < outputs) d = half_at(raw + ((size_t)(first + r) * blocks + block) * 144);
        *(float*)(tile + HALF_SCALES_AT + r * 4) = d * 16384.0f;
    }
}

// One tile of 128 outputs by block `blockIdx.y` of a tensor with integer sub-scales whose form is not GEN.
extern "C" __global__ void __launch_bounds__(256)
    prepare_planes(const uint8_t* raw, uint8_t* tiles, uint32_t outputs_, uint32_t blocks_, uint32_t type, uint32_t form) {
    const int outputs = (int)outputs_, blocks = (int)blocks_, block = blockIdx.y, first = blockIdx.x * PLANE_OUTPUTS;
    uint8_t* tile = tiles + ((size_t)blockIdx.x * blocks + block) * PLANE_TILE_BYTES;
    for (int i = threadIdx.x; i < PLANE_OUTPUTS * 8; i += 256) {
        const int r = i / 8, j = i % 8;
        IntegerWeights weights = {};
        if (first + r < outputs) {
            const uint8_t* source = raw + ((size_t)(first + r) * blocks + block) * integer_block_bytes(type);
            decode_integer_scales(weights, type, source, j, form);
        }
#pragma unroll
        for (int word = 0; word < 8; word++) {
            uint32_t lo = 0, hi = 0;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int w = weights.weight[word * 4 + k];
                lo |= (uint32_t)(w & 255) << (8 * k);
                hi |= (uint32_t)(w >> 8 & 255) << (8 * k);
            }
            const int column = j % 4 * 32 + word * 4;
            const int at = j / 4 * (PLANE_BYTES / 2) + r * 128 + (column / 16 ^ (r & 7)) * 16 + column % 16;
            *(uint32_t*)(tile + at) = lo;
            *(uint32_t*)(tile + PLANE_BYTES + at) = hi;
        }
        if (j == 0) *(float*)(tile + PLANE_SCALES_AT + r * 4) = weights.scale;
    }
}

// One tile of 128 outputs by the two chunks of block `blockIdx.y` of a tensor with a float scale per 32 weights.
extern "C" __global__ void __launch_bounds__(256)
    prepare_scaled(const uint8_t* raw, uint8_t* tiles, uint32_t outputs_, uint32_t blocks_, uint32_t type, uint32_t groups,
                   uint32_t row_bytes) {
    const int outputs = (int)outputs_, blocks = (int)blocks_, block = blockIdx.y, first = blockIdx.x * SCALED_OUTPUTS;
    const bool has_mins = type == Q4_1 || type == Q5_1;
    const int tile_bytes = scaled_weights_bytes(has_mins), width = has_mins ? 4 : 2;
    uint8_t* chunks = tiles + ((size_t)blockIdx.x * blocks + block) * 2 * tile_bytes;
    for (int i = threadIdx.x; i < SCALED_OUTPUTS * 8; i += 256) {
        const int r = i / 8, j = i % 8;
        ScaledWeights weights = {};
        if (first + r < outputs && block * 8 + j < (int)groups) {
            decode_float_scales(weights, type, raw + (size_t)(first + r) * row_bytes, block * 8 + j);
        }
        uint8_t* tile = chunks + j / SCALED_GROUPS * tile_bytes;
        const int group = j % SCALED_GROUPS;
#pragma unroll
        for (int word = 0; word < 8; word++) {
            *(uint32_t*)(tile + scaled_code_at(r, group * 32 + word * 4)) = weights.codes[word];
        }
        float* scales = (float*)(tile + SCALED_CODES_BYTES) + (group * 64 + scaled_pair_of(r)) * width + r / 8 % 2;
        scales[0] = weights.scale[0];
        if (has_mins) scales[2] = weights.min;
    }
}
