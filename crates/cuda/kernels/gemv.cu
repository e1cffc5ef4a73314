// Products with one activation row: rule 3 of docs/numerics.md by dp4a, over the rows as the file stores them.
//
// The blocks of 256 weights of a matrix lie one after the other, whatever row they belong to. A warp copies a run of them
// into its own ring in shared memory (cp.async) and a lane multiplies a block (Q6_K: half of one) without help from others,
// so that the sub-scales of a block are unpacked once. I_g and RN(D dy_g) wait in shared memory until one thread per row
// runs the float chain in ascending order. I_g is an int32 (rule 1 bounds it by 2^30), so any order within it is exact.
//
// Memory-bound: 144 (Q4_K), 176 (Q5_K) or 210 (Q6_K) bytes per block, read once; 4.55 TB/s is the ceiling, 33 us for the
// 152 MB of gate and up. About 7 (Q4_K) to 15 (Q6_K) instructions per warp and block, a third of what the time allows. The
// first weights are under way before the kernel waits for the one before it (programmatic dependent launch).
#include "formats.cuh"
#include "launch.cuh"
#include "matmul.cuh"
#include "one_row.cuh"

// Bytes of a block of codes in shared memory: 16 more than it has, so that lanes with neighbouring blocks meet no bank twice.
constexpr int PITCH = 256 + 16;

extern __shared__ __align__(16) uint8_t shared[];

// A block's share of the product: integer part and D.
struct Term {
    int integer;
    float scale;
};

// Sub-scales, sub-mins, d and dmin of a block with mins, and the sum of M_j S_j.
struct Mins {
    uint32_t scales[2], mins[2];  // four 6-bit values each
    float d, ratio;

    // `steps` is 2^e. RN(rho m 2^e) is RN(RN(rho m) 2^e): doubling is exact, and what it could underflow rounds to M = 0.
    __device__ __forceinline__ Mins(const uint4& header, float steps) {
        scales[0] = header.y & 0x3f3f3f3f;
        mins[0] = header.z & 0x3f3f3f3f;
        scales[1] = (header.w & 0x0f0f0f0f) | (header.y >> 2 & 0x30303030);
        mins[1] = (header.w >> 4 & 0x0f0f0f0f) | (header.z >> 2 & 0x30303030);
        d = half_of(header.x, 0);
        const float dmin = half_of(header.x, 1);
        ratio = dmin == 0.0f ? 0.0f : __fmul_rn(__fdiv_rn(dmin, d), steps);
    }
    __device__ __forceinline__ int scale(int j) const { return byte_of(scales[j / 4], j % 4); }
    __device__ __forceinline__ int offset(const int16_t* sums) const {
        const uint4 packed = *(const uint4*)sums;
        const uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
        int offset = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int m = __float2int_rn(__fmul_rn(ratio, (float)byte_of(mins[j / 4], j % 4)));
            const int sum = j % 2 ? (int)pairs[j / 2] >> 16 : (int)(int16_t)pairs[j / 2];
            offset += m * sum;
        }
        return offset;
    }
};

// Q4_K: a lane holds a block.
struct Q4Block {
    static constexpr int BYTES = 144, LANES = 1;

    __device__ __forceinline__ static Term multiply(const uint8_t* block, int, const uint8_t* x, const int16_t* sums,
                                                    uint32_t form) {
        const Mins mins(*(const uint4*)block, form == HALF_STEPS ? 2.0f : 1.0f);
        int sum = 0;
#pragma unroll
        for (int chunk = 0; chunk < 4; chunk++) {
            int low = 0, high = 0;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint4 codes = *(const uint4*)(block + 16 + chunk * 32 + half * 16);
                const uint4 first = *(const uint4*)(x + chunk * 64 + half * 16);
                const uint4 second = *(const uint4*)(x + chunk * 64 + 32 + half * 16);
                low = dot_unsigned(codes.x & 0x0f0f0f0f, first.x, low);
                low = dot_unsigned(codes.y & 0x0f0f0f0f, first.y, low);
                low = dot_unsigned(codes.z & 0x0f0f0f0f, first.z, low);
                low = dot_unsigned(codes.w & 0x0f0f0f0f, first.w, low);
                // Sixteen times the sum: the high nibbles stay where they are.
                high = dot_unsigned(codes.x & 0xf0f0f0f0, second.x, high);
                high = dot_unsigned(codes.y & 0xf0f0f0f0, second.y, high);
                high = dot_unsigned(codes.z & 0xf0f0f0f0, second.z, high);
                high = dot_unsigned(codes.w & 0xf0f0f0f0, second.w, high);
            }
            sum += mins.scale(2 * chunk) * low + mins.scale(2 * chunk + 1) * (high >> 4);
        }
        const bool half_steps = form == HALF_STEPS;
        return {(half_steps ? 2 * sum : sum) - mins.offset(sums), half_steps ? __fmul_rn(mins.d, 0.5f) : mins.d};
    }
};

// Q5_K: a lane holds a block; bit j of byte k of the high bits belongs to column 32 j + k.
struct Q5Block {
    static constexpr int BYTES = 176, LANES = 1;

    __device__ __forceinline__ static Term multiply(const uint8_t* block, int, const uint8_t* x, const int16_t* sums,
                                                    uint32_t form) {
        const Mins mins(*(const uint4*)block, form == HALF_STEPS ? 2.0f : 1.0f);
        int sum = 0;
#pragma unroll
        for (int chunk = 0; chunk < 4; chunk++) {
            int low = 0, high = 0;
#pragma unroll
            for (int word = 0; word < 8; word++) {
                const uint32_t codes = *(const uint32_t*)(block + 48 + chunk * 32 + word * 4);
                const uint32_t fifth = *(const uint32_t*)(block + 16 + word * 4) >> (2 * chunk);
                const uint32_t first = *(const uint32_t*)(x + chunk * 64 + word * 4);
                const uint32_t second = *(const uint32_t*)(x + chunk * 64 + 32 + word * 4);
                low = dot_unsigned((codes & 0x0f0f0f0f) | (fifth << 4 & 0x10101010), first, low);
                high = dot_unsigned((codes >> 4 & 0x0f0f0f0f) | (fifth << 3 & 0x10101010), second, high);
            }
            sum += mins.scale(2 * chunk) * low + mins.scale(2 * chunk + 1) * high;
        }
        const bool half_steps = form == HALF_STEPS;
        return {(half_steps ? 2 * sum : sum) - mins.offset(sums), half_steps ? __fmul_rn(mins.d, 0.5f) : mins.d};
    }
};

// Q6_K: two lanes hold a block, 128 columns each. Blocks start at multiples of 2 bytes.
struct Q6Block {
    static constexpr int BYTES = 210, LANES = 2;

    // The four bytes at `bytes`, a multiple of 2 in shared memory.
    __device__ __forceinline__ static uint32_t word_at(const uint8_t* bytes) {
        const uint32_t address = (uint32_t)__cvta_generic_to_shared(bytes);
        const uint32_t* aligned = (const uint32_t*)(bytes - (address & 2));
        return __funnelshift_r(aligned[0], aligned[1], 8 * (address & 2));
    }
    // Four weights times 4, which is code - 32 in the upper six bits of each byte: nibbles in bits 2 to 5, pairs in bits 6
    // and 7 with the upper one turned.
    __device__ __forceinline__ static uint32_t weights(uint32_t nibbles, uint32_t pairs) {
        return (((nibbles & 0x3c3c3c3c) | (pairs & ~0x3c3c3c3c)) & 0xfcfcfcfc) ^ 0x80808080;
    }
    __device__ __forceinline__ static Term multiply(const uint8_t* block, int half, const uint8_t* x, const int16_t*,
                                                    uint32_t) {
        x += half * 128;
        int products[4][2] = {};  // of each 16 columns, times 4
#pragma unroll
        for (int word = 0; word < 8; word++) {
            const uint32_t a = word_at(block + half * 64 + word * 4), b = word_at(block + half * 64 + 32 + word * 4);
            const uint32_t pairs = word_at(block + 128 + half * 32 + word * 4);
            const uint32_t w[4] = {weights(a << 2, pairs << 6), weights(b << 2, pairs << 4), weights(a >> 2, pairs << 2),
                                   weights(b >> 2, pairs)};
#pragma unroll
            for (int quarter = 0; quarter < 4; quarter++) {
                const uint32_t codes = *(const uint32_t*)(x + quarter * 32 + word * 4);
                products[quarter][word / 4] = dot_signed(w[quarter], codes, products[quarter][word / 4]);
            }
        }
        const uint32_t scales[2] = {word_at(block + 192 + half * 8), word_at(block + 196 + half * 8)};
        int sum = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) sum += (int)(int8_t)byte_of(scales[i / 4], i % 4) * products[i / 2][i % 2];
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        return {sum >> 2, half_of(*(const uint16_t*)(block + 208), 0)};
    }
};

// Blocks that a warp copies at a time: 32 lanes' worth.
template <class Block>
constexpr int RUN = 32 / Block::LANES;

// Shared memory: the rings, the row's codes, sums and scales, then the terms of `pass_rows` rows, one float2 per block and
// one over, so that the threads that read the rows meet few banks twice.
struct Memory {
    int stage_bytes;  // room for the longest run among the matrices, and 16 bytes that a lane may read past it
    uint8_t* ring;
    uint8_t* codes;
    int16_t* sums;
    float* scales;
    float2* terms;

    __device__ __forceinline__ Memory(int blocks, int bytes_of_a_stage) {
        stage_bytes = bytes_of_a_stage;
        ring = shared + threadIdx.x / 32 * (STAGES * stage_bytes);
        codes = shared + WARPS * STAGES * stage_bytes;
        sums = (int16_t*)(codes + blocks * PITCH);
        scales = (float*)(sums + blocks * 8);
        terms = (float2*)(scales + (blocks + 3) / 4 * 4);
    }
};

// Copies the run of blocks that starts with block `first` of a matrix of `bytes` bytes.
template <class Block>
__device__ __forceinline__ void copy_run(uint8_t* to, const uint8_t* raw, int64_t first, uint64_t bytes) {
    const uint64_t from = (uint64_t)first * Block::BYTES;
    const uint32_t target = (uint32_t)__cvta_generic_to_shared(to);
#pragma unroll
    for (int i = 0; i < (RUN<Block> * Block::BYTES / 16 + 31) / 32; i++) {
        const int at = (i * 32 + threadIdx.x % 32) * 16;
        if (at < RUN<Block> * Block::BYTES && from + at < bytes) {
            start_copy(target + at, raw + from + at);
        }
    }
}

// Terms of rows `row` to `row` + `rows` of a matrix, then their chains. `prepare` is called once, after the first copies.
template <class Block, class Prepare>
__device__ __forceinline__ void multiply_rows(const MatmulItem& item, const Memory& memory, int row, int rows,
                                              int blocks, Prepare prepare) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = lane % Block::LANES;
    const uint64_t bytes = item.outputs * blocks * Block::BYTES;
    const int64_t begin = (int64_t)row * blocks, end = begin + (int64_t)rows * blocks;
    // Runs start at multiples of 8 blocks, which are multiples of 16 bytes for every type.
    const int64_t aligned = begin / 8 * 8;
    const int runs = (int)((end - aligned + RUN<Block> - 1) / RUN<Block>), pitch = blocks + 1;
    if (warp < runs) copy_run<Block>(memory.ring, item.raw, aligned + warp * RUN<Block>, bytes);
    end_group();
    prepare();
    int stage = 0;
    for (int run = warp; run < runs; run += WARPS) {
        const int next = run + WARPS;
        if (next < runs) {
            copy_run<Block>(memory.ring + (stage ^ 1) * memory.stage_bytes, item.raw, aligned + (int64_t)next * RUN<Block>, bytes);
        }
        end_group();
        wait_for_group_before();
        __syncwarp();
        const int at = (int)(aligned + (int64_t)run * RUN<Block> - begin) + lane / Block::LANES;  // from the first row's first
        const bool wanted = at >= 0 && at < (int)(end - begin);
        const int of_row = wanted ? at / blocks : 0, block = wanted ? at - of_row * blocks : 0;
        const Term term = Block::multiply(memory.ring + stage * memory.stage_bytes + lane / Block::LANES * Block::BYTES, part,
                                          memory.codes + block * PITCH, memory.sums + block * 8, item.form());
        if (wanted && part == 0) {
            memory.terms[of_row * pitch + block] =
                make_float2(__fmul_rn(term.scale, memory.scales[block]), (float)term.integer);
        }
        __syncwarp();
        stage ^= 1;
    }
    __syncthreads();
    if (threadIdx.x < rows) {
        const float2* terms = memory.terms + threadIdx.x * pitch;
        float acc = 0.0f;
#pragma unroll 4
        for (int block = 0; block < blocks; block++) acc = __fmaf_rn(terms[block].x, terms[block].y, acc);
        item.finish(0, row + threadIdx.x, acc);
    }
    __syncthreads();
}

// items: any of the three types, and first_tile is the number of a matrix's first row among the `rows` rows of all of them.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    gemv(const __grid_constant__ MatmulItems items, const int8_t* codes, const float* scales, const int16_t* sums,
         uint32_t blocks_, uint32_t rows_, uint32_t pass_rows, uint32_t stage_bytes) {
    let_next_start();
    const int blocks = (int)blocks_, rows = (int)rows_;
    const Memory memory(blocks, (int)stage_bytes);
    const int end = (int)((int64_t)rows * (blockIdx.x + 1) / gridDim.x);
    bool prepared = false;
    auto prepare = [&] {
        if (prepared) return;
        prepared = true;
        wait_for_previous();
#pragma unroll 2
        for (int i = threadIdx.x; i < blocks * 16; i += THREADS) {
            *(uint4*)(memory.codes + i / 16 * PITCH + i % 16 * 16) = ((const uint4*)codes)[i];
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < blocks; i += THREADS) {
            *(uint4*)(memory.sums + i * 8) = ((const uint4*)sums)[i];
            memory.scales[i] = scales[i];
        }
        __syncthreads();
    };
    for (int row = (int)((int64_t)rows * blockIdx.x / gridDim.x); row < end;) {
        const MatmulItem& item = items.of(row);
        const int of_item = row - (int)item.first_tile;
        const int count = min(min(end - row, (int)item.outputs - of_item), (int)pass_rows);
        switch (item.type()) {
            case Q4_K: multiply_rows<Q4Block>(item, memory, of_item, count, blocks, prepare); break;
            case Q5_K: multiply_rows<Q5Block>(item, memory, of_item, count, blocks, prepare); break;
            default: multiply_rows<Q6Block>(item, memory, of_item, count, blocks, prepare); break;
        }
        row += count;
    }
}
