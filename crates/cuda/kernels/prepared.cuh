// Layouts of weights that the Hopper kernels read: tiles of outputs by 256 columns, each one contiguous bulk copy. Twin of
// the constants in crates/cuda/src/matrix.rs.
#pragma once
#include <stdint.h>

// Half tiles (Q4_K): 192 outputs. Nibbles in the order of wgmma's A fragments (4 warps of 16 outputs in each of 3
// warpgroups, [warp][64 columns][lane] of 16 bytes), then per output and 32 columns the f16 pair (factor of the codes, -M),
// then 2^14 d as f32.
constexpr int HALF_OUTPUTS = 192;
constexpr int HALF_FACTORS_AT = HALF_OUTPUTS * 128;
constexpr int HALF_SCALES_AT = HALF_FACTORS_AT + HALF_OUTPUTS * 32;
constexpr int HALF_TILE_BYTES = HALF_SCALES_AT + HALF_OUTPUTS * 4;

// Plane tiles (every type with integer sub-scales but GEN): 128 outputs. w' = 256 hi + lo; the unsigned plane lo and the
// signed plane hi are each [2][128 outputs][128 columns] bytes, 16-byte units swizzled by the output, then D as f32.
constexpr int PLANE_OUTPUTS = 128;
constexpr int PLANE_BYTES = PLANE_OUTPUTS * 256;
constexpr int PLANE_SCALES_AT = 2 * PLANE_BYTES;
constexpr int PLANE_TILE_BYTES = PLANE_SCALES_AT + PLANE_OUTPUTS * 4;
