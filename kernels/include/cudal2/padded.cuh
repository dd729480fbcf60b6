// Operands whose rows TMA cannot read: before all else the grid copies them into rows that begin on lines of L2, with
// zeros behind, and the tensor maps are of the copies.
//
// Nobody waits for a CTA that has not begun: pieces are claimed by those that run, and who finds none left waits for them.
#pragma once

#include "cudal2/hopper.cuh"
#include "cudal2/l2.cuh"
#include "cudal2/unaligned.cuh"
#include "cudal2/workspace.cuh"

namespace cudal2 {

struct alignas(64) PaddedParams : WorkspaceParams {
  const uint16_t* a_ptr;  // as it came, rows of any length
  const uint16_t* b_ptr;
  uint4* a_copy;  // null: TMA reads the operand itself
  uint4* b_copy;
  uint32_t* counters;  // zero before a launch, and after it: pieces claimed, pieces copied, CTAs that have gone on
};

static_assert(sizeof(PaddedParams) == 512, "the launcher packs them behind the tickets, in what pads WorkspaceParams");

enum Counter : int { kClaimed, kCopied, kGoneOn };
enum Chunk : int { kChunk = 8, kLine = 64 };  // elements of 16 bytes, of a line of L2
constexpr int kChunksAtOnce = 4;              // that a thread has under way

// One operand and its copy, which is counted in chunks.
struct Copy {
  const uint16_t* from;
  uint4* to;
  uint32_t rows;
  uint32_t columns;

  __device__ __forceinline__ uint32_t row_chunks() const { return (columns + kLine - 1) / kLine * (kLine / kChunk); }
  __device__ __forceinline__ uint32_t chunks() const { return to != nullptr ? rows * row_chunks() : 0; }
  __device__ __forceinline__ const uint16_t* end() const { return from + int64_t(rows) * columns; }
};

// What goes into one chunk: elements of a row, or none behind its end.
struct Part {
  const uint16_t* at;
  int left;   // to the end of the row
  int count;  // of them in the chunk

  __device__ __forceinline__ Part(const Copy& copy, uint32_t chunk) {
    const uint32_t row = chunk / copy.row_chunks();
    const uint32_t column = (chunk - row * copy.row_chunks()) * kChunk;
    at = copy.from + int64_t(row) * copy.columns + column;
    left = int(copy.columns) - int(column);
    count = left < 0 ? 0 : left < kChunk ? left : kChunk;
  }
  // Bytes into an aligned vector; operands begin on one.
  __device__ __forceinline__ uint32_t shift() const { return uint32_t(reinterpret_cast<uint64_t>(at)) % 16; }
  __device__ __forceinline__ const uint4* vector() const { return reinterpret_cast<const uint4*>(reinterpret_cast<uint64_t>(at) - shift()); }
  __device__ __forceinline__ bool reaches_next() const { return shift() + 2 * count > 16; }
};

__device__ __forceinline__ bool within(const uint4* vector, const uint16_t* end) {
  return reinterpret_cast<const uint16_t*>(vector + 1) <= end;
}

// 16 bytes of the 32 in `low` and `high`, from an even byte on.
__device__ __forceinline__ uint4 shifted(uint4 low, uint4 high, uint32_t shift) {
  uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) w[i] = shift & 8 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = shift & 4 ? w[i + 1] : w[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = shift & 2 ? w[i] >> 16 | w[i + 1] << 16 : w[i];
  return make_uint4(w[0], w[1], w[2], w[3]);
}

// Its first `count` elements, and zeros.
__device__ __forceinline__ uint4 first_of(uint4 chunk, int count) {
  uint32_t w[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = 2 * i + 2 <= count ? w[i] : 2 * i + 1 == count ? w[i] & 0xFFFF : 0;
  return make_uint4(w[0], w[1], w[2], w[3]);
}

// Element by element: at the end of an operand, behind which nothing may be read.
__device__ __forceinline__ uint4 gathered(const Part& part) {
  uint32_t w[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (i < part.count) w[i / 2] |= uint32_t(load_element(part.at + i)) << i % 2 * 16;
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}

// Runs in whole warps: a lane's second vector is the first of the next lane, unless that is none or has another row's.
template <int kThreads>
__device__ __forceinline__ void copy_chunks(const Copy& copy, uint32_t first) {
  const uint32_t all = copy.chunks();
  const bool last_lane = threadIdx.x % 32 == 31;
  const uint4 zeros = make_uint4(0, 0, 0, 0);
  uint4 low[kChunksAtOnce];
  uint4 high[kChunksAtOnce];
#pragma unroll
  for (int i = 0; i < kChunksAtOnce; ++i) {
    const uint32_t chunk = first + i * kThreads + threadIdx.x;
    const Part part(copy, chunk);
    const bool wanted = chunk < all && part.count > 0;
    const bool alone = wanted && part.reaches_next() && (last_lane || part.left <= kChunk);
    low[i] = wanted && within(part.vector(), copy.end()) ? load_vector(part.vector()) : zeros;
    high[i] = alone && within(part.vector() + 1, copy.end()) ? load_vector(part.vector() + 1) : zeros;
  }
#pragma unroll
  for (int i = 0; i < kChunksAtOnce; ++i) {
    const uint32_t chunk = first + i * kThreads + threadIdx.x;
    const Part part(copy, chunk);
    const uint4 next = from_next_lane(low[i]);
    if (chunk >= all) continue;
    const bool cut = part.count > 0 && !within(part.vector() + part.reaches_next(), copy.end());
    const uint4 second = last_lane || part.left <= kChunk ? high[i] : next;
    copy.to[chunk] = cut ? gathered(part) : first_of(shifted(low[i], second, part.shift()), part.count);
  }
}

// Kernels whose operands TMA reads as they are.
template <class Config>
__device__ __forceinline__ void copy_operands(const GemmParams&) {}

// Runs in all threads of a CTA before anything is in shared memory, of whose first words it makes use.
template <class Config>
__device__ __forceinline__ void copy_operands(const PaddedParams& params) {
  constexpr uint32_t kPieceChunks = kChunksAtOnce * Config::kThreads;
  extern __shared__ uint8_t smem_raw[];
  uint32_t* claimed = reinterpret_cast<uint32_t*>(smem_raw);  // by turns
  const Copy a = {params.a_ptr, params.a_copy, uint32_t(params.m), uint32_t(params.k)};
  const Copy b = {params.b_ptr, params.b_copy, uint32_t(Config::kKMajorB ? params.n : params.k), uint32_t(Config::kKMajorB ? params.k : params.n)};
  const uint32_t pieces_a = (a.chunks() + kPieceChunks - 1) / kPieceChunks;
  const uint32_t pieces = pieces_a + (b.chunks() + kPieceChunks - 1) / kPieceChunks;
  wait_for_previous_grid();  // it may write the operands, and read the copies

  if (threadIdx.x == 0) claimed[0] = fetch_add_relaxed(params.counters + kClaimed, 1);
  __syncthreads();
  uint32_t copied = 0;
  for (uint32_t piece = claimed[0]; piece < pieces; piece = claimed[copied % 2]) {
    ++copied;
    if (threadIdx.x == 0) claimed[copied % 2] = fetch_add_relaxed(params.counters + kClaimed, 1);
    const bool of_a = piece < pieces_a;
    const Copy copy = {of_a ? a.from : b.from, of_a ? a.to : b.to, of_a ? a.rows : b.rows, of_a ? a.columns : b.columns};
    copy_chunks<Config::kThreads>(copy, (of_a ? piece : piece - pieces_a) * kPieceChunks);
    __syncthreads();
  }
  fence_async_proxy();
  __syncthreads();
  if (threadIdx.x == 0) {
    if (copied > 0) fetch_add_acq_rel(params.counters + kCopied, copied);
    while (load_acquire(params.counters + kCopied) != pieces) {
    }
    if (fetch_add_acq_rel(params.counters + kGoneOn, 1) + 1 == gridDim.x) {
#pragma unroll
      for (int counter = kClaimed; counter <= kGoneOn; ++counter) store_relaxed(params.counters + counter, 0);
    }
  }
  __syncthreads();
  fence_async_proxy();  // what others stored is for TMA to read, and TMA writes where the claims were
}

}  // namespace cudal2
