// Split-K without a cluster: slices of K leave fp32 sums in a workspace in global memory, and each adds its share of the
// tile once all have come. Sums are added in the order of the slices, so the result does not depend on timing.
//
// Nobody waits for ever, since nothing says that all slices run at once: a CTA that has waited long enough gives its share
// up, and the last slice to arrive, which never waits, adds what was given up. One ticket per tile says who is where.
#pragma once

#include "cudal2/epilogue.cuh"
#include "cudal2/l2.cuh"
#include "cudal2/params.cuh"
#include "cudal2/sync.cuh"

namespace cudal2 {

// GemmParams and the workspace: 512 bytes.
struct alignas(64) WorkspaceParams : GemmParams {
  float4* partials;   // [tile, slice, quad, consumer thread]; with stream-K [tile, part, CTA of the cluster, quad, thread]
  uint32_t* tickets;  // [tile], with stream-K [tile, CTA of the cluster, warp group]: zero before a launch, and after it
};

static_assert(sizeof(WorkspaceParams) == 512, "the launcher packs 512 bytes: change both together");

// A ticket: arrivals in bits 0-7, departures in 8-15, bit 16 + s once slice s has given its share up.
enum Ticket : uint32_t { kArrival = 1, kDeparture = 1 << 8, kGivenUp = 16 };
enum Wait : int { kPolls = 32 };  // some 20 us: slices that run at once are apart by less

__device__ __forceinline__ int arrivals(uint32_t ticket) { return ticket & 0xFF; }
__device__ __forceinline__ int departures(uint32_t ticket) { return ticket >> 8 & 0xFF; }

// Runs in one thread when its CTA, or warp group, has left its sums. The shares that these are to add, as bits.
__device__ __forceinline__ uint32_t claim_shares(uint32_t* ticket, int slice, int slices, int polls) {
  const uint32_t own = 1u << slice;
  const uint32_t before = fetch_add_acq_rel(ticket, kArrival);
  if (arrivals(before) + 1 == slices) return own | before >> kGivenUp;
#pragma unroll 1
  for (int poll = 0; poll < polls; ++poll) {
    if (arrivals(load_acquire(ticket)) == slices) return own;
  }
  // Whoever arrives last finds the bit, or has arrived before it was set and this CTA sees that.
  return arrivals(fetch_add_acq_rel(ticket, own << kGivenUp)) == slices ? own : 0;
}

// Four sums of rows `row` and `row` + 8, or with swapped operands of columns, in the places of acc[i].quad(nb).
template <class G>
__device__ __forceinline__ void store_quad(const GemmParams& params, int quad, float4 sum, int row, int col) {
  const int along_m = quad / (G::kWgmmaN / 8) * 64;  // of wgmma's M and N
  const int along_n = quad % (G::kWgmmaN / 8) * 8;
  const uint32_t low = pack_elements<G::kBf16>(sum.x, sum.y), high = pack_elements<G::kBf16>(sum.z, sum.w);
  if constexpr (G::kSwapAB) {
    store_pair(params, row + along_n, col + along_m, transpose_matrix(low));
    store_pair(params, row + along_n, col + along_m + 8, transpose_matrix(high));
  } else {
    store_pair(params, row + along_m, col + along_n, low);
    store_pair(params, row + along_m + 8, col + along_n, high);
  }
}

// Adds one share of a tile's quads over all slices and stores it; `partials` are this thread's of the tile.
template <class G>
__device__ __forceinline__ void add_share(const GemmParams& params, const float4* partials, int share, int row, int col) {
  constexpr int kShare = (G::kQuads + G::kSlices - 1) / G::kSlices;  // the last shares may have less, or nothing
  constexpr int kAtOnce = G::kSlices < 16 ? 16 / G::kSlices : 1;     // quads whose loads run beside each other
#pragma unroll
  for (int first = 0; first < kShare; first += kAtOnce) {
    float4 sums[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int quad = share * kShare + first + i;
      if (first + i >= kShare || quad >= G::kQuads) break;
      sums[i] = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
      for (int slice = 0; slice < G::kSlices; ++slice) {
        const float4 part = load_shared_by_gpu(partials + (slice * G::kQuads + quad) * G::kConsumerThreads);
        sums[i].x += part.x;
        sums[i].y += part.y;
        sums[i].z += part.z;
        sums[i].w += part.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int quad = share * kShare + first + i;
      if (first + i >= kShare || quad >= G::kQuads) break;
      store_quad<G>(params, quad, sums[i], row, col);
    }
  }
}

// Runs in all consumer threads of a slice; `claimed` is a word of shared memory, `tile` counts the tiles of single CTAs.
template <class G, class Acc>
__device__ __forceinline__ void reduce_through_workspace(const WorkspaceParams& params, const Acc (&acc)[G::kBlocks], uint32_t* claimed,
                                                         int tile, int slice, int row0, int col0) {
  float4* partials = params.partials + int64_t(tile) * G::kSlices * G::kQuads * G::kConsumerThreads + threadIdx.x;
#pragma unroll
  for (int i = 0; i < G::kBlocks; ++i) {
#pragma unroll
    for (int nb = 0; nb < G::kWgmmaN / 8; ++nb) {
      const int quad = i * (G::kWgmmaN / 8) + nb;
      store_shared_by_gpu(partials + (slice * G::kQuads + quad) * G::kConsumerThreads, acc[i].quad(nb));
    }
  }
  uint32_t* ticket = params.tickets + tile;
  barrier_sync(kConsumerBarrier, G::kConsumerThreads);  // all have written: the ticket releases it for all
  if (threadIdx.x == 0) *claimed = claim_shares(ticket, slice, G::kSlices, kPolls);
  barrier_sync(kConsumerBarrier, G::kConsumerThreads);
  const uint32_t shares = *claimed;
  uint32_t before = 0;
  if (threadIdx.x == 0) before = fetch_add_relaxed(ticket, kDeparture);  // its answer comes while sums are added
  const int row = row0 + (G::kSwapAB ? 0 : threadIdx.x % kWarpGroup / 32 * 16) + threadIdx.x % 32 / 4;
  const int col = col0 + (G::kSwapAB ? threadIdx.x % kWarpGroup / 32 * 16 : 0) + threadIdx.x % 4 * 2;
#pragma unroll 1
  for (int share = 0; share < G::kSlices; ++share) {
    if (shares >> share & 1) add_share<G>(params, partials, share, row, col);
  }
  // Nobody looks at the ticket behind the last to leave, who makes it ready for the next launch.
  if (threadIdx.x == 0 && departures(before) + 1 == G::kSlices) store_relaxed(ticket, 0);
}

}  // namespace cudal2
