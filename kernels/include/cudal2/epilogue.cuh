// From accumulators to C: stmatrix and TMA store, direct predicated stores, and the split-K reduction over a cluster.
#pragma once

#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

#include "cudal2/geometry.cuh"
#include "cudal2/hopper.cuh"
#include "cudal2/params.cuh"
#include "cudal2/sync.cuh"
#include "cudal2/wgmma.cuh"

namespace cudal2 {

// Where the 16-byte chunk `chunk` of row `row` lies in a store box, as TMA's swizzle of the box width expects it.
template <int kRowBytes>
__device__ __forceinline__ uint32_t swizzled_offset(int row, int chunk) {
  const int mixed = kRowBytes == 128 ? chunk ^ (row & 7) : kRowBytes == 64 ? chunk ^ ((row >> 1) & 3) : chunk ^ ((row >> 2) & 1);
  return row * kRowBytes + mixed * 16;
}

// A written box becomes visible to TMA, and the buffer after its own has been read: the next box may overwrite it.
template <class G>
__device__ __forceinline__ void finish_box(int group, bool leader) {
  cutlass::arch::fence_view_async_shared();
  if (leader) {
    cute::tma_store_wait<G::kStoreBuffers - 2>();
  }
  barrier_sync(kWarpGroupBarrier + group, kWarpGroup);
}

template <class G>
__device__ __forceinline__ int next_buffer(int turn) {
  return G::kStoreBuffers == 2 ? turn ^ 1 : (turn + 1) % G::kStoreBuffers;
}

__device__ __forceinline__ void store_pair(const GemmParams& params, int row, int col, uint32_t word) {
  if (row >= params.m || col >= params.n) {
    return;
  }
  uint16_t* at = static_cast<uint16_t*>(params.c_ptr) + int64_t(row) * params.ldc + col;
  if ((params.ldc & 1) == 0) {  // then col + 1 < n too: both are even
    *reinterpret_cast<uint32_t*>(at) = word;
  } else {
    at[0] = uint16_t(word);
    if (col + 1 < params.n) {
      at[1] = uint16_t(word >> 16);
    }
  }
}

// Transposes the 4 x 4 words that the four lanes of a quad hold, so that lane t ends with the whole of block t.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4]) {
  const bool odd = threadIdx.x & 1;
  const bool high = threadIdx.x & 2;
#pragma unroll
  for (int j = 0; j < 4; j += 2) {
    const uint32_t got = __shfl_xor_sync(0xFFFFFFFF, odd ? w[j] : w[j + 1], 1);
    w[j] = odd ? got : w[j];
    w[j + 1] = odd ? w[j + 1] : got;
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint32_t got = __shfl_xor_sync(0xFFFFFFFF, high ? w[j] : w[j + 2], 2);
    w[j] = high ? got : w[j];
    w[j + 2] = high ? w[j + 2] : got;
  }
}

__device__ __forceinline__ void store_chunk(const GemmParams& params, int row, int col, const uint32_t (&w)[4]) {
  if (row < params.m && col < params.n) {
    uint16_t* at = static_cast<uint16_t*>(params.c_ptr) + int64_t(row) * params.ldc + col;
    *reinterpret_cast<uint4*>(at) = make_uint4(w[0], w[1], w[2], w[3]);
  }
}

// 16 bytes a lane from 16 columns: 32 bytes each of rows `row` and `row` + 8. The words of both rows for the first 8
// columns, then for the next.
__device__ __forceinline__ void store_block_pair(const GemmParams& params, int row, int col, uint32_t low0, uint32_t high0, uint32_t low1,
                                                 uint32_t high1) {
  uint32_t w[4] = {low0, low1, high0, high1};
  transpose_quad(w);
  store_chunk(params, row + threadIdx.x % 4 / 2 * 8, col + threadIdx.x % 2 * 8, w);
}

// 16 bytes a lane, 64 bytes a row and warp, or 32 for what 32 columns leave; needs rows of C on 16-byte boundaries.
template <class G, class Acc>
__device__ __forceinline__ void store_direct_wide(const GemmParams& params, const Acc (&acc)[G::kBlocks], int row, int col0) {
  const int col = col0 + threadIdx.x % 4 * 8;
#pragma unroll
  for (int i = 0; i < G::kBlocks; ++i) {
#pragma unroll
    for (int nb = 0; nb + 4 <= G::kTileN / 8; nb += 4) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t w[4] = {acc[i].word(nb, half), acc[i].word(nb + 1, half), acc[i].word(nb + 2, half), acc[i].word(nb + 3, half)};
        transpose_quad(w);
        store_chunk(params, row + i * 64 + half * 8, col + nb * 8, w);
      }
    }
    if constexpr (G::kTileN % 32 == 16) {
      constexpr int nb = G::kTileN / 8 - 2;
      store_block_pair(params, row + i * 64, col0 + nb * 8, acc[i].word(nb, 0), acc[i].word(nb, 1), acc[i].word(nb + 1, 0),
                       acc[i].word(nb + 1, 1));
    }
  }
}

// `row`: this thread's first.
template <class G, class Acc>
__device__ __forceinline__ void store_rows(const GemmParams& params, const Acc (&acc)[G::kBlocks], int row, int col0) {
  if constexpr (G::kTileN % 16 == 0) {
    if (params.ldc % 8 == 0) {
      store_direct_wide<G>(params, acc, row, col0);
      return;
    }
  }
  const int col = col0 + threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < G::kBlocks; ++i) {
#pragma unroll
    for (int nb = 0; nb < G::kTileN / 8; ++nb) {
      store_pair(params, row + i * 64, col + nb * 8, acc[i].word(nb, 0));
      store_pair(params, row + i * 64 + 8, col + nb * 8, acc[i].word(nb, 1));
    }
  }
}

template <class G, class Acc>
__device__ __forceinline__ void store_direct(const GemmParams& params, const Acc (&acc)[G::kBlocks], int row0, int col0) {
  store_rows<G>(params, acc, row0 + threadIdx.x % kWarpGroup / 32 * 16 + threadIdx.x % 32 / 4, col0);
}

// fp32 partials of every CTA of the split, laid out quad-major so that a thread finds its own elements at the same
// place in every peer. Each slice adds one share of the quads, in slice order: the result does not depend on timing.
template <class G, class Acc>
__device__ __forceinline__ void expose_partials(const Acc (&acc)[G::kBlocks], float4* partials) {
  barrier_sync(kConsumerBarrier, G::kConsumerThreads);  // every warp group has left the stages that this overwrites
#pragma unroll
  for (int i = 0; i < G::kBlocks; ++i) {
#pragma unroll
    for (int nb = 0; nb < G::kWgmmaN / 8; ++nb) {
      partials[(i * (G::kWgmmaN / 8) + nb) * G::kConsumerThreads + threadIdx.x] = acc[i].quad(nb);
    }
  }
}

template <class G>
__device__ __forceinline__ void reduce_partials(const GemmParams& params, const float4* partials, int slice, int share, int row0,
                                                int col0) {
  constexpr int kQuads = G::kBlocks * G::kWgmmaN / 8;
  constexpr int kShare = (kQuads + G::kSplitK - 1) / G::kSplitK;  // the last slices may have less, or nothing
  const int row = row0 + (G::kSwapAB ? 0 : threadIdx.x % kWarpGroup / 32 * 16) + threadIdx.x % 32 / 4;
  const int col = col0 + (G::kSwapAB ? threadIdx.x % kWarpGroup / 32 * 16 : 0) + threadIdx.x % 4 * 2;
#pragma unroll
  for (int s = 0; s < kShare; ++s) {
    const int quad = slice * kShare + s;
    if (kQuads % G::kSplitK != 0 && quad >= kQuads) break;
    const uint32_t address = cute::cast_smem_ptr_to_uint(partials + quad * G::kConsumerThreads + threadIdx.x);
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int peer = 0; peer < G::kSplitK; ++peer) {
      const float4 part = load_from_rank(address, peer * G::kShareSize + share);
      sum.x += part.x;
      sum.y += part.y;
      sum.z += part.z;
      sum.w += part.w;
    }
    const int along_m = quad / (G::kWgmmaN / 8) * 64;  // of wgmma's M and N
    const int along_n = quad % (G::kWgmmaN / 8) * 8;
    if constexpr (G::kSwapAB) {
      store_pair(params, row + along_n, col + along_m, transpose_matrix(pack_elements<G::kBf16>(sum.x, sum.y)));
      store_pair(params, row + along_n, col + along_m + 8, transpose_matrix(pack_elements<G::kBf16>(sum.z, sum.w)));
    } else {
      store_pair(params, row + along_m, col + along_n, pack_elements<G::kBf16>(sum.x, sum.y));
      store_pair(params, row + along_m + 8, col + along_n, pack_elements<G::kBf16>(sum.z, sum.w));
    }
  }
}

}  // namespace cudal2
