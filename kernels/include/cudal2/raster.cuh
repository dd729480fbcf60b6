// Tile order: which cluster tile the linear index t computes.
#pragma once

#include "cudal2/params.cuh"

namespace cudal2 {

struct TileCoord {
  int m;  // cluster tile along M
  int n;  // cluster tile along N
};

// Groups of `group` tiles along the raster axis; inside a group that axis runs fastest, so that a wave of CTAs
// touches a compact block of A and B and finds it in L2.
__device__ __forceinline__ TileCoord tile_at(const GemmParams& params, int t) {
  const int fast_tiles = params.raster_n ? params.tiles_n : params.tiles_m;
  const int slow_tiles = params.raster_n ? params.tiles_m : params.tiles_n;
  const int group_tiles = params.group * slow_tiles;
  const int first = t / group_tiles * params.group;
  const int rest = t % group_tiles;
  const int width = min(params.group, fast_tiles - first);
  const int fast = first + rest % width;
  const int slow = rest / width;
  return params.raster_n ? TileCoord{slow, fast} : TileCoord{fast, slow};
}

}  // namespace cudal2
