// The kernel ABI: one struct by value, 448 bytes, the same for every family that loads through TMA.
#pragma once

#include <cuda/std/cstdint>

namespace cudal2 {

// Opaque CUtensorMap; encoded on the host by the driver.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

struct alignas(64) GemmParams {
  TensorMap a;         // [m, k] row-major
  TensorMap b;         // tn: [n, k] K-major; nn: [k, n] row-major
  TensorMap c;         // [m, n] row-major
  void* c_ptr;         // for the direct epilogue
  int32_t m, n, k;
  int32_t ldc;         // elements between rows of C
  int32_t tiles_m;     // cluster tiles along M
  int32_t tiles_n;     // cluster tiles along N
  int32_t raster_n;    // 1: consecutive tiles run along N inside a raster group, 0: along M
  int32_t group;       // tiles per raster group
  int32_t prefetch;    // K tiles of a CTA's first tile to fetch into L2 while the previous grid still runs
  uint64_t hint_a;     // L2 cache policies of the loads
  uint64_t hint_b;
};

static_assert(sizeof(GemmParams) == 448, "the launcher packs 448 bytes: change both together");

}  // namespace cudal2
