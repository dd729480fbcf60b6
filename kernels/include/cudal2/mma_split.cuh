// Split-K of sm80_mma: slices of K leave fp32 sums in a workspace in global memory, and who comes last adds them up.
//
// Nobody waits for another CTA. Sums are added in the order of the slices, so the result does not depend on timing.
#pragma once

#include <cuda_fp16.h>

#include "cudal2/ampere.cuh"
#include "cudal2/gpu_scope.cuh"
#include "cudal2/mma_params.cuh"

namespace cudal2 {

// MmaParams and the workspace: 80 bytes.
struct alignas(16) SplitMmaParams : MmaParams {
  float4* partials;   // [tile, slice, quad, thread]
  uint32_t* tickets;  // [tile]: slices that have left their sums; zero before a launch, and after it
};

static_assert(sizeof(SplitMmaParams) == 80, "the launcher packs 80 bytes: change both together");

// The sums of one 16 x 8 block that a thread holds: columns 2 (l % 4) + {0, 1} of row l / 4, then of row l / 4 + 8.
template <bool kBf16>
__device__ __forceinline__ float4 quad_of(const MmaAccumulator<false, kBf16>& acc) {
  return make_float4(acc.d[0], acc.d[1], acc.d[2], acc.d[3]);
}

__device__ __forceinline__ float4 quad_of(const MmaAccumulator<true, false>& acc) {
  const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&acc.d[0]));
  const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&acc.d[1]));
  return make_float4(low.x, low.y, high.x, high.y);
}

template <bool kBf16>
__device__ __forceinline__ void set_quad(MmaAccumulator<false, kBf16>& acc, float4 sum) {
  acc.d[0] = sum.x;
  acc.d[1] = sum.y;
  acc.d[2] = sum.z;
  acc.d[3] = sum.w;
}

__device__ __forceinline__ void set_quad(MmaAccumulator<true, false>& acc, float4 sum) {
  acc.d[0] = pack_elements<false>(sum.x, sum.y);
  acc.d[1] = pack_elements<false>(sum.z, sum.w);
}

// One thread's sums over all slices, in its accumulators.
template <class G, class Warp>
__device__ __forceinline__ void add_slices(const float4* partials, Warp& warp) {
  constexpr int kQuads = G::kBlocksM * G::kBlocksN * 2;
  constexpr int kUnderWay = 16;  // loads
  constexpr int kTogether = kQuads < kUnderWay ? kQuads : kUnderWay;
  constexpr int kSlicesTogether = kUnderWay / kTogether;
#pragma unroll
  for (int first = 0; first < kQuads; first += kTogether) {
    float4 sums[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) sums[i] = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 1
    for (int slice = 0; slice < G::kSplitK; slice += kSlicesTogether) {
      float4 parts[kSlicesTogether][kTogether];
#pragma unroll
      for (int s = 0; s < kSlicesTogether; ++s) {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (slice + s < G::kSplitK && first + i < kQuads) {
            parts[s][i] = load_shared_by_gpu(partials + ((slice + s) * kQuads + first + i) * G::kThreads);
          }
        }
      }
#pragma unroll
      for (int s = 0; s < kSlicesTogether; ++s) {
        if (slice + s >= G::kSplitK) break;
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          sums[i].x += parts[s][i].x;
          sums[i].y += parts[s][i].y;
          sums[i].z += parts[s][i].z;
          sums[i].w += parts[s][i].w;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (first + i < kQuads) set_quad(warp.acc[(first + i) / (G::kBlocksN * 2)][(first + i) % (G::kBlocksN * 2)], sums[i]);
    }
  }
}

// Leaves the warp's sums of a slice, and has those of all slices if the others have come before. Runs in all threads of a
// CTA whose stages are read; `last` is a word of shared memory that nothing is copied to any more.
template <class G, class Warp>
__device__ __forceinline__ bool gathers_slices(const SplitMmaParams& params, Warp& warp, uint32_t* last, int tile, int slice) {
  constexpr int kQuads = G::kBlocksM * G::kBlocksN * 2;
  float4* partials = params.partials + int64_t(tile) * G::kSplitK * kQuads * G::kThreads + threadIdx.x;
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad) {
    const auto& acc = warp.acc[quad / (G::kBlocksN * 2)][quad % (G::kBlocksN * 2)];
    store_shared_by_gpu(partials + (slice * kQuads + quad) * G::kThreads, quad_of(acc));
  }
  __syncthreads();  // all have written: the ticket releases it for all
  if (threadIdx.x == 0) {
    uint32_t* ticket = params.tickets + tile;
    *last = fetch_add_acq_rel(ticket, 1) + 1 == G::kSplitK;
    if (*last) store_relaxed(ticket, 0);  // nobody looks at it behind the last
  }
  __syncthreads();
  if (*last == 0) return false;
  add_slices<G>(partials, warp);
  return true;
}

}  // namespace cudal2
