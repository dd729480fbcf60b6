// Operand tiles in shared memory: where each 16-byte chunk lies, how it gets there and how warps read it as fragments.
#pragma once

#include "cudal2/ampere.cuh"

namespace cudal2 {

constexpr int kChunk = 8;  // elements in 16 bytes: what one lane hands to ldmatrix, and the unit of the swizzle
constexpr int kChunkBytes = 16;

// kRows rows of kColumns contiguous elements. ldmatrix reads one chunk column of 8 consecutive rows at a time; either
// the swizzle or one chunk of padding per row puts these 8 chunks on 8 different groups of 4 banks.
template <int kRows_, int kColumns_, bool kSwizzle>
struct SmemTile {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kChunks = kColumns / kChunk;  // in a row
  static constexpr int kPitch = (kChunks + (kSwizzle ? 0 : 1)) * kChunkBytes;
  static constexpr int kBytes = kRows * kPitch;
  // Rows that fill 128 bytes lie beside each other already; the swizzle spreads the rest of the 8.
  static constexpr int kMask = !kSwizzle ? 0 : kChunks % 8 == 0 ? 7 : kChunks % 4 == 0 ? 3 : 1;
  static constexpr int kShift = kMask == 7 ? 0 : kMask == 3 ? 1 : 2;

  static_assert(kChunks % 2 == 0, "rows of a tile are whole 32-byte sectors");

  static __device__ __forceinline__ int chunk_at(int row, int chunk) { return chunk ^ ((row >> kShift) & kMask); }
  static __device__ __forceinline__ int offset(int row, int chunk) { return row * kPitch + chunk_at(row, chunk) * kChunkBytes; }
};

// Largest power of two that divides both.
__device__ constexpr int common_power(int a, int b) { return a % 2 || b % 2 ? 1 : 2 * common_power(a / 2, b / 2); }

// Feeds tiles of a matrix without padding to shared memory: one thread's place in it, and the chunks it copies. What lies
// outside the matrix arrives as zeros. Rows are whole copies long, so that a copy is inside or outside as a whole.
template <class Tile, int kThreads, int kCopyBytes>
struct TileSource {
  static constexpr int kWidth = common_power(Tile::kChunks, kThreads);  // threads beside each other along a row
  static constexpr int kHeight = kThreads / kWidth;
  static constexpr int kPasses = (Tile::kRows + kHeight - 1) / kHeight;
  static constexpr int kPieces = Tile::kChunks / kWidth;
  static constexpr bool kAsync = kCopyBytes >= 4;  // cp.async has no 2 bytes: these pass through registers
  static constexpr int kUnroll = kPasses <= 8 || !kAsync ? kPasses : 4;

  const uint16_t* from;
  int64_t height_step;  // elements between this thread's rows of two passes
  int row;              // of its first chunk in the matrix
  int column;
  int rows;
  int columns;
  uint16_t staged[kAsync ? 1 : kPasses * kPieces * kChunk];

  __device__ __forceinline__ TileSource(const void* matrix, int rows_, int columns_, int row0, int col0)
      : height_step(int64_t(kHeight) * columns_), row(row0 + int(threadIdx.x) / kWidth), column(col0 + int(threadIdx.x) % kWidth * kChunk),
        rows(rows_), columns(columns_) {
    from = static_cast<const uint16_t*>(matrix) + int64_t(row) * columns + column;
  }
  __device__ __forceinline__ void move_right(int by) {
    column += by;
    from += by;
  }
  __device__ __forceinline__ void move_down(int by) {
    row += by;
    from += int64_t(by) * columns;
  }

  // Starts to bring this thread's chunks: on their way to `smem`, or into registers.
  __device__ __forceinline__ void fetch(uint32_t smem) {
    const uint16_t* at = from;
    each_pass([&](int pass, int tile_row, int tile_chunk) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const int right = piece * kWidth;
        const bool row_inside = row + pass * kHeight < rows;
        const int left = columns - column - right * kChunk;  // elements of the row from here on, if any
        if constexpr (kAsync) {
          copy_chunk(smem + Tile::offset(tile_row, tile_chunk + right), at + right * kChunk, row_inside, left);
        } else {
#pragma unroll
          for (int i = 0; i < kChunk; ++i) {
            staged[(pass * kPieces + piece) * kChunk + i] = row_inside && i < left ? at[right * kChunk + i] : 0;
          }
        }
      }
      at += height_step;
    });
  }

  // Registers to shared memory, once the products between have hidden what the loads take.
  __device__ __forceinline__ void land(uint32_t smem) const {
    if constexpr (!kAsync) {
      each_pass([&](int pass, int tile_row, int tile_chunk) {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          const uint16_t* chunk = staged + (pass * kPieces + piece) * kChunk;
          uint32_t words[kChunk / 2];
#pragma unroll
          for (int i = 0; i < kChunk / 2; ++i) words[i] = chunk[i * 2] | uint32_t(chunk[i * 2 + 1]) << 16;
          store_shared(smem + Tile::offset(tile_row, tile_chunk + piece * kWidth), words);
        }
      });
    }
  }

  template <class Body>
  static __device__ __forceinline__ void each_pass(Body body) {
    const int tile_row = threadIdx.x / kWidth;
    const int tile_chunk = threadIdx.x % kWidth;
#pragma unroll kUnroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int down = pass * kHeight;
      if (Tile::kRows % kHeight != 0 && tile_row + down >= Tile::kRows) break;
      body(pass, tile_row + down, tile_chunk);
    }
  }

  static __device__ __forceinline__ void copy_chunk(uint32_t to, const uint16_t* at, bool row_inside, int left) {
#pragma unroll
    for (int part = 0; part < kChunk; part += kCopyBytes / 2) {
      copy_async<kCopyBytes>(to + part * 2, at + part, row_inside && part < left);
    }
  }
};

// 16 x 16 blocks of A, one per 16 rows of the warp's tile. Lane l addresses row l % 16, K chunk l / 16: the four 8 x 8
// matrices come as mma's a0..a3.
template <class Tile, int kBlocks>
struct FragmentA {
  uint32_t r[kBlocks][4];

  __device__ __forceinline__ void load(uint32_t smem, int row0, int kk) {
    const int lane = threadIdx.x % 32;
    const uint32_t at = smem + row0 * Tile::kPitch + Tile::offset(lane % 16, kk * 2 + lane / 16);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) load_matrices<false>(r[i], at + i * 16 * Tile::kPitch);
  }
};

// 16 (K) x 16 (N) blocks of B, two mma operands each: r[j][0..1] the first 8 columns, r[j][2..3] the next 8.
template <class Tile, int kBlocks, bool kKMajor>
struct FragmentB {
  uint32_t r[kBlocks][4];

  __device__ __forceinline__ void load(uint32_t smem, int col0, int kk) {
    const int lane = threadIdx.x % 32;
    if constexpr (kKMajor) {  // rows are columns of B: 8 of them, then their second K chunk, then the next 8
      const uint32_t at = smem + col0 * Tile::kPitch + Tile::offset(lane % 8 + lane / 16 * 8, kk * 2 + lane / 8 % 2);
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) load_matrices<false>(r[j], at + j * 16 * Tile::kPitch);
    } else {  // rows are K: transposed on the way
      const uint32_t at = smem + kk * 16 * Tile::kPitch;
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) load_matrices<true>(r[j], at + Tile::offset(lane % 16, col0 / kChunk + j * 2 + lane / 16));
    }
  }
};

}  // namespace cudal2
