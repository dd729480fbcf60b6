// Ampere GEMM: a ring of stages filled by cp.async, fragments by ldmatrix, products by mma.sync m16n8k16.
//
// Takes every m, n and k: whatever lies outside arrives as zeros, and rows that start on no 16-byte boundary are copied
// in narrower pieces. One CTA computes one tile of C, or several share its K. See kernels/README.md for what each axis is for.
#pragma once

#include "cudal2/ampere.cuh"
#include "cudal2/mma_params.cuh"
#include "cudal2/mma_shifted.cuh"
#include "cudal2/mma_split.cuh"
#include "cudal2/mma_tile.cuh"

namespace cudal2 {

// What a configuration implies; cudal2/space/sm80_mma/geometry.py derives the same values.
template <class Config>
struct MmaGeometry : Config {
  using Config::kStages, Config::kSwizzle, Config::kTileK, Config::kTileM, Config::kTileN, Config::kWarpsM, Config::kWarpsN;

  static constexpr int kWarpRows = kTileM / kWarpsM;
  static constexpr int kWarpColumns = kTileN / kWarpsN;
  static constexpr int kBlocksM = kWarpRows / 16;
  static constexpr int kBlocksN = kWarpColumns / 16;  // pairs of mma columns: one ldmatrix.x4 each
  static constexpr int kSteps = kTileK / 16;          // mma depth steps in a stage

  using TileA = SmemTile<kTileM, kTileK, kSwizzle>;
  using TileB = SmemTile<Config::kKMajorB ? kTileN : kTileK, Config::kKMajorB ? kTileK : kTileN, kSwizzle>;
  // Padding is as for the layout of B that has more rows in it: the host need not know which it is.
  static constexpr int kRowsB = kTileN > kTileK ? kTileN : kTileK;
  static constexpr int kBytesB = kTileN * kTileK * 2 + (kSwizzle ? 0 : kRowsB * kChunkBytes);
  static constexpr int kStageBytes = TileA::kBytes + kBytesB;
  static constexpr int kStorePitch = (kTileN + kChunk) * 2;
  static constexpr int kStoreBytes = Config::kWideStore || Config::kShiftedStore ? kTileM * kStorePitch : 0;

  static_assert(kBlocksM * 16 * kWarpsM == kTileM && kBlocksN * 16 * kWarpsN == kTileN, "a warp has whole 16 x 16 blocks of C");
  static_assert(kSteps * 16 == kTileK, "a stage is whole mma depths of 16");
  static_assert(Config::kSplitK >= 1, "a tile has a slice of K at least");
  static_assert(kStages >= 2, "one stage is read while another is filled");
  static_assert(Config::kFragmentBuffers == 1 || (Config::kFragmentBuffers == 2 && kSteps % 2 == 0), "two fragment buffers alternate over an even number of steps");
  static_assert(Config::kCopyBytes == 16 || Config::kCopyBytes == 8 || Config::kCopyBytes == 4 || Config::kCopyBytes == 2, "no such copy");
  static_assert(!Config::kBf16 || !Config::kAccFp16, "no instruction adds bf16 products in fp16");
  static_assert(TileB::kBytes <= kBytesB, "B outgrows its stage");
  static_assert(Config::kThreads == kWarpsM * kWarpsN * 32, "threads disagree with the host");
  static_assert(Config::kSmemBytes == (kStages * kStageBytes > kStoreBytes ? kStages * kStageBytes : kStoreBytes), "shared memory disagrees with the host");
};

struct MmaTile {
  int row;  // of C
  int col;
};

// Groups of `group` tiles along the raster axis; inside a group that axis runs fastest, so that a wave of CTAs touches a
// compact block of A and B and finds it in L2.
template <class G>
__device__ __forceinline__ MmaTile mma_tile(const MmaParams& params, int t) {
  const int fast_tiles = params.raster_n ? params.tiles_n : params.tiles_m;
  const int slow_tiles = params.raster_n ? params.tiles_m : params.tiles_n;
  // 64 bits: a group of several long rows of tiles may be larger than the grid.
  const int64_t group_tiles = int64_t(params.group) * slow_tiles;
  const int first = int(t / group_tiles) * params.group;
  const int rest = int(t % group_tiles);
  const int width = min(params.group, fast_tiles - first);
  const int fast = first + rest % width;
  const int slow = rest / width;
  return params.raster_n ? MmaTile{slow * G::kTileM, fast * G::kTileN} : MmaTile{fast * G::kTileM, slow * G::kTileN};
}

// The ring of stages of one CTA, and where its next K tiles come from.
template <class G>
struct Ring {
  uint32_t smem;
  TileSource<typename G::TileA, G::kThreads, G::kCopyBytes> source_a;
  TileSource<typename G::TileB, G::kThreads, G::kCopyBytes> source_b;

  __device__ __forceinline__ Ring(const MmaParams& p, uint32_t address, MmaTile tile)
      : smem(address), source_a(p.a_ptr, p.m, p.k, tile.row, 0),
        source_b(p.b_ptr, G::kKMajorB ? p.n : p.k, G::kKMajorB ? p.k : p.n, G::kKMajorB ? tile.col : 0, G::kKMajorB ? 0 : tile.col) {}

  // Past K tiles that another CTA has.
  __device__ __forceinline__ void skip(int k_tiles) {
    source_a.move_right(k_tiles * G::kTileK);
    if constexpr (G::kKMajorB) {
      source_b.move_right(k_tiles * G::kTileK);
    } else {
      source_b.move_down(k_tiles * G::kTileK);
    }
  }

  __device__ __forceinline__ uint32_t a(int stage) const { return smem + stage * G::kStageBytes; }
  __device__ __forceinline__ uint32_t b(int stage) const { return a(stage) + G::TileA::kBytes; }

  __device__ __forceinline__ void fetch_a(int stage) {
    source_a.fetch(a(stage));
    source_a.move_right(G::kTileK);
  }
  __device__ __forceinline__ void fetch_b(int stage) {
    source_b.fetch(b(stage));
    if constexpr (G::kKMajorB) {
      source_b.move_right(G::kTileK);
    } else {
      source_b.move_down(G::kTileK);
    }
  }
  // What cp.async cannot carry waits in registers between the two.
  __device__ __forceinline__ void land(int stage) const {
    source_a.land(a(stage));
    source_b.land(b(stage));
  }
};

// Fragments and accumulators of one warp.
template <class G>
struct Warp {
  int row;  // of its tile inside the CTA's
  int col;
  FragmentA<typename G::TileA, G::kBlocksM> a[G::kFragmentBuffers];
  FragmentB<typename G::TileB, G::kBlocksN, G::kKMajorB> b[G::kFragmentBuffers];
  MmaAccumulator<G::kAccFp16, G::kBf16> acc[G::kBlocksM][G::kBlocksN * 2];

  __device__ __forceinline__ Warp() {
    const int warp = threadIdx.x / 32;
    row = warp % G::kWarpsM * G::kWarpRows;
    col = warp / G::kWarpsM * G::kWarpColumns;
  }
  __device__ __forceinline__ void load(const Ring<G>& ring, int stage, int kk, int buffer) {
    a[buffer].load(ring.a(stage), row, kk);
    b[buffer].load(ring.b(stage), col, kk);
  }
  __device__ __forceinline__ void multiply(int buffer) {
#pragma unroll
    for (int i = 0; i < G::kBlocksM; ++i) {
#pragma unroll
      for (int step = 0; step < G::kBlocksN * 2; ++step) {
        const int j = i % 2 ? G::kBlocksN * 2 - 1 - step : step;  // back and forth: the next product shares an operand
        acc[i][j].multiply_add(a[buffer].r[i], b[buffer].r[j / 2][j % 2 * 2], b[buffer].r[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
};

// All products of the tile. While stage kt is multiplied, the stage before it, which every warp has left, takes K tile
// kt + kStages - 1: all of it before the first product, or, staggered, A before and B behind it.
template <class G>
__device__ __forceinline__ void multiply_tile(Ring<G>& ring, Warp<G>& warp, int k_tiles) {
#pragma unroll
  for (int stage = 0; stage < G::kStages - 1; ++stage) {
    if (stage < k_tiles) {
      ring.fetch_a(stage);
      ring.fetch_b(stage);
      ring.land(stage);
    }
    commit_copies();
  }
  constexpr bool kBuffered = G::kFragmentBuffers == 2;
  int stage = 0;
  int free = G::kStages - 1;
  if constexpr (kBuffered) {
    wait_copies<G::kStages - 2>();
    __syncthreads();
    warp.load(ring, stage, 0, 0);
  }
#pragma unroll 1
  for (int kt = 0; kt < k_tiles; ++kt) {
    const int next = stage + 1 == G::kStages ? 0 : stage + 1;
    const int ahead = kt + G::kStages - 1;
    if constexpr (!kBuffered) {
      wait_copies<G::kStages - 2>();
      __syncthreads();
    }
#pragma unroll
    for (int kk = 0; kk < G::kSteps; ++kk) {
      if constexpr (kBuffered) {
        const bool last = kk == G::kSteps - 1;
        if (last) {  // this K tile's copies have been committed: all but kStages - 2 leaves the next stage full
          wait_copies<G::kStages - 2>();
          __syncthreads();
        }
        warp.load(ring, last ? next : stage, last ? 0 : kk + 1, (kk + 1) % 2);
      } else {
        warp.load(ring, stage, kk, 0);
      }
      if (kk == 0 && ahead < k_tiles) {
        ring.fetch_a(free);
        if constexpr (!G::kStaggered) ring.fetch_b(free);
      }
      warp.multiply(kBuffered ? kk % 2 : 0);
      if (kk == 0) {
        if constexpr (G::kStaggered) {
          if (ahead < k_tiles) ring.fetch_b(free);
        }
        commit_copies();
      }
      if (kk == (kBuffered ? G::kSteps - 2 : G::kSteps - 1) && ahead < k_tiles) ring.land(free);  // before the next barrier
    }
    free = stage;
    stage = next;
  }
}

// Two neighbours of a row of C; `col` is even.
__device__ __forceinline__ void store_word(const MmaParams& params, int row, int col, uint32_t word) {
  if (row >= params.m || col >= params.n) return;
  uint16_t* at = static_cast<uint16_t*>(params.c_ptr) + int64_t(row) * params.ldc + col;
  if ((params.ldc & 1) == 0) {  // then col + 1 < n too: both are even
    *reinterpret_cast<uint32_t*>(at) = word;
  } else {
    at[0] = uint16_t(word);
    if (col + 1 < params.n) at[1] = uint16_t(word >> 16);
  }
}

template <class G>
__device__ __forceinline__ void store_from_registers(const MmaParams& params, const Warp<G>& warp, MmaTile tile) {
  const int row = tile.row + warp.row + threadIdx.x % 32 / 4;
  const int col = tile.col + warp.col + threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < G::kBlocksM; ++i) {
#pragma unroll
    for (int j = 0; j < G::kBlocksN * 2; ++j) {
      store_word(params, row + i * 16, col + j * 8, warp.acc[i][j].word(0));
      store_word(params, row + i * 16 + 8, col + j * 8, warp.acc[i][j].word(1));
    }
  }
}

// Through padded rows in shared memory, then 16 bytes a lane along rows of C.
template <class G>
__device__ __forceinline__ void store_wide(const MmaParams& params, const Warp<G>& warp, MmaTile tile, uint8_t* smem) {
  wait_copies<0>();
  __syncthreads();  // every warp has left the stages that this overwrites
  const int row = warp.row + threadIdx.x % 32 / 4;
  const int col = warp.col + threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < G::kBlocksM; ++i) {
#pragma unroll
    for (int j = 0; j < G::kBlocksN * 2; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint8_t* at = smem + (row + i * 16 + half * 8) * G::kStorePitch + (col + j * 8) * 2;
        *reinterpret_cast<uint32_t*>(at) = warp.acc[i][j].word(half);
      }
    }
  }
  __syncthreads();
  constexpr int kChunks = G::kTileN / kChunk;
#pragma unroll 4
  for (int index = threadIdx.x; index < G::kTileM * kChunks; index += G::kThreads) {
    const int r = index / kChunks;
    const int c = index % kChunks * kChunk;
    const uint4 words = *reinterpret_cast<const uint4*>(smem + r * G::kStorePitch + c * 2);
    const int to_row = tile.row + r;
    const int to_col = tile.col + c;
    if (params.ldc % kChunk == 0) {
      if (to_row < params.m && to_col < params.n) {
        *reinterpret_cast<uint4*>(static_cast<uint16_t*>(params.c_ptr) + int64_t(to_row) * params.ldc + to_col) = words;
      }
    } else {
      store_word(params, to_row, to_col, words.x);
      store_word(params, to_row, to_col + 2, words.y);
      store_word(params, to_row, to_col + 4, words.z);
      store_word(params, to_row, to_col + 6, words.w);
    }
  }
}

template <class Config>
__device__ __forceinline__ void sm80_mma(const MmaParams& params) {
  using G = MmaGeometry<Config>;
  extern __shared__ __align__(16) uint8_t smem[];
  const int number = blockIdx.x / G::kSplitK;  // slices of a tile are neighbours in the grid: they run at once
  const MmaTile tile = mma_tile<G>(params, number);
  Ring<G> ring(params, shared_address(smem), tile);
  Warp<G> warp;
  follow_previous_grid();
  int k_tiles = (params.k + G::kTileK - 1) / G::kTileK;
  if constexpr (G::kSplitK > 1) {
    const int slice = blockIdx.x % G::kSplitK;
    const int first = k_tiles * slice / G::kSplitK;
    k_tiles = k_tiles * (slice + 1) / G::kSplitK - first;
    ring.skip(first);
  }
  multiply_tile<G>(ring, warp, k_tiles);
  if constexpr (G::kSplitK > 1) {
    wait_copies<0>();
    uint32_t* last = reinterpret_cast<uint32_t*>(smem);
    if (!gathers_slices<G>(static_cast<const SplitMmaParams&>(params), warp, last, number, blockIdx.x % G::kSplitK)) return;
  }
  if constexpr (G::kWideStore) {
    store_wide<G>(params, warp, tile, smem);
  } else if constexpr (G::kShiftedStore) {
    store_shifted<G>(params, warp, tile.row, tile.col, smem);
  } else {
    store_from_registers<G>(params, warp, tile);
  }
}

}  // namespace cudal2
