// Plain loads of operands that TMA cannot read, past L1, which may hold what lay there in an earlier launch; the fence
// behind which TMA reads what threads have stored; and plain stores to rows that TMA cannot store.
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

// An address that is computed once, and not anew at every use.
__device__ __forceinline__ uint16_t* kept(uint16_t* at) {
  asm volatile("" : "+l"(at));
  return at;
}

// One, two, four or eight elements, at an address that is a multiple of their size; as one instruction, which the compiler
// else takes apart now and then.
__device__ __forceinline__ void store_piece(uint16_t* at, uint16_t value) {
  asm volatile("st.global.u16 [%0], %1;" ::"l"(at), "h"(value) : "memory");
}

__device__ __forceinline__ void store_piece(uint16_t* at, uint32_t value) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

__device__ __forceinline__ void store_piece(uint16_t* at, uint2 value) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(value.x), "r"(value.y) : "memory");
}

__device__ __forceinline__ void store_piece(uint16_t* at, uint4 value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w) : "memory");
}

__device__ __forceinline__ uint4 from_next_lane(uint4 value) {
  return make_uint4(__shfl_down_sync(0xffffffff, value.x, 1), __shfl_down_sync(0xffffffff, value.y, 1),
                    __shfl_down_sync(0xffffffff, value.z, 1), __shfl_down_sync(0xffffffff, value.w, 1));
}

// Orders what this thread has stored, or seen of others' stores, before what TMA reads and writes from here on.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async;" ::: "memory"); }

}  // namespace cudal2
