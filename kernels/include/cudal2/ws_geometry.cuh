// What sm90_ws derives beside geometry.cuh: K tiles of less than 64, K split by way of the workspace, A that stays,
// stream-K.
#pragma once

#include "cudal2/geometry.cuh"

namespace cudal2 {

// geometry.cuh knows K tiles of whole 128-byte swizzle rows, in stages of both operands. Narrower ones have narrower rows,
// stages of B alone leave out what A takes, and both are the same otherwise.
template <class Config>
struct WholeRows : Config {
  static constexpr int kTileK = Config::kTileK < 64 ? 64 : Config::kTileK;
  static constexpr int kSpared = Config::kResidentA > 0 ? Config::kStages - Config::kResidentA : 0;  // K tiles of A
  static constexpr int kSmemBytes =
      Config::kSmemBytes + Config::kStages * (Config::kTileM + Config::kTileN) * (kTileK - Config::kTileK) * kElementBytes +
      kSpared * Config::kTileM * Config::kTileK * kElementBytes;
};

template <class Config>
struct WsGeometry : Geometry<WholeRows<Config>> {
  using Base = Geometry<WholeRows<Config>>;
  using Config::kClusterM, Config::kSplitK, Config::kStages, Config::kTileK, Config::kTileM, Config::kTileN;
  using Config::kWorkspaceSplitK;  // it or kSplitK is 1

  // A box of A or of K-major B is one swizzle row wide.
  static constexpr int kRowBytes = kTileK < 64 ? kTileK * kElementBytes : 128;
  static constexpr int kBoxesK = kTileK * kElementBytes / kRowBytes;
  static constexpr int kBytesA = kTileM * kTileK * kElementBytes;
  static constexpr int kBytesB = kTileN * kTileK * kElementBytes;
  static constexpr bool kKeepsA = Config::kResidentA > 0;  // all K tiles of A lie before the ring, whose stages hold B
  static constexpr int kKeptBytes = Config::kResidentA * kBytesA;
  static constexpr int kStageBytes = (kKeepsA ? 0 : kBytesA) + kBytesB;
  static constexpr int kRingBytes = kKeptBytes + kStages * kStageBytes;
  static constexpr int kBodyBytes = kRingBytes > Base::kPartialBytes ? kRingBytes : Base::kPartialBytes;
  static constexpr int kSliceB = (Config::kKMajorB ? kTileN : kTileK) / kClusterM;

  static constexpr bool kWorkspace = kWorkspaceSplitK > 1;
  static constexpr bool kStreamK = Config::kStreamK;
  static constexpr int kSlices = kSplitK * kWorkspaceSplitK;
  static constexpr int kQuads = Base::kBlocks * Base::kWgmmaN / 8;  // of four sums, in one consumer thread

  static_assert(kTileK == 16 || kTileK == 32 || kTileK % 64 == 0, "a K tile is one swizzle row of 32 or 64 bytes, or whole ones of 128");
  static_assert(kTileK >= 64 || kSlices == 1, "a K tile below 64 is for a K that nobody splits");
  static_assert(kBytesA % kAlignment == 0 && kBytesB % kAlignment == 0, "every tile begins where a swizzle of 128 bytes may");
  static_assert(kSliceB % 8 == 0, "a multicast slice is whole swizzle atoms of 8 rows, or the bytes never add up");
  static_assert(!kKeepsA || (kSlices == 1 && kTileK >= 64), "A stays where a CTA has all of K, in whole swizzle rows");
  static_assert(kSplitK == 1 || kWorkspaceSplitK == 1, "K is split in the cluster or through the workspace");
  static_assert(kWorkspaceSplitK <= 16, "a ticket has 16 bits for shares given up");
  static_assert(!kWorkspace || (!Config::kPingpong && !Config::kTmaStore), "split-K: cooperative, direct store");
  static_assert(!kStreamK || (kSlices == 1 && !kKeepsA), "stream-K splits K where nothing else does, of tiles whose stages bring A");
  static_assert(!Config::kShiftedStore || (kSlices == 1 && !Config::kSwapAB && !Config::kTmaStore), "shifted rows are stored whole, not swapped");
  static_assert(!Config::kStoreEvictFirst || Config::kTmaStore, "the hint goes with a TMA store");
  static_assert(2 * kStages * 8 + 4 * Config::kConsumers <= kBarrierBytes, "barriers and the words behind them outgrow their room");
};

}  // namespace cudal2
