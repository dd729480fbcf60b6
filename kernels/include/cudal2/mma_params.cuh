// The ABI of kernels that load by address: one struct by value, 64 bytes.
#pragma once

#include <cuda/std/cstdint>

namespace cudal2 {

struct alignas(16) MmaParams {
  const void* a_ptr;   // [m, k] row-major
  const void* b_ptr;   // tn: [n, k] K-major; nn: [k, n] row-major
  void* c_ptr;         // [m, n] row-major
  int32_t m, n, k;
  int32_t ldc;         // elements between rows of C
  int32_t tiles_m;
  int32_t tiles_n;
  int32_t raster_n;    // 1: consecutive tiles run along N inside a raster group, 0: along M
  int32_t group;       // tiles per raster group
};

static_assert(sizeof(MmaParams) == 64, "the launcher packs 64 bytes: change both together");

}  // namespace cudal2
