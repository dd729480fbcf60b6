// What a CTA of sm90_ws works on: its place in the cluster, its tiles, which K tiles of each.
#pragma once

#include <cute/arch/cluster_sm90.hpp>

#include "cudal2/params.cuh"
#include "cudal2/raster.cuh"

namespace cudal2 {

struct KRange {
  int begin;
  int end;

  __device__ __forceinline__ int count() const { return end - begin; }
};

// More parts of a tile than these take longer to add than they save.
constexpr int kMostParts = 8;

// Stream-K: the tiles of the last wave, and what a cluster has of them. As many clusters as there are tiles have the
// first part each, as many the next; those left over share out the last part, one tile's after another, which is shorter
// the more it takes of them. cudal2/space/sm90_ws/geometry.py counts parts in the same way.
struct Tail {
  int parts = 1;   // of each tile, along K
  int part = 0;    // the cluster's
  int first = 0;   // tile of its own
  int stride = 1;  // to the next one
  KRange k = {0, 0};

  Tail() = default;
  __device__ __forceinline__ Tail(int tiles, int k_tiles, int clusters, int cluster) {
    if (tiles == 0) return;
    const int each = clusters / tiles;
    parts = each < 2 ? 2 : each < kMostParts ? each : kMostParts;
    part = cluster / tiles < parts ? cluster / tiles : parts - 1;
    first = cluster - part * tiles;
    const int left = clusters - (parts - 1) * tiles;
    const bool last = part == parts - 1;
    stride = last ? left : tiles;
    const int rounds = (tiles + left - 1) / left;  // more than 1 only where there are two parts
    k.begin = k_tiles * rounds * part / (rounds * (parts - 1) + 1);
    k.end = last ? k_tiles : k_tiles * rounds * (part + 1) / (rounds * (parts - 1) + 1);
  }
};

// A tile that a CTA computes, and the K tiles of it that it adds up.
struct Item {
  int tile;  // cluster tile
  KRange k;
};

template <class G>
struct Work {
  const GemmParams& params;
  int rank;      // in the cluster
  int cta_m;     // tile of the cluster, along M
  int cta_n;     // and along N
  int slice;     // of K
  int first;     // first cluster tile
  int stride;    // to the next one: clusters in the grid
  int tiles;     // where they end; with stream-K, where the last wave begins
  KRange k;
  Tail tail;     // stream-K: the last wave, which clusters share out along K

  __device__ __forceinline__ explicit Work(const GemmParams& p) : params(p) {
    rank = G::kClusterSize > 1 ? int(cute::block_rank_in_cluster()) : 0;
    cta_m = rank % G::kClusterM;
    cta_n = rank / G::kClusterM % G::kClusterN;
    constexpr int kTileCtas = G::kClusterSize * G::kWorkspaceSplitK;
    slice = G::kWorkspace ? blockIdx.x / G::kClusterSize % G::kSlices : rank / G::kShareSize;
    first = blockIdx.x / kTileCtas;  // slices of a tile are neighbours in the grid: they run at once
    stride = gridDim.x / kTileCtas;
    tiles = p.tiles_m * p.tiles_n;
    if constexpr (G::kKeepsA) {  // neighbours instead, which run along N and have A in common
      const int64_t all = tiles;
      tiles = int(all * (first + 1) / stride);
      first = int(all * first / stride);
      stride = 1;
    }
    const int k_tiles = (p.k + G::kTileK - 1) / G::kTileK;
    k = G::kSlices == 1 ? KRange{0, k_tiles} : KRange{k_tiles * slice / G::kSlices, k_tiles * (slice + 1) / G::kSlices};
    if constexpr (G::kStreamK) {
      tail = Tail(tiles % stride, k_tiles, stride, first);
      tiles -= tiles % stride;
    }
  }
  // What comes in turn, from 0; the CTA has come to its end if that is no item.
  __device__ __forceinline__ Item item(int turn) const {
    const int tile = first + turn * stride;
    if constexpr (G::kStreamK) {
      if (tile >= tiles) return Item{tiles + tail.first + (turn - tiles / stride) * tail.stride, tail.k};
    }
    return Item{tile, k};
  }
  __device__ __forceinline__ bool is_item(Item item) const {
    return item.tile < (G::kStreamK ? params.tiles_m * params.tiles_n : tiles);
  }
  // Whether other clusters have the rest of its K tiles.
  __device__ __forceinline__ bool in_parts(Item item) const { return G::kStreamK && item.tile >= tiles; }

  // The CTA at (m, n) of the same K slice; slices share nothing until they reduce.
  __device__ __forceinline__ int peer(int m, int n) const {
    return (G::kWorkspace ? 0 : slice * G::kShareSize) + n * G::kClusterM + m;
  }
  __device__ __forceinline__ int row(TileCoord tile) const { return (tile.m * G::kClusterM + cta_m) * G::kTileM; }
  __device__ __forceinline__ int col(TileCoord tile) const { return (tile.n * G::kClusterN + cta_n) * G::kTileN; }
};

}  // namespace cudal2
