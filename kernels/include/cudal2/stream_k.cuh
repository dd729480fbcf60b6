// Stream-K: the tiles of the last wave, too few for all clusters, are split along K so that all have something to do
// (Osama et al., PPoPP 2023). Tiles are split at the same places, since clusters that read the same operands find them
// in L2 only while they read the same K. The parts' fp32 sums meet in the workspace, as those of slices do.
#pragma once

#include "cudal2/workspace.cuh"
#include "cudal2/ws_work.cuh"

namespace cudal2 {

// Before a tile, so that the compiler knows nothing to be in them while parts of another are added.
template <class Acc, int kBlocks>
__device__ __forceinline__ void clear(Acc (&acc)[kBlocks]) {
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
    for (int r = 0; r < Acc::kRegisters; ++r) acc[i].d[r] = 0;
  }
}

// Adds the quads from `begin` to `end` over all parts, in the order of K, and stores them; `partials` are this thread's.
template <class G, int kPartQuads, int kThreads>
__device__ __forceinline__ void add_quads(const GemmParams& params, const float4* partials, int parts, int begin, int end, int row, int col) {
  constexpr int kAtOnce = 8;  // and of two parts, so that 16 loads run beside each other
  const auto load = [&](int part, int quad) { return load_shared_by_gpu(partials + part * kPartQuads + quad * kThreads); };
#pragma unroll 1
  for (int first = begin; first < end; first += kAtOnce) {
    float4 sums[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sums[i] = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 1
    for (int part = 0; part < parts; part += 2) {
      float4 sum[2][kAtOnce];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          sum[j][i] = part + j < parts && first + i < end ? load(part + j, first + i) : make_float4(0.f, 0.f, 0.f, 0.f);
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          sums[i].x += sum[j][i].x;
          sums[i].y += sum[j][i].y;
          sums[i].z += sum[j][i].z;
          sums[i].w += sum[j][i].w;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < end) store_quad<G>(params, first + i, sums[i], row, col);
    }
  }
}

// Runs in the threads of one warp group, which has added up some K tiles of its rows of a tile: of the parts' shares of
// these it adds its own, and what others gave up. `claimed` is a word of shared memory for each group.
template <class G, class Acc>
__device__ __forceinline__ void add_parts(const Work<G>& work, Item item, int group, uint32_t* claimed, const Acc (&acc)[G::kBlocks],
                                          int row0, int col0) {
  constexpr int kThreads = G::kPingpong ? kWarpGroup : G::kConsumerThreads;  // of a tile
  constexpr int kGroups = kThreads / kWarpGroup;
  constexpr int kTileQuads = G::kQuads * kThreads;
  constexpr int kPartQuads = G::kShareSize * kTileQuads;  // of a whole cluster
  constexpr int kWide = G::kWgmmaN / 8;
  const auto& params = static_cast<const WorkspaceParams&>(work.params);
  const int tile = item.tile - work.tiles;
  const int parts = work.tail.parts;
  float4* partials = params.partials + int64_t(tile * parts) * kPartQuads + work.rank * kTileQuads + threadIdx.x % kThreads;
#pragma unroll
  for (int quad = 0; quad < G::kQuads; ++quad) {
    store_shared_by_gpu(partials + work.tail.part * kPartQuads + quad * kThreads, acc[quad / kWide].quad(quad % kWide));
  }
  uint32_t* ticket = params.tickets + (tile * G::kShareSize + work.rank) * kGroups + group % kGroups;
  const bool leader = threadIdx.x % kWarpGroup == 0;
  barrier_sync(kWarpGroupBarrier + group, kWarpGroup);  // all have written: the ticket releases it for all
  // Of two parts one may come much later; of more, all have as many K tiles and come at about the same time.
  if (leader) claimed[group] = claim_shares(ticket, work.tail.part, parts, parts > 2 ? kPolls : 0);
  barrier_sync(kWarpGroupBarrier + group, kWarpGroup);
  const uint32_t shares = claimed[group];
  uint32_t before = 0;
  if (leader) before = fetch_add_relaxed(ticket, kDeparture);  // its answer comes while sums are added
  const int row = row0 + (G::kSwapAB ? 0 : threadIdx.x % kWarpGroup / 32 * 16) + threadIdx.x % 32 / 4;
  const int col = col0 + (G::kSwapAB ? threadIdx.x % kWarpGroup / 32 * 16 : 0) + threadIdx.x % 4 * 2;
#pragma unroll 1
  for (int share = 0; share < parts; ++share) {
    if (shares >> share & 1) {
      add_quads<G, kPartQuads, kThreads>(params, partials, parts, G::kQuads * share / parts, G::kQuads * (share + 1) / parts, row, col);
    }
  }
  // Nobody looks at the ticket behind the last to leave, who makes it ready for the next launch.
  if (leader && departures(before) + 1 == parts) store_relaxed(ticket, 0);
}

}  // namespace cudal2
