// Products with one activation row and weights with a float scale per 32 (all such types but NVFP4): rule 4 of
// docs/numerics.md by dp4a, over the rows as the file stores them.
//
// As in gemv.cu the blocks, here of 32 weights, lie one after the other, whatever row they belong to: a warp copies runs of
// them into its own ring in shared memory, and a lane multiplies a block without help from others. The c of each block waits
// in shared memory until one thread per row runs the chain acc = fma(dy, c, acc) in ascending order. The next rows' weights
// are under way meanwhile.
//
// Memory-bound: 17 (MXFP4) to 34 (Q8_0) bytes per block, read once; 4.55 TB/s is the ceiling, 62 us for the 282 MB of gate
// and up in Q8_0. Of that time 40 (Q8_0) to 90 % (MXFP4) goes into issuing some 50 to 80 instructions per warp and 32 blocks.
#include "formats.cuh"
#include "launch.cuh"
#include "matmul.cuh"
#include "one_row.cuh"

constexpr int BLOCKS_PER_LANE = 4;
constexpr int RUN = 32 * BLOCKS_PER_LANE;  // blocks that a warp copies at a time
// Runs start at multiples of this many blocks, which are multiples of 16 bytes for every type.
constexpr int RUN_UNIT = 16;
// Bytes of a group of codes in shared memory: 16 more than it has, so that eight neighbouring lanes meet no bank twice.
constexpr int PITCH = 32 + 16;

extern __shared__ __align__(16) uint8_t shared[];

// A block of BYTES bytes in shared memory, put together from aligned words: its first HEAD bytes, and WORDS words behind them.
template <int BYTES, int HEAD, int WORDS>
struct Fields {
    uint32_t head, word[WORDS];

    __device__ __forceinline__ Fields(const uint8_t* block) {
        const uint32_t misaligned = BYTES % 4 == 0 ? 0 : shared_offset(block) & 3;
        const uint32_t* aligned = (const uint32_t*)(block - misaligned);
        // HEAD is 4 where blocks are multiples of 4 bytes, and the shift else at most 32.
        const uint32_t shift = 8 * (misaligned + HEAD);
        uint32_t before = aligned[0];
        head = before >> (8 * misaligned);
#pragma unroll
        for (int k = 0; k < WORDS; k++) {
            const uint32_t next = aligned[k + 1];
            word[k] = __funnelshift_rc(before, next, shift);
            before = next;
        }
    }
    __device__ __forceinline__ static uint32_t shared_offset(const uint8_t* bytes) {
        return (uint32_t)__cvta_generic_to_shared(bytes);
    }
};

// The 32 codes of the activations of a group, and their sum.
struct Group {
    uint32_t codes[8];
    int sum;

    __device__ __forceinline__ Group(const uint8_t* from, const int16_t* sum_at) : sum(*sum_at) {
        const uint4 first = *(const uint4*)from, second = *(const uint4*)(from + 16);
        codes[0] = first.x, codes[1] = first.y, codes[2] = first.z, codes[3] = first.w;
        codes[4] = second.x, codes[5] = second.y, codes[6] = second.z, codes[7] = second.w;
    }
};

// Sum of the products of 32 nibbles: the lower ones of four words, then the upper ones.
__device__ __forceinline__ int dot_nibbles(const uint32_t* words, const Group& x) {
    int low = 0, high = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        low = dot_unsigned(words[k] & 0x0f0f0f0f, x.codes[k], low);
        // Sixteen times the sum: the upper nibbles stay where they are.
        high = dot_unsigned(words[k] & 0xf0f0f0f0, x.codes[k + 4], high);
    }
    return low + (high >> 4);
}

// The same with a fifth bit for each: bit k of `fifth` belongs to column k.
__device__ __forceinline__ int dot_five_bits(uint32_t fifth, const uint32_t* words, const Group& x) {
    int sum = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        // The product spreads four bits to bit 4 of four bytes.
        const uint32_t low = (fifth >> (4 * k) & 15) * 0x02040810u, high = (fifth >> (16 + 4 * k) & 15) * 0x02040810u;
        sum = dot_unsigned((words[k] & 0x0f0f0f0f) | (low & 0x10101010), x.codes[k], sum);
        sum = dot_unsigned((words[k] >> 4 & 0x0f0f0f0f) | (high & 0x10101010), x.codes[k + 4], sum);
    }
    return sum;
}

// Sixteen signed bytes, looked up by nibbles.
struct ByteTable {
    uint32_t words[4];

    // Values of nibbles 0 to 3 of `nibbles`; `low` are their three lower bits.
    __device__ __forceinline__ uint32_t four(uint32_t nibbles, uint32_t low) const {
        const uint32_t small = __byte_perm(words[0], words[1], low), large = __byte_perm(words[2], words[3], low);
        return __byte_perm(small, large, (nibbles >> 1 & 0x4444) | 0x3210);
    }
    __device__ __forceinline__ int dot(const uint32_t* of_block, const Group& x) const {
        int sum = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t nibbles = of_block[k], low = nibbles & 0x77777777;
            // Lower and upper nibbles of two bytes each.
            const uint32_t first = four(nibbles, low), second = four(nibbles >> 16, low >> 16);
            sum = dot_signed(__byte_perm(first, second, 0x6420), x.codes[k], sum);
            sum = dot_signed(__byte_perm(first, second, 0x7531), x.codes[k + 4], sum);
        }
        return sum;
    }
};
__device__ __forceinline__ ByteTable iq4_table() { return {{0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535}}; }
__device__ __forceinline__ ByteTable e2m1_table() { return {{0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc}}; }

// Rule 4: c of a block whose codes' products sum to P; m of types with mins.
__device__ __forceinline__ float scaled(float d, int p) { return __fmaf_rn(d, (float)p, 0.0f); }
__device__ __forceinline__ float with_min(float m, int sum, float c) { return __fmaf_rn(m, (float)sum, c); }

struct Q40Block {
    static constexpr int BYTES = 18;
    __device__ __forceinline__ static float multiply(const uint8_t* block, const Group& x) {
        const Fields<BYTES, 2, 4> b(block);
        return scaled(half_of(b.head, 0), dot_nibbles(b.word, x) - 8 * x.sum);
    }
};
struct Q41Block {
    static constexpr int BYTES = 20;
    __device__ __forceinline__ static float multiply(const uint8_t* block, const Group& x) {
        const Fields<BYTES, 4, 4> b(block);
        return with_min(half_of(b.head, 1), x.sum, scaled(half_of(b.head, 0), dot_nibbles(b.word, x)));
    }
};
struct Q50Block {
    static constexpr int BYTES = 22;
    __device__ __forceinline__ static float multiply(const uint8_t* block, const Group& x) {
        const Fields<BYTES, 2, 5> b(block);
        return scaled(half_of(b.head, 0), dot_five_bits(b.word[0], b.word + 1, x) - 16 * x.sum);
    }
};
struct Q51Block {
    static constexpr int BYTES = 24;
    __device__ __forceinline__ static float multiply(const uint8_t* block, const Group& x) {
        const Fields<BYTES, 4, 5> b(block);
        const float c = scaled(half_of(b.head, 0), dot_five_bits(b.word[0], b.word + 1, x));
        return with_min(half_of(b.head, 1), x.sum, c);
    }
};
struct Q80Block {
    static constexpr int BYTES = 34;
    __device__ __forceinline__ static float multiply(const uint8_t* block, const Group& x) {
        const Fields<BYTES, 2, 8> b(block);
        int sum = 0;
#pragma unroll
        for (int k = 0; k < 8; k++) sum = dot_signed(b.word[k], x.codes[k], sum);
        return scaled(half_of(b.head, 0), sum);
    }
};
struct Iq4NlBlock {
    static constexpr int BYTES = 18;
    __device__ __forceinline__ static float multiply(const uint8_t* block, const Group& x) {
        const Fields<BYTES, 2, 4> b(block);
        return scaled(half_of(b.head, 0), iq4_table().dot(b.word, x));
    }
};
struct Mxfp4Block {
    static constexpr int BYTES = 17;
    __device__ __forceinline__ static float multiply(const uint8_t* block, const Group& x) {
        const Fields<BYTES, 1, 4> b(block);
        return scaled(e8m0_halved(b.head & 255), e2m1_table().dot(b.word, x));
    }
};

__device__ __forceinline__ int block_bytes(uint32_t type) {
    switch (type) {
        case Q4_0: case IQ4_NL: return Q40Block::BYTES;
        case Q4_1: return Q41Block::BYTES;
        case Q5_0: return Q50Block::BYTES;
        case Q5_1: return Q51Block::BYTES;
        case Q8_0: return Q80Block::BYTES;
        default: return Mxfp4Block::BYTES;
    }
}

// Shared memory: the rings, the row's codes, scales and sums, then c of the blocks of `pass_rows` rows.
struct Memory {
    int groups, pitch;  // of a row; an odd pitch, so that the threads that read the rows meet no bank twice
    int stage_bytes;    // room for the longest run among the matrices, and 16 bytes that a lane may read past it
    uint8_t *ring, *codes;
    float* scales;
    int16_t* sums;
    float* terms;

    __device__ __forceinline__ Memory(int groups_of_a_row, int bytes_of_a_stage)
        : groups(groups_of_a_row), pitch(groups_of_a_row | 1), stage_bytes(bytes_of_a_stage) {
        ring = shared + threadIdx.x / 32 * (STAGES * stage_bytes);
        codes = shared + WARPS * STAGES * stage_bytes;
        scales = (float*)(codes + groups * PITCH);
        sums = (int16_t*)(scales + (groups + 3) / 4 * 4);
        terms = (float*)(sums + (groups + 7) / 8 * 8);
    }

    // Brings the activations here.
    __device__ __forceinline__ void prepare(const int8_t* from_codes, const float* from_scales, const int16_t* from_sums) const {
#pragma unroll 2
        for (int i = threadIdx.x; i < groups * 2; i += THREADS) {
            *(uint4*)(codes + i / 2 * PITCH + i % 2 * 16) = ((const uint4*)from_codes)[i];
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < groups; i += THREADS) {
            scales[i] = from_scales[i];
            sums[i] = from_sums[i];
        }
    }
};

// Rows of one matrix whose terms fit shared memory together, as runs of blocks: warp w takes runs w, w + WARPS, ...
struct Pass {
    const MatmulItem* item;
    int row, rows;    // of the matrix
    int runs;
    int skipped;      // blocks of the first run that belong to rows before
    int64_t first;    // block of the matrix with which the first run starts

    // The rows from `begin`, numbered through over all matrices, to `end` at most.
    __device__ __forceinline__ Pass(const MatmulItems& items, int begin, int end, int pass_rows, int groups) {
        item = &items.of(begin);
        row = begin - (int)item->first_tile;
        rows = min(min(end - begin, (int)item->outputs - row), pass_rows);
        first = (int64_t)row * groups;
        skipped = (int)(first % RUN_UNIT);
        first -= skipped;
        runs = (skipped + rows * groups + RUN - 1) / RUN;
    }

    // Starts copying run `run`, if there is one.
    __device__ __forceinline__ void start_run(uint8_t* stage, int run, int groups) const {
        if (run < runs) {
            const int bytes_of_block = block_bytes(item->type()), run_bytes = RUN * bytes_of_block;
            const uint64_t bytes = item->outputs * groups * bytes_of_block;
            const uint64_t from = (uint64_t)(first + (int64_t)run * RUN) * bytes_of_block;
            const uint32_t to = (uint32_t)__cvta_generic_to_shared(stage);
            for (int at = threadIdx.x % 32 * 16; at < run_bytes; at += 32 * 16) {
                if (from + at < bytes) start_copy(to + at, item->raw + from + at);
            }
        }
        end_group();
    }

    // c of every block. The first run is on its way to stage `stage`, which becomes the stage of the next run to come.
    template <class Block>
    __device__ __forceinline__ void multiply(const Memory& memory, int& stage) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, groups = memory.groups, pitch = memory.pitch;
        const int blocks = rows * groups;
        // Number of the lane's block among those of the rows, the group of columns that it is, and the place of its c.
        int at = warp * RUN + lane - skipped;
        const int shifted = at + RUN_UNIT * groups;
        int group = shifted % groups, place = (shifted / groups - RUN_UNIT) * pitch + group;
        auto advance = [&](int by, int by_rows, int by_groups) {
            at += by;
            group += by_groups;
            place += by_rows * pitch + by_groups;
            if (group >= groups) {
                group -= groups;
                place += pitch - groups;
            }
        };
        const int rows_of_32 = 32 / groups, groups_of_32 = 32 % groups;
        constexpr int TO_NEXT = (WARPS - 1) * RUN;
        const int rows_to_next = TO_NEXT / groups, groups_to_next = TO_NEXT % groups;
        for (int run = warp; run < runs; run += WARPS) {
            start_run(memory.ring + (stage ^ 1) * memory.stage_bytes, run + WARPS, groups);
            wait_for_group_before();
            __syncwarp();
            const uint8_t* block = memory.ring + stage * memory.stage_bytes + lane * Block::BYTES;
#pragma unroll 2
            for (int i = 0; i < BLOCKS_PER_LANE; i++) {
                const Group x(memory.codes + group * PITCH, memory.sums + group);
                const float c = Block::multiply(block + i * (32 * Block::BYTES), x);
                if (at >= 0 && at < blocks) memory.terms[place] = c;
                advance(32, rows_of_32, groups_of_32);
            }
            advance(TO_NEXT, rows_to_next, groups_to_next);
            __syncwarp();
            stage ^= 1;
        }
    }

    __device__ __forceinline__ void multiply(const Memory& memory, int& stage) const {
        switch (item->type()) {
            case Q4_0: multiply<Q40Block>(memory, stage); break;
            case Q4_1: multiply<Q41Block>(memory, stage); break;
            case Q5_0: multiply<Q50Block>(memory, stage); break;
            case Q5_1: multiply<Q51Block>(memory, stage); break;
            case Q8_0: multiply<Q80Block>(memory, stage); break;
            case IQ4_NL: multiply<Iq4NlBlock>(memory, stage); break;
            default: multiply<Mxfp4Block>(memory, stage); break;
        }
    }

    // The chains of the rows, once every c is there.
    __device__ __forceinline__ void finish(const Memory& memory) const {
        if ((int)threadIdx.x >= rows) return;
        const float* terms = memory.terms + threadIdx.x * memory.pitch;
        float acc = 0.0f;
#pragma unroll 8
        for (int group = 0; group < memory.groups; group++) acc = __fmaf_rn(memory.scales[group], terms[group], acc);
        item->finish(0, row + threadIdx.x, acc);
    }
};

// items: any of the types, and first_tile is the number of a matrix's first row among the `rows` rows of all of them. codes,
// scales and sums are those of groups of 32, `groups` of them.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    gemv_scaled(const __grid_constant__ MatmulItems items, const int8_t* codes, const float* scales, const int16_t* sums,
                uint32_t groups_, uint32_t rows_, uint32_t pass_rows, uint32_t stage_bytes) {
    let_next_start();
    const int groups = (int)groups_;
    const Memory memory(groups, (int)stage_bytes);
    int begin = (int)((int64_t)rows_ * blockIdx.x / gridDim.x);
    const int end = (int)((int64_t)rows_ * (blockIdx.x + 1) / gridDim.x), warp = threadIdx.x / 32;
    int stage = 0;
    // The grid has no more thread blocks than there are rows.
    Pass pass(items, begin, end, (int)pass_rows, groups);
    pass.start_run(memory.ring, warp, groups);
    wait_for_previous();
    memory.prepare(codes, scales, sums);
    __syncthreads();
    while (true) {
        pass.multiply(memory, stage);
        begin += pass.rows;
        const Pass next(items, min(begin, end - 1), end, (int)pass_rows, groups);
        if (begin < end) next.start_run(memory.ring + stage * memory.stage_bytes, warp, groups);
        __syncthreads();
        pass.finish(memory);
        if (begin >= end) return;
        __syncthreads();
        pass = next;
    }
}
