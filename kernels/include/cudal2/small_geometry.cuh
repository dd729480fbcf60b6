// sm90_small: what a configuration implies, shared memory, and what a CTA works on.
#pragma once

#include "cudal2/epilogue.cuh"
#include "cudal2/params.cuh"
#include "cudal2/sync.cuh"
#include "cudal2/wgmma.cuh"

namespace cudal2 {

// What a configuration implies; cudal2/space/sm90_small/geometry.py derives the same values.
template <class Config>
struct SmallGeometry : Config {
  using Config::kKMajorB, Config::kSplitK, Config::kStages, Config::kTileK, Config::kTileM, Config::kTileN, Config::kWgmma;

  // Parts of a tile: a warp group's 64 rows or halves of 128 columns and less, or a warp's 16 rows and its columns.
  static constexpr int kReaders = kWgmma ? Config::kWarps / 4 : Config::kWarps;  // that give a stage back
  static constexpr int kReaderThreads = kWgmma ? kWarpGroup : 32;
  static constexpr int kPartRows = kWgmma ? (kReaders == 2 ? 64 : kTileM) : 16;
  static constexpr int kPartsM = kTileM / kPartRows;
  static constexpr int kPartsN = kReaders / kPartsM;
  static constexpr int kPartColumns = kTileN / kPartsN;

  static constexpr int kBytesA = kTileM * kTileK * kElementBytes;
  static constexpr int kStageBytes = kBytesA + kTileN * kTileK * kElementBytes;
  static constexpr int kLag = kStages > 1 ? 1 : 0;  // K tiles between a stage's products and its refill

  // A and K-major B: boxes of 64 elements of K, 128-byte swizzle. N-major B: boxes of kBoxN elements of N.
  static constexpr int kBoxN = kKMajorB ? 64 : kPartColumns % 64 == 0 ? 64 : kPartColumns % 32 == 0 ? 32 : 16;
  static constexpr int kBoxNBytes = kBoxN * kElementBytes;

  // Partial sums by 16 rows x 8 columns of a warp: four of each thread, a quad. Every slice adds its share of them.
  static constexpr int kQuads = kPartRows / (kWgmma ? 64 : 16) * kPartColumns / 8;
  static constexpr int kShare = (kQuads + kSplitK - 1) / kSplitK;
  static constexpr int kReceivedBytes = kSplitK > 1 ? kSplitK * kShare * Config::kThreads * 16 : 0;
  static constexpr int kBodyBytes = kStages * kStageBytes;

  // What the shared epilogue stores: blocks of 64 rows below each other in one thread.
  struct Part {
    static constexpr int kBlocks = kWgmma ? kPartRows / 64 : 1;
    static constexpr int kTileN = kPartColumns;
  };

  static_assert(kTileK % 64 == 0 && kTileK <= 256, "a K tile is one to four 128-byte swizzle rows");
  static_assert(kTileM % kPartRows == 0 && kReaders % kPartsM == 0 && kTileN % kPartsN == 0, "warps share the tile evenly");
  static_assert(!kWgmma || (Config::kWarps % 4 == 0 && kPartRows % 64 == 0), "wgmma: whole warp groups of 64 rows");
  static_assert(kPartColumns % (kWgmma ? 8 : 16) == 0, "a part is whole columns of its instruction");
  static_assert(kKMajorB || kPartColumns % 16 == 0, "N-major B is loaded in boxes of 16 columns at least");
  static_assert(kSplitK <= 16, "no cluster is larger than 16 CTAs");
  static_assert((2 * kStages + 1) * 8 <= kBarrierBytes, "barriers outgrow their room");
  static_assert(!Config::kBf16 || !Config::kAccFp16, "no instruction adds bf16 products in fp16");
  static_assert(Config::kThreads == Config::kWarps * 32, "threads disagree with the host");
  static_assert(Config::kSmemBytes == kBodyBytes + kReceivedBytes + kBarrierBytes, "shared memory disagrees with the host");
};

template <class G>
struct SmallSmem {
  uint8_t* base;

  __device__ __forceinline__ uint8_t* a(int stage) const { return base + stage * G::kStageBytes; }
  __device__ __forceinline__ uint8_t* b(int stage) const { return a(stage) + G::kBytesA; }
  // Beside the stages: a peer's partial sums may come while this CTA still multiplies.
  __device__ __forceinline__ float4* received() const { return reinterpret_cast<float4*>(base + G::kBodyBytes); }
  __device__ __forceinline__ uint64_t* all_received() const {
    return reinterpret_cast<uint64_t*>(base + G::kBodyBytes + G::kReceivedBytes);
  }
  __device__ __forceinline__ uint64_t* full(int stage) const { return all_received() + 1 + stage; }
  __device__ __forceinline__ uint64_t* empty(int stage) const { return full(G::kStages + stage); }
};

// A CTA's tile and its share of K: blockIdx is (slice, tile along M, tile along N), so that nothing is divided.
template <class G>
struct SmallWork {
  const GemmParams& params;
  int row;
  int col;
  int k0;       // first element of K
  int k_tiles;  // from there

  __device__ __forceinline__ explicit SmallWork(const GemmParams& p) : params(p) {
    row = blockIdx.y * G::kTileM;
    col = blockIdx.z * G::kTileN;
    const uint32_t all = uint32_t(p.k + G::kTileK - 1) / G::kTileK;  // unsigned: division is a shift
    const uint32_t begin = G::kSplitK == 1 ? 0 : all * blockIdx.x / G::kSplitK;
    k_tiles = (G::kSplitK == 1 ? all : all * (blockIdx.x + 1) / G::kSplitK) - begin;
    k0 = begin * G::kTileK;
  }

  // The TMA boxes of one K tile: where each goes from the start of its stage, and where it is in the matrix.
  template <class Body>
  __device__ __forceinline__ void each_box_of_a(int kt, Body body) const {
#pragma unroll
    for (int sub = 0; sub < G::kTileK / 64; ++sub) body(sub * G::kTileM * 128, k0 + kt * G::kTileK + sub * 64, row);
  }
  template <class Body>
  __device__ __forceinline__ void each_box_of_b(int kt, Body body) const {
    if constexpr (G::kKMajorB) {
#pragma unroll
      for (int sub = 0; sub < G::kTileK / 64; ++sub) {
        body(G::kBytesA + sub * G::kTileN * 128, k0 + kt * G::kTileK + sub * 64, col);
      }
    } else {
#pragma unroll
      for (int box = 0; box < G::kTileN / G::kBoxN; ++box) {
        body(G::kBytesA + box * G::kTileK * G::kBoxNBytes, col + box * G::kBoxN, k0 + kt * G::kTileK);
      }
    }
  }
};

}  // namespace cudal2
