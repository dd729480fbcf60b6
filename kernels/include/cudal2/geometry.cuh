// What a configuration implies at compile time. cudal2/space/geometry.py derives the same values and rules; the
// assertions here are the second lock on the same door.
#pragma once

#include <cuda/std/cstdint>

namespace cudal2 {

constexpr int kElementBytes = 2;
constexpr int kWarpGroup = 128;
constexpr int kAlignment = 1024;   // of a 128-byte-swizzled tile
constexpr int kBarrierBytes = 256;
constexpr int kStoreBuffers = 2;

template <class Config>
struct Geometry : Config {
  using Config::kClusterM, Config::kClusterN, Config::kConsumers, Config::kPingpong, Config::kSplitK, Config::kStages;
  using Config::kTileK, Config::kTileM, Config::kTileN, Config::kTmaStore;

  static constexpr int kClusterSize = kClusterM * kClusterN * kSplitK;
  static constexpr int kShareSize = kClusterM * kClusterN;  // CTAs that share operands: one K slice of the cluster
  static constexpr bool kMulticast = kShareSize > 1;
  static constexpr int kPeers = kClusterM + kClusterN - 1;  // CTAs whose stages one CTA's consumers must release

  static constexpr int kConsumerThreads = kConsumers * kWarpGroup;
  static constexpr bool kMoveRegisters = Config::kConsumerRegisters > 0;
  static constexpr int kProducerThreads = kMoveRegisters ? kWarpGroup : 32;

  static constexpr int kGroupRows = kPingpong ? kTileM : kTileM / kConsumers;  // rows of C per consumer warp group
  static constexpr int kBlocks = kGroupRows / 64;                              // wgmma blocks of 64 rows in them

  static constexpr int kBytesA = kTileM * kTileK * kElementBytes;
  static constexpr int kBytesB = kTileN * kTileK * kElementBytes;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kPartialBytes = kSplitK > 1 ? kTileM * kTileN * 4 : 0;
  static constexpr int kBodyBytes = kStages * kStageBytes > kPartialBytes ? kStages * kStageBytes : kPartialBytes;

  static constexpr int kStoreColumns = kTileN % 64 == 0 ? 64 : kTileN % 32 == 0 ? 32 : kTileN % 16 == 0 ? 16 : 8;
  static constexpr int kStoreBytes = 64 * kStoreColumns * kElementBytes;
  static constexpr int kEpilogueBytes = kTmaStore ? kConsumers * kStoreBuffers * kStoreBytes : 0;

  // A and K-major B: boxes of 64 elements of K, 128-byte swizzle. N-major B: boxes of kBoxN elements of N.
  static constexpr int kBoxN = Config::kKMajorB ? 64 : kTileN % 64 == 0 ? 64 : kTileN % 32 == 0 ? 32 : 16;
  static constexpr int kBoxNBytes = kBoxN * kElementBytes;

  // One multicast slice: A by rows over the CTAs of a cluster row, B by rows of N (tn) or of K (nn) over a cluster column.
  static constexpr int kSliceA = kTileM / kClusterN;
  static constexpr int kSliceB = (Config::kKMajorB ? kTileN : kTileK) / kClusterM;

  static_assert(kTileK % 64 == 0, "a K tile is whole 128-byte swizzle rows");
  static_assert(!kPingpong || kConsumers == 2, "ping-pong alternates two consumer warp groups");
  static_assert(kBlocks * 64 == kGroupRows && (kBlocks == 1 || kBlocks == 2), "64 or 128 rows per consumer warp group");
  static_assert(kSliceA % 8 == 0 && kSliceB % 8 == 0, "a multicast slice is whole swizzle atoms of 8 rows, or the bytes never add up");
  static_assert(kTileN % kBoxN == 0 || Config::kKMajorB, "N-major B is loaded in whole boxes");
  static_assert(!kTmaStore || kStoreColumns >= 16, "a TMA store box is at least 32 bytes wide");
  static_assert(kSplitK == 1 || (!kPingpong && !kTmaStore), "split-K: cooperative, direct store");
  static_assert(!Config::kBf16 || !Config::kAccFp16, "no instruction adds bf16 products in fp16");
  static_assert(kClusterSize <= 16, "no cluster is larger than 16 CTAs");
  static_assert(2 * kStages * 8 <= kBarrierBytes, "barriers outgrow their room");
  static_assert(Config::kThreads == kConsumerThreads + kProducerThreads, "threads disagree with the host");
  static_assert(Config::kSmemBytes == kAlignment + kBodyBytes + kEpilogueBytes + kBarrierBytes, "shared memory disagrees with the host");
};

}  // namespace cudal2
