// Barriers and grid dependencies that CuTe's headers lack or mark .aligned.
#pragma once

#include <cute/arch/cluster_sm90.hpp>
#include <cutlass/arch/barrier.h>

namespace cudal2 {

using FullBarrier = cutlass::arch::ClusterTransactionBarrier;
using EmptyBarrier = cutlass::arch::ClusterBarrier;

// Hardware barrier ids; 0 is __syncthreads.
enum BarrierId : int { kWarpGroupBarrier = 1, kTurnBarrier = 4, kConsumerBarrier = 6 };

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
