// sm90_small: loads of K tiles, ahead of the previous grid's end into L2, at the start, and into stages given back.
#pragma once

#include "cudal2/small_geometry.cuh"

namespace cudal2 {

// Runs in one thread.
template <class G>
__device__ __forceinline__ void load_k_tile(const SmallWork<G>& work, const SmallSmem<G>& smem, int kt, int stage) {
  uint64_t* full = smem.full(stage);
  FullBarrier::arrive_and_expect_tx(full, G::kStageBytes);
  uint8_t* to = smem.a(stage);
  work.each_box_of_a(kt, [&](int offset, int x, int y) {
    cute::SM90_TMA_LOAD_2D::copy(&work.params.a, full, work.params.hint_a, to + offset, x, y);
  });
  work.each_box_of_b(kt, [&](int offset, int x, int y) {
    cute::SM90_TMA_LOAD_2D::copy(&work.params.b, full, work.params.hint_b, to + offset, x, y);
  });
}

// Runs in one thread, while the previous grid still may: operands to L2, through which that grid writes as well, so that
// the loads find whatever it has written by then. CTAs that read the same rows or columns share their K tiles.
template <class G>
__device__ __forceinline__ void prefetch_share(const SmallWork<G>& work) {
  const int k_tiles = min(work.params.prefetch, work.k_tiles);
#pragma unroll 1
  for (int kt = blockIdx.z; kt < k_tiles; kt += gridDim.z) {
    work.each_box_of_a(kt, [&](int, int x, int y) { cute::SM90_TMA_LOAD_2D::PREFETCH::copy(&work.params.a, x, y); });
  }
#pragma unroll 1
  for (int kt = blockIdx.y; kt < k_tiles; kt += gridDim.y) {
    work.each_box_of_b(kt, [&](int, int x, int y) { cute::SM90_TMA_LOAD_2D::PREFETCH::copy(&work.params.b, x, y); });
  }
}

// Runs in one thread: barriers, then at once the loads that they count. The other threads learn of both by the barrier
// that follows; until then they have nothing to do.
template <class G>
__device__ __forceinline__ void start(const SmallWork<G>& work, const SmallSmem<G>& smem) {
  cute::prefetch_tma_descriptor(reinterpret_cast<const cute::TmaDescriptor*>(&work.params.a));
  cute::prefetch_tma_descriptor(reinterpret_cast<const cute::TmaDescriptor*>(&work.params.b));
#pragma unroll
  for (int stage = 0; stage < G::kStages; ++stage) FullBarrier::init(smem.full(stage), 1);
  if constexpr (G::kSplitK > 1) FullBarrier::init(smem.all_received(), 1);
  cutlass::arch::fence_barrier_init();
  if (work.params.prefetch > 0) prefetch_share<G>(work);
  wait_for_previous_grid();
  allow_next_grid();  // its CTAs touch no operand before this grid has ended
#pragma unroll
  for (int stage = 0; stage < G::kStages; ++stage) {
    if (stage < work.k_tiles) load_k_tile<G>(work, smem, stage, stage);
  }
  if constexpr (G::kReaders > 1) {
    if (work.k_tiles > G::kStages) {
#pragma unroll
      for (int stage = 0; stage < G::kStages; ++stage) EmptyBarrier::init(smem.empty(stage), G::kReaders);
    }
  }
  if constexpr (G::kSplitK > 1) {
    const int mine = max(0, min(G::kShare, G::kQuads - int(blockIdx.x) * G::kShare));
    FullBarrier::arrive_and_expect_tx(smem.all_received(), G::kSplitK * mine * G::kThreads * 16);
  }
}

// The stage whose products were issued kLag K tiles ago takes the next K tile, once every reader has left it. A warp
// group is one reader: its wgmma has read its operands as a whole when one of its threads has waited for it.
template <class G>
__device__ __forceinline__ void refill(const SmallWork<G>& work, const SmallSmem<G>& smem, int kt, StageCursor<G::kStages> freed) {
  if constexpr (G::kReaders > 1) {
    if (threadIdx.x % G::kReaderThreads == 0) EmptyBarrier::arrive(smem.empty(freed.stage));
  }
  if (threadIdx.x < 32) {
    if (cute::elect_one_sync()) {
      if constexpr (G::kReaders > 1) EmptyBarrier::wait(smem.empty(freed.stage), freed.phase);
      load_k_tile<G>(work, smem, kt, freed.stage);
    }
  }
  __syncwarp();  // the next products are of whole warps
}

}  // namespace cudal2
