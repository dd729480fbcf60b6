// Stores of sm80_mma to rows of C that begin inside a 16-byte chunk of memory: in shared memory a row begins as far inside
// a chunk, so that all but its two ends is copied by whole chunks.
#pragma once

#include "cudal2/ampere.cuh"
#include "cudal2/mma_params.cuh"
#include "cudal2/mma_tile.cuh"
#include "cudal2/unaligned.cuh"

namespace cudal2 {

// A row's share of the tile on its way from shared memory to C.
template <class G>
struct ShiftedShare {
  const uint16_t* from;
  uint16_t* to;
  int columns;  // of C, none in a row below it
  int head;     // elements before the first whole chunk

  // Elements of the first chunk that lie before the share; 8 rows further they are as many.
  static __device__ __forceinline__ int phase(const MmaParams& params, int row, int col) {
    const uint32_t element = uint32_t(reinterpret_cast<uintptr_t>(params.c_ptr) / 2) + uint32_t(row) * uint32_t(params.ldc) + uint32_t(col);
    return int(element % kChunk);
  }

  __device__ __forceinline__ ShiftedShare(const MmaParams& params, int row0, int col0, int row, const uint8_t* smem)
      : to(static_cast<uint16_t*>(params.c_ptr) + int64_t(row0 + row) * params.ldc + col0),
        columns(row0 + row < params.m ? min(params.n - col0, G::kTileN) : 0) {
    const int before = phase(params, row0 + row, col0);
    from = reinterpret_cast<const uint16_t*>(smem + row * G::kStorePitch) + before;
    head = (kChunk - before) % kChunk;
  }

  // Whole chunks, counted behind the head.
  __device__ __forceinline__ void store_chunk(int number) const {
    const int col = head + number * kChunk;
    if (col + kChunk <= columns) store_piece(to + col, *reinterpret_cast<const uint4*>(from + col));
  }

  // One of the eight elements before the first whole chunk, or of the eight behind the last, as far as there are so many.
  __device__ __forceinline__ void store_end(int element) const {
    const int whole = columns > head ? (columns - head) / kChunk * kChunk : 0;
    const int col = element < kChunk ? element : head + whole + element - kChunk;
    if (col < (element < kChunk ? min(head, columns) : columns)) store_piece(to + col, from[col]);
  }
};

template <class G, class Warp>
__device__ __forceinline__ void store_shifted(const MmaParams& params, const Warp& warp, int row0, int col0, uint8_t* smem) {
  wait_copies<0>();
  __syncthreads();  // every warp has left the stages that this overwrites
  const int row = warp.row + threadIdx.x % 32 / 4;
  const int before = ShiftedShare<G>::phase(params, row0 + row, col0);
  uint16_t* at = reinterpret_cast<uint16_t*>(smem + row * G::kStorePitch) + before + warp.col + threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < G::kBlocksM * 2; ++i) {
#pragma unroll
    for (int j = 0; j < G::kBlocksN * 2; ++j) {
      uint16_t* to = at + i * 8 * (G::kStorePitch / 2) + j * 8;
      const uint32_t word = warp.acc[i / 2][j].word(i % 2);
      if (before % 2 == 0) {
        *reinterpret_cast<uint32_t*>(to) = word;
      } else {
        to[0] = uint16_t(word);
        to[1] = uint16_t(word >> 16);
      }
    }
  }
  __syncthreads();
  constexpr int kChunks = G::kTileN / kChunk;
#pragma unroll 4
  for (int index = threadIdx.x; index < G::kTileM * kChunks; index += G::kThreads) {
    ShiftedShare<G>(params, row0, col0, index / kChunks, smem).store_chunk(index % kChunks);
  }
  constexpr int kEnds = 2 * kChunk;
#pragma unroll 4
  for (int index = threadIdx.x; index < G::kTileM * kEnds; index += G::kThreads) {
    ShiftedShare<G>(params, row0, col0, index / kEnds, smem).store_end(index % kEnds);
  }
}

}  // namespace cudal2
