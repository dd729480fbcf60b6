// From accumulators of C's transpose to C, for swapped operands: lane l of a warp holds rows 8 nb + 2 (l % 4) + {0, 1} of
// column l / 4 of C in word(nb, 0), and of column l / 4 + 8 in word(nb, 1); the four warps have 16 columns each.
#pragma once

#include "cudal2/epilogue.cuh"
#include "cudal2/ws_store.cuh"

namespace cudal2 {

// Stores one warp group's columns, 64 at a time, box by box through staging buffers as store_boxes does.
template <class G, class Acc>
__device__ __forceinline__ void store_tma_swapped(const GemmParams& params, const Acc (&acc)[G::kBlocks], uint8_t* staging, int group,
                                                  int row0, int col0, int& turn) {
  const int lane = threadIdx.x % 32;
  const int chunk = threadIdx.x % kWarpGroup / 32 * 2 + lane / 8 % 2;
  const bool leader = threadIdx.x % kWarpGroup == 0;
  constexpr int kMatrices = G::kStoreRows / 8;  // along M, in a box
#pragma unroll
  for (int i = 0; i < G::kBlocks; ++i) {
#pragma unroll
    for (int box = 0; box < G::kStoreBoxes; ++box) {
      constexpr int kLast = G::kTileM - G::kStoreRows;
      const int first = box * G::kStoreRows < kLast ? box * G::kStoreRows : kLast;
      uint8_t* buffer = staging + turn * G::kStoreBytes;
      const uint32_t base = cute::cast_smem_ptr_to_uint(buffer);
#pragma unroll
      for (int j = 0; j + 1 < kMatrices; j += 2) {
        const int nb = first / 8 + j;
        const uint32_t at = swizzled_offset<128>((j + lane / 16) * 8 + lane % 8, chunk);
        stmatrix_trans_x4(base + at, acc[i].word(nb, 0), acc[i].word(nb, 1), acc[i].word(nb + 1, 0), acc[i].word(nb + 1, 1));
      }
      if constexpr (kMatrices % 2 == 1) {  // lanes 0-15 give the addresses
        const int nb = first / 8 + kMatrices - 1;
        const uint32_t at = swizzled_offset<128>((kMatrices - 1) * 8 + lane % 8, chunk);
        stmatrix_trans_x2(base + at, acc[i].word(nb, 0), acc[i].word(nb, 1));
      }
      finish_box<G>(group, leader);
      if (leader) store_box<G>(params, buffer, col0 + i * 64, row0 + first);
      turn = next_buffer<G>(turn);
    }
  }
}

// 16 bytes a lane and 32 a row and warp where rows of C are on 16-byte boundaries, else 4 and 16.
template <class G, class Acc>
__device__ __forceinline__ void store_direct_swapped(const GemmParams& params, const Acc (&acc)[G::kBlocks], int row0, int col0) {
  const int lane = threadIdx.x % 32;
  const int row = row0 + lane / 4;
  const int col = col0 + threadIdx.x % kWarpGroup / 32 * 16;
  const bool wide = params.ldc % 8 == 0;
#pragma unroll
  for (int i = 0; i < G::kBlocks; ++i) {
#pragma unroll
    for (int nb = 0; nb < G::kTileM / 8; nb += 2) {
      constexpr bool kOdd = G::kTileM % 16 != 0;
      const bool alone = kOdd && nb + 1 == G::kTileM / 8;
      uint32_t w[4] = {transpose_matrix(acc[i].word(nb, 0)), transpose_matrix(acc[i].word(nb, 1))};
      if (!alone) {
        w[2] = transpose_matrix(acc[i].word(nb + 1, 0));
        w[3] = transpose_matrix(acc[i].word(nb + 1, 1));
      }
      if (wide && !alone) {
        store_block_pair(params, row + nb * 8, col + i * 64, w[0], w[2], w[1], w[3]);
      } else {
#pragma unroll
        for (int j = 0; j < (alone ? 2 : 4); ++j) {
          store_pair(params, row + (nb + j / 2) * 8, col + i * 64 + j % 2 * 8 + lane % 4 * 2, w[j]);
        }
      }
    }
  }
}

}  // namespace cudal2
