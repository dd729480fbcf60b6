// Pairs of fp16 on a CPU: what kernels/include/cudal2/mma_split.cuh takes from CUDA's header of this name.
#pragma once

#include <cstdint>

#include "cudal2/element.cuh"

struct __half2 {
  uint32_t word;
};
struct float2 {
  float x, y;
};
inline float2 __half22float2(__half2 pair) { return {emulation::low<false>(pair.word), emulation::high<false>(pair.word)}; }
