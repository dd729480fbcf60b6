// TMA stores of sm90_ws: box by box, with or without a cache policy.
#pragma once

#include "cudal2/epilogue.cuh"
#include "cudal2/l2.cuh"

namespace cudal2 {

template <class G>
__device__ __forceinline__ void store_box(const GemmParams& params, const void* box, int col, int row) {
  if constexpr (G::kStoreEvictFirst) {
    store_tensor_evict_first(&params.c, box, col, row);
  } else {
    cute::SM90_TMA_STORE_2D::copy(&params.c, box, col, row);
  }
  cute::tma_store_arrive();
}

// Stores one warp group's rows through staging buffers; `turn` carries the buffer in use from tile to tile.
template <class G, class Acc>
__device__ __forceinline__ void store_boxes(const GemmParams& params, const Acc (&acc)[G::kBlocks], uint8_t* staging, int group, int row0,
                                            int col0, int& turn) {
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x % kWarpGroup / 32 * 16;
  const bool leader = threadIdx.x % kWarpGroup == 0;
  constexpr int kPairs = G::kStoreColumns / 16;
#pragma unroll
  for (int i = 0; i < G::kBlocks; ++i) {
#pragma unroll
    for (int box = 0; box < G::kStoreBoxes; ++box) {
      constexpr int kLast = G::kTileN - G::kStoreColumns;
      const int first = kLast % G::kStoreColumns == 0 || box * G::kStoreColumns < kLast ? box * G::kStoreColumns : kLast;
      uint8_t* buffer = staging + turn * G::kStoreBytes;
      const uint32_t base = cute::cast_smem_ptr_to_uint(buffer);
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const int nb = first / 8 + j * 2;
        const uint32_t at = swizzled_offset<G::kStoreColumns * kElementBytes>(warp_row + lane % 16, j * 2 + lane / 16);
        stmatrix_x4(base + at, acc[i].word(nb, 0), acc[i].word(nb, 1), acc[i].word(nb + 1, 0), acc[i].word(nb + 1, 1));
      }
      finish_box<G>(group, leader);
      if (leader) store_box<G>(params, buffer, col0 + first, row0 + i * 64);
      turn = next_buffer<G>(turn);
    }
  }
}

}  // namespace cudal2
