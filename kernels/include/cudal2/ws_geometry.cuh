// What sm90_ws derives beside geometry.cuh: K tiles of less than 64, and K split by way of the workspace.
#pragma once

#include "cudal2/geometry.cuh"

namespace cudal2 {

// geometry.cuh knows K tiles of whole 128-byte swizzle rows. Narrower ones have narrower rows and are the same otherwise.
template <class Config>
struct WholeRows : Config {
  static constexpr int kTileK = Config::kTileK < 64 ? 64 : Config::kTileK;
  static constexpr int kSmemBytes =
      Config::kSmemBytes + Config::kStages * (Config::kTileM + Config::kTileN) * (kTileK - Config::kTileK) * kElementBytes;
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
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kBodyBytes = kStages * kStageBytes > Base::kPartialBytes ? kStages * kStageBytes : Base::kPartialBytes;
  static constexpr int kSliceB = (Config::kKMajorB ? kTileN : kTileK) / kClusterM;

  static constexpr bool kWorkspace = kWorkspaceSplitK > 1;
  static constexpr int kSlices = kSplitK * kWorkspaceSplitK;
  static constexpr int kQuads = Base::kBlocks * Base::kWgmmaN / 8;  // of four sums, in one consumer thread

  static_assert(kTileK == 16 || kTileK == 32 || kTileK % 64 == 0, "a K tile is one swizzle row of 32 or 64 bytes, or whole ones of 128");
  static_assert(kTileK >= 64 || kSlices == 1, "a K tile below 64 is for a K that nobody splits");
  static_assert(kBytesA % kAlignment == 0 && kBytesB % kAlignment == 0, "every tile begins where a swizzle of 128 bytes may");
  static_assert(kSliceB % 8 == 0, "a multicast slice is whole swizzle atoms of 8 rows, or the bytes never add up");
  static_assert(kSplitK == 1 || kWorkspaceSplitK == 1, "K is split in the cluster or through the workspace");
  static_assert(kWorkspaceSplitK <= 16, "a ticket has 16 bits for shares given up");
  static_assert(!kWorkspace || (!Config::kPingpong && !Config::kTmaStore), "split-K: cooperative, direct store");
  static_assert(!Config::kStoreEvictFirst || Config::kTmaStore, "the hint goes with a TMA store");
  static_assert(2 * kStages * 8 + 8 <= kBarrierBytes, "barriers and the word behind them outgrow their room");
};

}  // namespace cudal2
