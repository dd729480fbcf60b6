// Elements of A, B and C: two bytes, fp16 or bf16. Only products and this rounding tell the two apart.
#pragma once

#include <cuda/std/cstdint>

namespace cudal2 {

// Two elements as they lie in a row of C, each rounded to nearest, ties to even.
template <bool kBf16>
__device__ __forceinline__ uint32_t pack_elements(float low, float high) {
  uint32_t word;
  if constexpr (kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

}  // namespace cudal2
