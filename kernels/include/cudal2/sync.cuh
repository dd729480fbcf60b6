// Barriers and grid dependencies that CuTe's headers lack or mark .aligned.
#pragma once

#include <cute/arch/cluster_sm90.hpp>
#include <cutlass/arch/barrier.h>

namespace cudal2 {

using FullBarrier = cutlass::arch::ClusterTransactionBarrier;
using EmptyBarrier = cutlass::arch::ClusterBarrier;

// Hardware barrier ids; 0 is __syncthreads.
enum BarrierId : int { kWarpGroupBarrier = 1, kTurnBarrier = 4, kConsumerBarrier = 6 };

__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Not .aligned: lanes of a warp may reach them apart.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;\n barrier.cluster.wait.acquire;" ::: "memory");
}
// Its first half without the release, a fence of all memory that costs hundreds of cycles: enough where nothing but
// barriers must have been made, which fence.mbarrier_init has seen to.
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Programmatic dependent launch; both are no-ops in a launch without the attribute.
__device__ __forceinline__ void wait_for_previous_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void allow_next_grid() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Position in the ring of stages. A producer waits on phase ^ 1 of `empty`, a consumer on phase of `full`.
template <int kStages>
struct StageCursor {
  uint32_t stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void step() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }

  __device__ __forceinline__ void skip(uint32_t count) {
    const uint32_t next = stage + count;
    phase ^= (next / kStages) & 1;
    stage = next % kStages;
  }
};

}  // namespace cudal2
