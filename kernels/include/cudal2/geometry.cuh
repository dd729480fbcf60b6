// What a configuration implies at compile time. cudal2/space/geometry.py derives the same values and rules; the
// assertions here are the second lock on the same door.
#pragma once

#include <cuda/std/cstdint>

namespace cudal2 {

constexpr int kElementBytes = 2;
constexpr int kWarpGroup = 128;
constexpr int kAlignment = 1024;   // of a 128-byte-swizzled tile
constexpr int kBarrierBytes = 256;

template <class Config>
struct Geometry : Config {
  using Config::kClusterM, Config::kClusterN, Config::kConsumers, Config::kPingpong, Config::kSplitK, Config::kStages;
  using Config::kStoreBuffers, Config::kSwapAB, Config::kTileK, Config::kTileM, Config::kTileN, Config::kTmaStore;

  static constexpr int kClusterSize = kClusterM * kClusterN * kSplitK;
  static constexpr int kShareSize = kClusterM * kClusterN;  // CTAs that share operands: one K slice of the cluster
  static constexpr bool kMulticast = kShareSize > 1;
  static constexpr int kPeers = kClusterM + kClusterN - 1;  // CTAs whose stages one CTA's consumers must release

  static constexpr int kConsumerThreads = kConsumers * kWarpGroup;
  static constexpr bool kMoveRegisters = Config::kConsumerRegisters > 0;
  static constexpr int kProducerThreads = kMoveRegisters ? kWarpGroup : 32;

  // wgmma computes a tile of C, or with swapped operands of its transpose: then the columns of C are its rows.
  static constexpr int kWgmmaM = kSwapAB ? kTileN : kTileM;  // what the consumers share out
  static constexpr int kWgmmaN = kSwapAB ? kTileM : kTileN;
  static constexpr int kGroupRows = kPingpong ? kWgmmaM : kWgmmaM / kConsumers;  // wgmma rows per consumer warp group
  static constexpr int kBlocks = kGroupRows / 64;                                // blocks of 64 in them

  static constexpr int kBytesA = kTileM * kTileK * kElementBytes;
  static constexpr int kBytesB = kTileN * kTileK * kElementBytes;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kPartialBytes = kSplitK > 1 ? kTileM * kTileN * 4 : 0;
  static constexpr int kBodyBytes = kStages * kStageBytes > kPartialBytes ? kStages * kStageBytes : kPartialBytes;

  // A box of the TMA store: a block's rows by the widest swizzle that divides the tile, or by the widest there is if none
  // does. Swapped: a block's 64 columns by an equal share of the rows, rounded up to whole atoms. The last box of either
  // overlaps the one before rather than the tile's end.
  static constexpr int kStoreColumns = kTileN % 64 == 0 ? 64 : kTileN % 32 == 0 ? 32 : kTileN % 16 == 0 ? 16 : 64;
  static constexpr int kStoreBoxes = kSwapAB ? (kTileM + 63) / 64 : (kTileN + kStoreColumns - 1) / kStoreColumns;  // per block
  static constexpr int kStoreRows = kSwapAB ? (kTileM / 8 + kStoreBoxes - 1) / kStoreBoxes * 8 : 64;
  static constexpr int kStoreBytes = kStoreRows * kStoreColumns * kElementBytes;
  static constexpr int kEpilogueBytes = kTmaStore ? kConsumers * kStoreBuffers * kStoreBytes : 0;

  // A and K-major B: boxes of 64 elements of K, 128-byte swizzle. N-major B: boxes of kBoxN elements of N.
  static constexpr int kBoxN = Config::kKMajorB ? 64 : kTileN % 64 == 0 ? 64 : kTileN % 32 == 0 ? 32 : 16;
  static constexpr int kBoxNBytes = kBoxN * kElementBytes;

  // One multicast slice: A by rows over the CTAs of a cluster row, B by rows of N (tn) or of K (nn) over a cluster column.
  static constexpr int kSliceA = kTileM / kClusterN;
  static constexpr int kSliceB = (Config::kKMajorB ? kTileN : kTileK) / kClusterM;

  static_assert(kTileK % 64 == 0, "a K tile is whole 128-byte swizzle rows");
  static_assert(!kPingpong || kConsumers == 2, "ping-pong alternates two consumer warp groups");
  static_assert(kBlocks * 64 == kGroupRows && (kBlocks == 1 || kBlocks == 2), "64 or 128 wgmma rows per consumer warp group");
  static_assert(kWgmmaN % 8 == 0 && kWgmmaN <= 256, "wgmma is up to 256 columns wide, in steps of 8");
  static_assert(!kSwapAB || Config::kKMajorB || kBoxN == 64, "an N-major left operand comes in boxes of wgmma's 64 rows");
  static_assert(kSliceA % 8 == 0 && kSliceB % 8 == 0, "a multicast slice is whole swizzle atoms of 8 rows, or the bytes never add up");
  static_assert(kTileN % kBoxN == 0 || Config::kKMajorB, "N-major B is loaded in whole boxes");
  static_assert(!kTmaStore || kStoreColumns <= kTileN, "a TMA store box is 32 bytes of the tile's rows, or 64, or 128");
  static_assert(kStoreBuffers >= 2, "one box is written while another is read");
  static_assert(kSplitK == 1 || (!kPingpong && !kTmaStore), "split-K: cooperative, direct store");
  static_assert(!Config::kBf16 || !Config::kAccFp16, "no instruction adds bf16 products in fp16");
  static_assert(kClusterSize <= 16, "no cluster is larger than 16 CTAs");
  static_assert(2 * kStages * 8 <= kBarrierBytes, "barriers outgrow their room");
  static_assert(Config::kThreads == kConsumerThreads + kProducerThreads, "threads disagree with the host");
  static_assert(Config::kSmemBytes == kAlignment + kBodyBytes + kEpilogueBytes + kBarrierBytes, "shared memory disagrees with the host");
};

}  // namespace cudal2
