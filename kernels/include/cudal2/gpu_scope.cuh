// Accesses to memory that CTAs of one grid share, at GPU scope.
#pragma once

#include <cuda/std/cstdint>

namespace cudal2 {

// What this thread has seen, its CTA's writes behind a barrier included, is seen by whoever reads the new value.
__device__ __forceinline__ uint32_t fetch_add_acq_rel(uint32_t* at, uint32_t value) {
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(value) : "memory");
  return before;
}

__device__ __forceinline__ uint32_t fetch_add_relaxed(uint32_t* at, uint32_t value) {
  uint32_t before;
  asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(value) : "memory");
  return before;
}

__device__ __forceinline__ uint32_t load_acquire(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

__device__ __forceinline__ void store_relaxed(uint32_t* at, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

// Past L1, which may hold what lay there in an earlier launch.
__device__ __forceinline__ float4 load_shared_by_gpu(const float4* at) {
  float4 value;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(at));
  return value;
}

__device__ __forceinline__ void store_shared_by_gpu(float4* at, float4 value) {
  asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

}  // namespace cudal2
