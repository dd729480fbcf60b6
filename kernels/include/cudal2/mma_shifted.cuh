// Stores of sm80_mma to rows of C that begin inside a 16-byte chunk of memory: in shared memory a row begins as far inside
// a chunk, so that all but its two ends is copied by whole chunks.
#pragma once

#include "cudal2/ampere.cuh"
#include "cudal2/mma_params.cuh"
#include "cudal2/mma_tile.cuh"
#include "cudal2/unaligned.cuh"

namespace cudal2 {

// Elements of a row's first chunk that lie before its share of a tile; 8 rows further they are as many.
__device__ __forceinline__ int phase_of(const MmaParams& params, int row, int col) {
  const uint32_t base = uint32_t(reinterpret_cast<uintptr_t>(params.c_ptr) / 2);
  return int((base + uint32_t(row) * uint32_t(params.ldc) + uint32_t(col)) % kChunk);
}

// A row's share of a tile on its way from shared memory to C.
template <class G>
struct ShiftedShare {
  const uint16_t* from;
  uint16_t* to;
  int columns;  // of C, none in a row below it
  int head;     // elements before the first whole chunk

  __device__ __forceinline__ ShiftedShare(const MmaParams& params, int row0, int col0, int row, const uint8_t* smem)
      : to(static_cast<uint16_t*>(params.c_ptr) + int64_t(row0 + row) * params.ldc + col0),
        columns(row0 + row < params.m ? min(params.n - col0, G::kTileN) : 0) {
    const int phase = phase_of(params, row0 + row, col0);
    from = reinterpret_cast<const uint16_t*>(smem + row * G::kStorePitch) + phase;
    head = (kChunk - phase) % kChunk;
  }
};

// Its whole chunks.
template <class G>
struct WholeChunks : ShiftedShare<G> {
  using Piece = uint4;
  static constexpr int kPerRow = G::kTileN / kChunk;
  using ShiftedShare<G>::ShiftedShare;

  __device__ __forceinline__ int col(int number) const { return this->head + number * kChunk; }
  __device__ __forceinline__ bool holds(int number) const { return col(number) + kChunk <= this->columns; }
};

// Its elements before the first whole chunk, and those behind the last: up to seven each.
template <class G>
struct RowEnds : ShiftedShare<G> {
  using Piece = uint16_t;
  static constexpr int kPerRow = 2 * kChunk;
  using ShiftedShare<G>::ShiftedShare;

  __device__ __forceinline__ int col(int number) const {
    const int whole = this->columns > this->head ? (this->columns - this->head) / kChunk * kChunk : 0;
    return number < kChunk ? number : this->head + whole + number - kChunk;
  }
  __device__ __forceinline__ bool holds(int number) const {
    return col(number) < (number < kChunk ? min(this->head, this->columns) : this->columns);
  }
};

// Rows of the tile as they lie in C. Lanes of odd rows cannot store their two columns at once.
template <class G, class Warp>
__device__ __forceinline__ void stage_shifted(const MmaParams& params, const Warp& warp, int row0, int col0, uint8_t* smem) {
  const int row = warp.row + threadIdx.x % 32 / 4;
  const int phase = phase_of(params, row0 + row, col0);
  uint16_t* at = reinterpret_cast<uint16_t*>(smem + row * G::kStorePitch) + phase + warp.col + threadIdx.x % 4 * 2;
  const auto stage = [&](auto put) {
#pragma unroll
    for (int i = 0; i < G::kBlocksM * 2; ++i) {
#pragma unroll
      for (int j = 0; j < G::kBlocksN * 2; ++j) put(at + i * 8 * (G::kStorePitch / 2) + j * 8, warp.acc[i / 2][j].word(i % 2));
    }
  };
  if (phase % 2 == 0) {
    stage([](uint16_t* to, uint32_t word) { *reinterpret_cast<uint32_t*>(to) = word; });
  } else {
    stage([](uint16_t* to, uint32_t word) {
      to[0] = uint16_t(word);
      to[1] = uint16_t(word >> 16);
    });
  }
}

// The most passes that a loop can take at once, if it takes as many each time, and no more than 8.
constexpr int passes_together(int passes) {
  int together = passes < 8 ? passes : 8;
  while (passes % together != 0) --together;
  return together;
}

// All pieces of one kind, shared out evenly: a thread reads several before it stores the first.
template <class G, template <class> class Pieces>
__device__ __forceinline__ void copy_pieces(const MmaParams& params, int row0, int col0, const uint8_t* smem) {
  using Row = Pieces<G>;
  constexpr int kPasses = G::kTileM * Row::kPerRow / G::kThreads;
  constexpr int kTogether = passes_together(kPasses);
  static_assert(kPasses * G::kThreads == G::kTileM * Row::kPerRow, "every thread has as many pieces");
#pragma unroll 1
  for (int first = threadIdx.x; first < G::kTileM * Row::kPerRow; first += kTogether * G::kThreads) {
    typename Row::Piece pieces[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int index = first + i * G::kThreads;
      const Row row(params, row0, col0, index / Row::kPerRow, smem);
      pieces[i] = *reinterpret_cast<const typename Row::Piece*>(row.from + row.col(index % Row::kPerRow));
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int index = first + i * G::kThreads;
      const Row row(params, row0, col0, index / Row::kPerRow, smem);
      const int number = index % Row::kPerRow;
      if (row.holds(number)) store_piece(row.to + row.col(number), pieces[i]);
    }
  }
}

template <class G, class Warp>
__device__ __forceinline__ void store_shifted(const MmaParams& params, const Warp& warp, int row0, int col0, uint8_t* smem) {
  wait_copies<0>();
  __syncthreads();  // every warp has left the stages that this overwrites
  stage_shifted<G>(params, warp, row0, col0, smem);
  __syncthreads();
  copy_pieces<G, WholeChunks>(params, row0, col0, smem);
  copy_pieces<G, RowEnds>(params, row0, col0, smem);
}

}  // namespace cudal2
