// sm90_small: slices of K send each other their partial sums and add them in order.
#pragma once

#include "cudal2/small_geometry.cuh"

namespace cudal2 {

__device__ __forceinline__ uint32_t address_at_rank(uint32_t address, int rank) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

// 16 bytes to shared memory of a CTA of the cluster, counted by a barrier beside them.
__device__ __forceinline__ void send_quad(uint32_t to, uint32_t barrier, float4 quad) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "f"(quad.x),
               "f"(quad.y), "f"(quad.z), "f"(quad.w), "r"(barrier)
               : "memory");
}

// Until all that the cluster's CTAs send has come.
__device__ __forceinline__ void wait_for_sent(uint32_t barrier) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n .reg .pred p;\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier)
        : "memory");
  }
}

// Every quad goes to the slice that adds it, into this slice's own place there: a slot of kShare quads of all threads.
template <class G, class Part>
__device__ __forceinline__ void send_partials(const SmallSmem<G>& smem, const Part& part) {
  const uint32_t slot = shared_address(smem.received() + blockIdx.x * G::kShare * G::kThreads + threadIdx.x);
  const uint32_t barrier = shared_address(smem.all_received());
#pragma unroll
  for (int quad = 0; quad < G::kQuads; ++quad) {
    const int owner = quad / G::kShare;
    send_quad(address_at_rank(slot, owner) + quad % G::kShare * G::kThreads * 16, address_at_rank(barrier, owner), part.quad(quad));
  }
}

template <class G>
__device__ __forceinline__ float4 add_slots(const float4* quads) {
  float4 sum = quads[0];
#pragma unroll
  for (int slot = 1; slot < G::kSplitK; ++slot) {
    const float4 more = quads[slot * G::kShare * G::kThreads];
    sum.x += more.x;
    sum.y += more.y;
    sum.z += more.z;
    sum.w += more.w;
  }
  return sum;
}

// Adds this slice's share in the order of the slices, whenever they came: the result does not depend on timing.
template <class G>
__device__ __forceinline__ void store_sums(const SmallWork<G>& work, const SmallSmem<G>& smem, int row, int col) {
  constexpr int kBlocksN = G::kPartColumns / 8;
  constexpr bool kPairs = G::kShare % 2 == 0 && kBlocksN % 2 == 0;
  wait_for_sent(shared_address(smem.all_received()));
#pragma unroll
  for (int s = 0; s < G::kShare; s += kPairs ? 2 : 1) {
    const int quad = blockIdx.x * G::kShare + s;
    if (G::kQuads % G::kShare != 0 || G::kQuads / G::kShare < G::kSplitK) {
      if (quad >= G::kQuads) break;  // the last slices may have less, or nothing
    }
    const int r = row + quad / kBlocksN * 64;
    const int c = col + quad % kBlocksN * 8;
    const float4* from = smem.received() + s * G::kThreads + threadIdx.x;
    const float4 sum = add_slots<G>(from);
    const uint32_t low = pack_elements<G::kBf16>(sum.x, sum.y);
    const uint32_t high = pack_elements<G::kBf16>(sum.z, sum.w);
    if constexpr (kPairs) {
      const float4 next = add_slots<G>(from + G::kThreads);
      const uint32_t next_low = pack_elements<G::kBf16>(next.x, next.y);
      const uint32_t next_high = pack_elements<G::kBf16>(next.z, next.w);
      if (work.params.ldc % 8 == 0) {
        store_block_pair(work.params, r, c, low, high, next_low, next_high);
        continue;
      }
      store_pair(work.params, r, c + 8 + threadIdx.x % 4 * 2, next_low);
      store_pair(work.params, r + 8, c + 8 + threadIdx.x % 4 * 2, next_high);
    }
    store_pair(work.params, r, c + threadIdx.x % 4 * 2, low);
    store_pair(work.params, r + 8, c + threadIdx.x % 4 * 2, high);
  }
}

}  // namespace cudal2
