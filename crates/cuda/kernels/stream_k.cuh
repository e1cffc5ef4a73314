// Ordered stream-K: the blocks of 256 columns of the last tiles of a launch, numbered tile by tile, are shared out evenly
// among the thread blocks, so that no wave of tiles is left half empty.
//
// A tile cut between two thread blocks is still summed in ascending order: the earlier one computes the front of the tile
// and hands its sums over; the later one starts from them. Each thread block computes the front that it hands over first and
// the rest that it takes over last, so it never waits long. Needs at least as many tiles as thread blocks (a tile is then cut
// at most once) and all thread blocks of the grid resident or started in order.
//
// Before that come `waves` of one whole tile for each thread block, side by side: what runs at a time are neighbours, which
// read the same weights and activations while these are in the second-level cache.
#pragma once
#include "hopper.cuh"

#if HOPPER
struct Share {
    int blocks;                  // of a tile
    int waves;                   // whole tiles before the shared ones: blockIdx.x, blockIdx.x + gridDim.x, ...
    int cut_tile, cut_from;      // the tile taken over from block cut_from on, where that is not 0
    int whole_from, whole;       // whole tiles
    int front_tile, front_to;    // the tile whose blocks before front_to are handed over, where that is not 0
    int parts;

    __device__ __forceinline__ Share(int tiles, int blocks_of_a_tile, int waves_of_tiles)
        : blocks(blocks_of_a_tile), waves(waves_of_tiles) {
        const int first = waves * (int)gridDim.x;
        const long long all = (long long)(tiles - first) * blocks;
        const int begin = (int)(all * blockIdx.x / gridDim.x), end = (int)(all * (blockIdx.x + 1) / gridDim.x);
        cut_tile = first + begin / blocks;
        cut_from = begin % blocks;
        front_tile = first + end / blocks;
        front_to = end % blocks;
        whole_from = cut_tile + (cut_from ? 1 : 0);
        whole = front_tile - whole_from;
        parts = waves + (front_to ? 1 : 0) + whole + (cut_from ? 1 : 0);
    }

    // Waves that leave at least one tile for each thread block, and fewer than two.
    __device__ __forceinline__ static int most_waves(int tiles) { return max(tiles / (int)gridDim.x - 1, 0); }

    // Part `index` of `parts`: blocks from ... to of a tile.
    __device__ __forceinline__ void part(int index, int& tile, int& from, int& to) const {
        from = 0;
        to = blocks;
        if (index < waves) {
            tile = index * (int)gridDim.x + (int)blockIdx.x;
            return;
        }
        index -= waves;
        if (front_to) {
            if (index == 0) {
                tile = front_tile;
                to = front_to;
                return;
            }
            index--;
        }
        if (index < whole) {
            tile = whole_from + index;
        } else {
            tile = cut_tile;
            from = cut_from;
        }
    }
};

// Tiles of outputs by tokens, numbered so that those computed at a time share operands: bands of up to `band` tiles of
// tokens, and of each band the tiles of one tile of outputs after the other. Where there are waves, neighbours run at a time.
// Where there are none, neighbours are parts of one run, at different blocks; but the runs of tiles of tokens one after the
// other are at the same block of the same weights where these tiles divide the thread blocks: then a band is one tile.
struct TileOrder {
    int output_tiles, token_tiles, band;

    __device__ __forceinline__ TileOrder(int tiles_of_outputs, int tiles_of_tokens, int widest_band)
        : output_tiles(tiles_of_outputs), token_tiles(tiles_of_tokens) {
        band = Share::most_waves(tiles()) > 0 ? widest_band : 1;
    }
    __device__ __forceinline__ int tiles() const { return output_tiles * token_tiles; }
    __device__ __forceinline__ void place(int tile, int& output_tile, int& token_tile) const {
        const int first = tile / (band * output_tiles) * band, width = min(band, token_tiles - first);
        const int of_band = tile - first * output_tiles;
        output_tile = of_band / width;
        token_tile = first + of_band % width;
    }
};

// Sums of a cut tile between neighbours: SUMS floats of each of THREADS threads per thread block, and a flag that is 1 from
// the hand-over to the taking over.
template <int THREADS, int SUMS>
struct HandOver {
    float* sums;     // [thread blocks][THREADS][SUMS]
    uint32_t* flags; // [thread blocks]
    int barrier;     // number of the named barrier of the THREADS threads

    __device__ __forceinline__ void sync_threads() const {
        asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(THREADS) : "memory");
    }

    // Gives this thread block's sums to the next.
    __device__ __forceinline__ void give(const float (&sum)[SUMS], int thread) const {
        float4* to = (float4*)(sums + ((size_t)blockIdx.x * THREADS + thread) * SUMS);
#pragma unroll
        for (int i = 0; i < SUMS / 4; i++) {
            __stcg(to + i, make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]));
        }
        __threadfence();
        sync_threads();
        if (thread == 0) store_release(flags + blockIdx.x, 1);
    }

    // Takes the sums of the thread block before, once they are there.
    __device__ __forceinline__ void take(float (&sum)[SUMS], int thread) const {
        uint32_t* flag = flags + blockIdx.x - 1;
        if (thread % 32 == 0) {
            while (load_acquire(flag) == 0) {}
        }
        __syncwarp();
        __threadfence();
        const float4* from = (const float4*)(sums + ((size_t)(blockIdx.x - 1) * THREADS + thread) * SUMS);
#pragma unroll
        for (int i = 0; i < SUMS / 4; i++) {
            const float4 value = __ldcg(from + i);
            sum[4 * i] = value.x;
            sum[4 * i + 1] = value.y;
            sum[4 * i + 2] = value.z;
            sum[4 * i + 3] = value.w;
        }
        // All have seen the flag: it is 0 again for the next launch.
        sync_threads();
        if (thread == 0) store_release(flag, 0);
    }
};
#endif
