// Warp-specialised Hopper GEMM: one producer warp feeds a ring of stages by TMA, 1-3 consumer warp groups run wgmma.
//
// Cooperative: the consumers share a tile by rows, or by columns if the operands are swapped. Ping-pong: each has its own
// tile and they take turns at the tensor cores, so that one's epilogue hides behind the other's main loop. Clusters share
// A and B by multicast, or split K and reduce through distributed shared memory; without a cluster, K is split by way of a
// workspace, for all tiles or for those of the last wave. Where K is short, A may stay in shared memory from tile to
// tile. See kernels/README.md for the axes.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cudal2/epilogue.cuh"
#include "cudal2/epilogue_swapped.cuh"
#include "cudal2/params.cuh"
#include "cudal2/raster.cuh"
#include "cudal2/shifted_rows.cuh"
#include "cudal2/stream_k.cuh"
#include "cudal2/sync.cuh"
#include "cudal2/wgmma.cuh"
#include "cudal2/workspace.cuh"
#include "cudal2/ws_geometry.cuh"
#include "cudal2/ws_store.cuh"
#include "cudal2/ws_work.cuh"

namespace cudal2 {

template <class G>
struct Smem {
  uint8_t* base;

  // A of the K tile kt, which is in the ring's stage or kept.
  __device__ __forceinline__ uint8_t* a(int stage, int kt) const {
    return G::kKeepsA ? base + kt * G::kBytesA : base + stage * G::kStageBytes;
  }
  __device__ __forceinline__ uint8_t* b(int stage) const {
    return G::kKeepsA ? base + G::kKeptBytes + stage * G::kStageBytes : a(stage, 0) + G::kBytesA;
  }
  __device__ __forceinline__ float4* partials() const { return reinterpret_cast<float4*>(base); }
  __device__ __forceinline__ uint8_t* staging(int group) const {
    return base + G::kBodyBytes + group * G::kStoreBuffers * G::kStoreBytes;
  }
  __device__ __forceinline__ uint64_t* full(int stage) const {
    return reinterpret_cast<uint64_t*>(base + G::kBodyBytes + G::kEpilogueBytes) + stage;
  }
  __device__ __forceinline__ uint64_t* empty(int stage) const { return full(G::kStages + stage); }
  __device__ __forceinline__ uint32_t* claimed() const { return reinterpret_cast<uint32_t*>(full(2 * G::kStages)); }
};

// One box; `mask` names the CTAs of the cluster that receive it at the same shared-memory offset.
template <bool kMulticast>
__device__ __forceinline__ void load_box(const TensorMap& map, uint64_t hint, uint64_t* barrier, uint16_t mask, void* to, int x, int y) {
  if constexpr (kMulticast) {
    cute::SM90_TMA_LOAD_MULTICAST_2D::copy(&map, barrier, mask, hint, to, x, y);
  } else {
    cute::SM90_TMA_LOAD_2D::copy(&map, barrier, hint, to, x, y);
  }
}

// The K tile kt into a stage; of A only what does not stay from an earlier tile.
template <class G>
__device__ __forceinline__ void load_stage(const Work<G>& work, const Smem<G>& smem, int stage, int row, int col, int kt, bool fetch_a) {
  const GemmParams& p = work.params;
  const int k0 = kt * G::kTileK;
  uint64_t* barrier = smem.full(stage);
  uint16_t mask_a = 0;
  uint16_t mask_b = 0;
#pragma unroll
  for (int i = 0; i < G::kClusterN; ++i) mask_a |= 1 << work.peer(work.cta_m, i);
#pragma unroll
  for (int i = 0; i < G::kClusterM; ++i) mask_b |= 1 << work.peer(i, work.cta_n);

  if (!G::kKeepsA || fetch_a) {
    const int slice_a = work.cta_n * G::kSliceA;
#pragma unroll
    for (int sub = 0; sub < G::kBoxesK; ++sub) {
      load_box<(G::kClusterN > 1)>(p.a, p.hint_a, barrier, mask_a, smem.a(stage, kt) + (sub * G::kTileM + slice_a) * G::kRowBytes, k0 + sub * 64,
                                   row + slice_a);
    }
  }
  const int slice_b = work.cta_m * G::kSliceB;
  if constexpr (G::kKMajorB) {
#pragma unroll
    for (int sub = 0; sub < G::kBoxesK; ++sub) {
      load_box<(G::kClusterM > 1)>(p.b, p.hint_b, barrier, mask_b, smem.b(stage) + (sub * G::kTileN + slice_b) * G::kRowBytes, k0 + sub * 64, col + slice_b);
    }
  } else {
#pragma unroll
    for (int box = 0; box < G::kTileN / G::kBoxN; ++box) {
      load_box<(G::kClusterM > 1)>(p.b, p.hint_b, barrier, mask_b, smem.b(stage) + (box * G::kTileK + slice_b) * G::kBoxNBytes,
                                   col + box * G::kBoxN, k0 + slice_b);
    }
  }
}

// The CTA's own boxes of the K tile at k0, into L2 only.
template <class G>
__device__ __forceinline__ void prefetch_a(const Work<G>& work, int row, int k0) {
#pragma unroll
  for (int sub = 0; sub < G::kBoxesK; ++sub) {
    cute::SM90_TMA_LOAD_2D::PREFETCH::copy(&work.params.a, k0 + sub * 64, row + work.cta_n * G::kSliceA);
  }
}

template <class G>
__device__ __forceinline__ void prefetch_b(const Work<G>& work, int col, int k0) {
  const int slice = work.cta_m * G::kSliceB;
  if constexpr (G::kKMajorB) {
#pragma unroll
    for (int sub = 0; sub < G::kBoxesK; ++sub) {
      cute::SM90_TMA_LOAD_2D::PREFETCH::copy(&work.params.b, k0 + sub * 64, col + slice);
    }
  } else {
#pragma unroll
    for (int box = 0; box < G::kTileN / G::kBoxN; ++box) {
      cute::SM90_TMA_LOAD_2D::PREFETCH::copy(&work.params.b, col + box * G::kBoxN, k0 + slice);
    }
  }
}

// Brings operands into L2 while the previous grid still runs. That grid may yet write them: L2 is where the whole GPU
// agrees on memory, so the loads behind the wait read what it wrote. CTAs with an operand in common share the K tiles;
// where A stays their first tiles lie apart, and each fetches its own.
template <class G>
__device__ __forceinline__ void prefetch_first_tile(const Work<G>& work, TileCoord tile) {
  const int end = min(work.k.end, work.k.begin + work.params.prefetch);
  const int sharing_a = G::kKeepsA ? 1 : work.params.tiles_n;
  const int sharing_b = G::kKeepsA ? 1 : work.params.tiles_m;
#pragma unroll 1
  for (int kt = work.k.begin + (G::kKeepsA ? 0 : tile.n); kt < end; kt += sharing_a) prefetch_a<G>(work, work.row(tile), kt * G::kTileK);
#pragma unroll 1
  for (int kt = work.k.begin + (G::kKeepsA ? 0 : tile.m); kt < end; kt += sharing_b) prefetch_b<G>(work, work.col(tile), kt * G::kTileK);
}

// Waits until nothing of the ring is in use, nor then any A that its products have read.
template <class G>
__device__ __forceinline__ void drain(const Smem<G>& smem, StageCursor<G::kStages> cursor) {
#pragma unroll 1
  for (int i = 0; i < G::kStages; ++i) {
    EmptyBarrier::wait(smem.empty(cursor.stage), cursor.phase ^ 1);
    cursor.step();
  }
}

// Runs in one elected lane.
template <class G>
__device__ __forceinline__ void produce(const Work<G>& work, const Smem<G>& smem) {
  StageCursor<G::kStages> cursor;
  Item item = work.item(0);
  TileCoord tile = tile_at(work.params, item.tile);  // its divisions hide behind the wait
  if (work.params.prefetch > 0 && work.is_item(item)) prefetch_first_tile<G>(work, tile);
  wait_for_previous_grid();
  allow_next_grid();  // its CTAs may take free slots now; they touch no operand before this grid has ended
  int kept_row = -1;  // where the A that stays begins
  int turn = 0;
  while (work.is_item(item)) {
    const int row = work.row(tile);
    const int col = work.col(tile);
    const bool fetch_a = !G::kKeepsA || row != kept_row;
    if (G::kKeepsA && fetch_a) drain<G>(smem, cursor);
    kept_row = row;
#pragma unroll 1  // unrolled copies only cost instruction cache
    for (int kt = item.k.begin; kt < item.k.end; ++kt) {
      EmptyBarrier::wait(smem.empty(cursor.stage), cursor.phase ^ 1);
      FullBarrier::arrive_and_expect_tx(smem.full(cursor.stage), G::kStageBytes + (G::kKeepsA && fetch_a ? G::kBytesA : 0));
      load_stage<G>(work, smem, cursor.stage, row, col, kt, fetch_a);
      cursor.step();
    }
    item = work.item(++turn);
    tile = tile_at(work.params, item.tile);
  }
}

// Gives a stage back to every CTA that multicasts into it: one arrival per warp group and CTA.
template <class G>
__device__ __forceinline__ void release_stage(const Work<G>& work, const Smem<G>& smem, int stage) {
  const int thread = threadIdx.x % kWarpGroup;
  if constexpr (!G::kMulticast) {
    if (thread == 0) EmptyBarrier::arrive(smem.empty(stage));
  } else if (thread < G::kPeers) {
    const int peer = thread < G::kClusterM
                         ? work.peer(thread, work.cta_n)
                         : work.peer(work.cta_m, (work.cta_n + 1 + thread - G::kClusterM) % G::kClusterN);
    EmptyBarrier::arrive(smem.empty(stage), peer, 1);
  }
}

template <class G, class Acc>
__device__ __forceinline__ void multiply_stage(const Smem<G>& smem, int stage, int kt, int group, Acc (&acc)[G::kBlocks], bool first) {
  // wgmma's left operand is A, or B if swapped; its blocks of 64 rows are whole boxes where it is N-major.
  constexpr bool kKMajorLeft = !G::kSwapAB || G::kKMajorB;
  constexpr bool kKMajorRight = G::kSwapAB || G::kKMajorB;
  constexpr int kBlockBytes = kKMajorLeft ? 64 * G::kRowBytes : G::kTileK * 128;
  constexpr int kGroupBytes = G::kPingpong ? 0 : G::kBlocks * kBlockBytes;
  const uint64_t bits_k = descriptor_bits<G::kRowBytes>(16, 8 * G::kRowBytes);
  const uint64_t bits_n = descriptor_bits<G::kBoxNBytes>(G::kTileK * G::kBoxNBytes, 8 * G::kBoxNBytes);
  const uint8_t* left = G::kSwapAB ? smem.b(stage) : smem.a(stage, kt);
  const uint8_t* right = G::kSwapAB ? smem.a(stage, kt) : smem.b(stage);
  const uint64_t desc_left = descriptor_at(kKMajorLeft ? bits_k : bits_n, cute::cast_smem_ptr_to_uint(left) + group * kGroupBytes);
  const uint64_t desc_right = descriptor_at(kKMajorRight ? bits_k : bits_n, cute::cast_smem_ptr_to_uint(right));
#pragma unroll
  for (int kk = 0; kk < G::kTileK / 16; ++kk) {
    const int at_left = kKMajorLeft ? kk / 4 * G::kWgmmaM * 128 + kk % 4 * 32 : kk * 16 * G::kBoxNBytes;
    const int at_right = kKMajorRight ? kk / 4 * G::kWgmmaN * 128 + kk % 4 * 32 : kk * 16 * G::kBoxNBytes;
    const gmma::ScaleOut scale = kk == 0 && first ? gmma::ScaleOut::Zero : gmma::ScaleOut::One;
#pragma unroll
    for (int i = 0; i < G::kBlocks; ++i) {
      wgmma<kKMajorRight, kKMajorLeft>(desc_left + ((at_left + i * kBlockBytes) >> 4), desc_right + (at_right >> 4), acc[i], scale);
    }
  }
}

// The products of one tile; a stage is given back once the next stage's products have been issued behind it. A that stays
// has arrived: its bytes count for a stage of this tile, or of an earlier one that this group waited for, or the other
// group did before it passed the turn on.
template <class G, class Acc>
__device__ __forceinline__ void multiply_tile(const Work<G>& work, const Smem<G>& smem, KRange k, int group,
                                              StageCursor<G::kStages>& cursor, Acc (&acc)[G::kBlocks]) {
  int previous = -1;
#pragma unroll 1
  for (int kt = k.begin; kt < k.end; ++kt) {
    FullBarrier::wait(smem.full(cursor.stage), cursor.phase);
    fence_accumulators(acc);
    cute::warpgroup_arrive();
    multiply_stage<G>(smem, cursor.stage, kt, group, acc, kt == k.begin);
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<1>();
    fence_accumulators(acc);
    if (previous >= 0) release_stage<G>(work, smem, previous);
    previous = cursor.stage;
    cursor.step();
  }
  if constexpr (G::kPingpong) {
    barrier_arrive(kTurnBarrier + (group ^ 1), 2 * kWarpGroup);  // the other group's products may follow ours
  }
  cute::warpgroup_wait<0>();
  fence_accumulators(acc);
  release_stage<G>(work, smem, previous);
}

// Runs in every thread of the consumer warp group `group`.
template <class G>
__device__ __forceinline__ void consume(const Work<G>& work, const Smem<G>& smem, int group) {
  using Acc = Accumulator<G::kWgmmaN, G::kAccFp16, G::kBf16>;
  StageCursor<G::kStages> cursor;
  const int share = G::kPingpong ? 0 : group * G::kGroupRows;  // where this group's part of the tile begins
  int turn = 0;
  int buffer = 0;
  if constexpr (G::kPingpong) {
    if (group == 1) {
      turn = 1;
      cursor.skip(work.item(0).k.count());
      barrier_arrive(kTurnBarrier, 2 * kWarpGroup);  // group 0 goes first
    }
  }
  for (Item item = work.item(turn); work.is_item(item); item = work.item(turn)) {
    const TileCoord tile = tile_at(work.params, item.tile);
    const int row = work.row(tile) + (G::kSwapAB ? 0 : share);
    const int col = work.col(tile) + (G::kSwapAB ? share : 0);
    Acc acc[G::kBlocks];
    if constexpr (G::kStreamK) clear(acc);
    if constexpr (G::kPingpong) barrier_sync(kTurnBarrier + group, 2 * kWarpGroup);
    multiply_tile<G>(work, smem, item.k, group, cursor, acc);
    if constexpr (G::kPingpong) cursor.skip(work.item(turn + 1).k.count());
    turn += G::kPingpong ? 2 : 1;
    if constexpr (G::kStreamK) {
      if (work.in_parts(item)) {
        add_parts<G>(work, item, group, smem.claimed(), acc, row, col);
        continue;
      }
    }
    if constexpr (G::kWorkspace) {
      const int cta_tile = item.tile * G::kShareSize + work.rank;
      reduce_through_workspace<G>(static_cast<const WorkspaceParams&>(work.params), acc, smem.claimed(), cta_tile, work.slice, row, col);
    } else if constexpr (G::kSplitK > 1) {
      expose_partials<G>(acc, smem.partials());
      cluster_barrier();
      reduce_partials<G>(work.params, smem.partials(), work.slice, work.rank % G::kShareSize, row, col);
    } else if constexpr (G::kTmaStore) {
      if constexpr (G::kSwapAB) {
        store_tma_swapped<G>(work.params, acc, smem.staging(group), group, row, col, buffer);
      } else {
        store_boxes<G>(work.params, acc, smem.staging(group), group, row, col, buffer);
      }
    } else if constexpr (G::kSwapAB) {
      store_direct_swapped<G>(work.params, acc, row, col);
    } else if constexpr (G::kShiftedStore) {
      store_shifted<G>(work.params, acc, row, col);
    } else {
      store_direct<G>(work.params, acc, row, col);
    }
  }
  if constexpr (G::kTmaStore) {
    if (threadIdx.x % kWarpGroup == 0) cute::tma_store_wait<0>();  // shared memory must outlive the stores
  }
}

template <class G>
__device__ __forceinline__ void set_up(const GemmParams& params, const Smem<G>& smem) {
  if (threadIdx.x == 0) {
    cute::prefetch_tma_descriptor(reinterpret_cast<const cute::TmaDescriptor*>(&params.a));
    cute::prefetch_tma_descriptor(reinterpret_cast<const cute::TmaDescriptor*>(&params.b));
    if constexpr (G::kTmaStore) cute::prefetch_tma_descriptor(reinterpret_cast<const cute::TmaDescriptor*>(&params.c));
    constexpr int kReleases = (G::kPingpong ? 1 : G::kConsumers) * G::kPeers;
#pragma unroll
    for (int stage = 0; stage < G::kStages; ++stage) {
      FullBarrier::init(smem.full(stage), 1);
      EmptyBarrier::init(smem.empty(stage), kReleases);
    }
    cutlass::arch::fence_barrier_init();
  }
  if constexpr (G::kMulticast) {
    cluster_arrive_relaxed();
    cluster_wait();  // no CTA sends before its peers' barriers exist
  } else {
    __syncthreads();
  }
}

template <class Config>
__device__ __forceinline__ void sm90_ws(const GemmParams& params) {
  using G = WsGeometry<Config>;
  extern __shared__ uint8_t smem_raw[];
  const uint32_t misaligned = cute::cast_smem_ptr_to_uint(smem_raw) % kAlignment;
  const Smem<G> smem{smem_raw + (misaligned ? kAlignment - misaligned : 0)};
  const Work<G> work(params);
  set_up<G>(params, smem);

  const int group = __shfl_sync(0xffffffff, threadIdx.x / kWarpGroup, 0);  // one for the warp, as the compiler can see now
  if (group == G::kConsumers) {
    if constexpr (G::kMoveRegisters) cutlass::arch::warpgroup_reg_dealloc<Config::kProducerRegisters>();
    if (threadIdx.x < G::kConsumerThreads + 32) {
      if (cute::elect_one_sync()) produce<G>(work, smem);  // elected, so that the compiler knows the lane to be alone
    }
    if constexpr (G::kSplitK > 1) cluster_barrier();  // matches the consumers' between exposing and reducing
  } else {
    if constexpr (G::kMoveRegisters) cutlass::arch::warpgroup_reg_alloc<Config::kConsumerRegisters>();
    consume<G>(work, smem, group);
  }
  // A CTA outlives every multicast, remote arrival and remote read that touches it. Only arrivals can be under way still.
  if constexpr (G::kMulticast) {
    cluster_barrier();
  } else if constexpr (G::kClusterSize > 1) {
    cluster_arrive_relaxed();
    cluster_wait();
  }
}

}  // namespace cudal2
