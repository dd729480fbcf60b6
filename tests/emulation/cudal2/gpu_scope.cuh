// The accesses of kernels/include/cudal2/gpu_scope.cuh on a CPU, where CTAs run one after the other.
#pragma once

#include <cstdint>

struct float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace cudal2 {

inline uint32_t fetch_add_acq_rel(uint32_t* at, uint32_t value) {
  const uint32_t before = *at;
  *at += value;
  return before;
}
inline void store_relaxed(uint32_t* at, uint32_t value) { *at = value; }
inline float4 load_shared_by_gpu(const float4* at) { return *at; }
inline void store_shared_by_gpu(float4* at, float4 value) { *at = value; }

}  // namespace cudal2
