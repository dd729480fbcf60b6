// Plain loads of operands that TMA cannot read, past L1, which may hold what lay there in an earlier launch; and the fence
// behind which TMA reads what threads have stored.
#pragma once

#include <cuda/std/cstdint>

namespace cudal2 {

__device__ __forceinline__ uint4 load_vector(const uint4* at) {
  uint4 value;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "l"(at));
  return value;
}

__device__ __forceinline__ uint16_t load_element(const uint16_t* at) {
  uint16_t value;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(value) : "l"(at));
  return value;
}

__device__ __forceinline__ uint4 from_next_lane(uint4 value) {
  return make_uint4(__shfl_down_sync(0xffffffff, value.x, 1), __shfl_down_sync(0xffffffff, value.y, 1),
                    __shfl_down_sync(0xffffffff, value.z, 1), __shfl_down_sync(0xffffffff, value.w, 1));
}

// Orders what this thread has stored, or seen of others' stores, before what TMA reads and writes from here on.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async;" ::: "memory"); }

}  // namespace cudal2
