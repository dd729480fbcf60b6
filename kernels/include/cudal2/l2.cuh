// What is said to L2: accesses to memory that CTAs of one grid share, and a store that nobody reads again.
#pragma once

#include <cuda/std/cstdint>
#include <cute/arch/util.hpp>

#include "cudal2/gpu_scope.cuh"

namespace cudal2 {

// A TMA store whose lines L2 gives up first, so that they push no operands out.
__device__ __forceinline__ void store_tensor_evict_first(const void* map, const void* from, int x, int y) {
  constexpr uint64_t kEvictFirst = 0x12F0000000000000;  // as createpolicy.fractional encodes it
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%1, %2}], [%3], %4;" ::"l"(map), "r"(x),
               "r"(y), "r"(cute::cast_smem_ptr_to_uint(from)), "l"(kEvictFirst)
               : "memory");
}

}  // namespace cudal2
