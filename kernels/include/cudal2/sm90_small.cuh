// Latency kernel for small products: one CTA per tile of C and K slice, no roles, no loop over tiles, few barriers.
//
// One thread starts every load it can as soon as its barriers exist, before the other threads know of them; then all
// warps multiply K tile by K tile, by wgmma or by mma.sync. A K longer than the ring has the same thread refill it.
// Slices of K are CTAs of a cluster that send each other their partial sums. See kernels/README.md.
#pragma once

#include "cudal2/small_loads.cuh"
#include "cudal2/small_parts.cuh"
#include "cudal2/small_split.cuh"

namespace cudal2 {

template <class G, class Part>
__device__ __forceinline__ void multiply_share(const SmallWork<G>& work, const SmallSmem<G>& smem, Part& part) {
  StageCursor<G::kStages> cursor;
  StageCursor<G::kStages> freed;
#pragma unroll 1
  for (int kt = 0; kt < work.k_tiles; ++kt) {
    FullBarrier::wait(smem.full(cursor.stage), cursor.phase);
    part.multiply(smem, cursor.stage, kt == 0);
    if constexpr (G::kLag == 0) freed = cursor;
    const int next = kt - G::kLag + G::kStages;
    if (kt >= G::kLag && next < work.k_tiles) refill<G>(work, smem, next, freed);
    freed = cursor;
    cursor.step();
  }
  part.finish();
}

template <bool kWgmma, class G>
struct PartOf {
  using Type = WgmmaPart<G>;
};
template <class G>
struct PartOf<false, G> {
  using Type = MmaPart<G>;
};

template <class Config>
__device__ __forceinline__ void sm90_small(const GemmParams& params) {
  using G = SmallGeometry<Config>;
  extern __shared__ __align__(kAlignment) uint8_t smem_raw[];
  const SmallSmem<G> smem{smem_raw};
  const SmallWork<G> work(params);
  if (threadIdx.x < 32) {
    if (cute::elect_one_sync()) start<G>(work, smem);  // elected, so that the compiler knows the lane to be alone
  }
  __syncthreads();
  if constexpr (G::kSplitK > 1) cluster_arrive_relaxed();  // what peers send can be counted; the wait is behind the products

  typename PartOf<G::kWgmma, G>::Type part;
  multiply_share<G>(work, smem, part);
  const int row = work.row + part.row();
  const int col = work.col + part.col();
  if constexpr (G::kSplitK > 1) {
    cluster_wait();
    send_partials<G>(smem, part);
    store_sums<G>(work, smem, row, col);  // no CTA that adds leaves before its peers' last quads have come
  } else {
    store_rows<typename G::Part>(params, part.acc, row, col);
  }
}

}  // namespace cudal2
