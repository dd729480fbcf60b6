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
  const uint16_t* a_ptr;  // as it came: rows of any length, the first on 16 bytes
  const uint16_t* b_ptr;
  uint4* a_copy;  // null: TMA reads the operand itself
  uint4* b_copy;
  uint32_t* counters;  // zero before the first launch
};

static_assert(sizeof(PaddedParams) == 512, "the launcher packs them behind the tickets, in what pads WorkspaceParams");

// Pieces claimed; which of two counts is this launch's, the other being zero then; pieces copied, by launches in turn.
enum Counter : int { kClaimed, kTurn, kCopied };
enum Chunk : uint32_t { kChunk = 8, kLine = 64 };  // elements of 16 bytes, of a line of L2
constexpr int kChunksAtOnce = 8;                   // that a thread has under way

// One operand and its copy, counted in chunks; no count exceeds 32 bits (cudal2/space/sm90_ws/padding.py).
struct Copy {
  const uint16_t* from;
  uint4* to;
  uint32_t columns;
  uint32_t row_chunks;  // of the copy
  uint32_t chunks;      // of the copy
  uint32_t vectors;     // of the operand: whole chunks, however rows lie in them

  Copy() = default;
  __device__ __forceinline__ Copy(const uint16_t* operand, uint4* copy, uint32_t rows, uint32_t columns)
      : from(operand),
        to(copy),
        columns(columns),
        row_chunks((columns + kLine - 1) / kLine * (kLine / kChunk)),
        chunks(copy != nullptr ? rows * row_chunks : 0),
        vectors(rows * columns / kChunk) {}

  __device__ __forceinline__ uint4 vector(uint32_t at) const { return load_vector(reinterpret_cast<const uint4*>(from) + at); }
};

// Eight of the 16 elements in `low` and `high`, from one of the first eight on.
__device__ __forceinline__ uint4 shifted(uint4 low, uint4 high, uint32_t by) {
  uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) w[i] = by & 4 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = by & 2 ? w[i + 1] : w[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = by & 1 ? w[i] >> 16 | w[i + 1] << 16 : w[i];
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
__device__ __forceinline__ uint4 gathered(const uint16_t* at, int count) {
  uint32_t w[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < int(kChunk); ++i) {
    if (i < count) w[i / 2] |= uint32_t(load_element(at + i)) << i % 2 * 16;
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}

// Runs in whole warps: a lane's second vector is the first of the next lane, unless that is none or has another row's.
template <int kThreads>
__device__ __forceinline__ void copy_chunks(const Copy& copy, uint32_t first) {
  const bool last_lane = threadIdx.x % 32 == 31;
  const uint4 zeros = make_uint4(0, 0, 0, 0);
  uint4 low[kChunksAtOnce];
  uint4 high[kChunksAtOnce];
  uint32_t begin[kChunksAtOnce];  // elements of the operand before the chunk's
  int left[kChunksAtOnce];        // and from there to the end of the row
  uint32_t chunk = first + threadIdx.x;
  uint32_t row = chunk / copy.row_chunks;
  uint32_t at = chunk - row * copy.row_chunks;
  const uint32_t rows_on = kThreads / copy.row_chunks;
  const uint32_t chunks_on = kThreads - rows_on * copy.row_chunks;
#pragma unroll
  for (int i = 0; i < kChunksAtOnce; ++i) {
    begin[i] = row * copy.columns + at * kChunk;
    left[i] = chunk < copy.chunks ? int(copy.columns) - int(at * kChunk) : 0;
    const uint32_t vector = begin[i] / kChunk;
    const bool alone = (last_lane || left[i] <= int(kChunk)) && begin[i] % kChunk != 0;
    low[i] = left[i] > 0 && vector < copy.vectors ? copy.vector(vector) : zeros;
    high[i] = left[i] > 0 && alone && vector + 1 < copy.vectors ? copy.vector(vector + 1) : zeros;
    chunk += kThreads;
    row += rows_on;
    at += chunks_on;
    if (at >= copy.row_chunks) {
      at -= copy.row_chunks;
      ++row;
    }
  }
  chunk = first + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kChunksAtOnce; ++i, chunk += kThreads) {
    const uint4 next = from_next_lane(low[i]);
    if (chunk >= copy.chunks) continue;
    uint4 whole = shifted(low[i], last_lane || left[i] <= int(kChunk) ? high[i] : next, begin[i] % kChunk);
    const int count = left[i] < 0 ? 0 : left[i] < int(kChunk) ? left[i] : int(kChunk);
    if (count > 0 && (begin[i] + count - 1) / kChunk >= copy.vectors) whole = gathered(copy.from + begin[i], count);
    copy.to[chunk] = count < int(kChunk) ? first_of(whole, count) : whole;
  }
}

// Waits until all pieces are copied; who makes the last claim of a launch has the counters ready for the next.
__device__ __forceinline__ void wait_for_copies(uint32_t* counters, uint32_t turn, uint32_t claim, uint32_t copied, uint32_t pieces) {
  uint32_t* count = counters + kCopied + turn;
  if (claim + 1 == pieces + gridDim.x) {
    store_relaxed(counters + kClaimed, 0);
    store_relaxed(counters + kTurn, turn ^ 1);
    store_relaxed(counters + kCopied + (turn ^ 1), 0);
  }
  uint32_t seen = copied > 0 ? fetch_add_acq_rel(count, copied) + copied : load_acquire(count);
  while (seen != pieces) seen = load_acquire(count);
}

// Kernels whose operands TMA reads as they are.
template <class Config>
__device__ __forceinline__ void copy_operands(const GemmParams&) {}

// Runs in all threads of a CTA before anything is in shared memory, of whose first words it makes use.
template <class Config>
__device__ __forceinline__ void copy_operands(const PaddedParams& params) {
  constexpr uint32_t kPieceChunks = kChunksAtOnce * Config::kThreads;
  extern __shared__ uint8_t smem_raw[];
  uint32_t* claims = reinterpret_cast<uint32_t*>(smem_raw);  // by turns
  const Copy a(params.a_ptr, params.a_copy, params.m, params.k);
  const Copy b(params.b_ptr, params.b_copy, Config::kKMajorB ? params.n : params.k, Config::kKMajorB ? params.k : params.n);
  const uint32_t pieces_a = (a.chunks + kPieceChunks - 1) / kPieceChunks;
  const uint32_t pieces = pieces_a + (b.chunks + kPieceChunks - 1) / kPieceChunks;
  wait_for_previous_grid();  // it may write the operands, and read the copies

  uint32_t turn = 0;
  if (threadIdx.x == 0) {
    turn = load_acquire(params.counters + kTurn);  // before a claim of this CTA, and so before the last of all
    claims[0] = fetch_add_relaxed(params.counters + kClaimed, 1);
  }
  __syncthreads();
  uint32_t copied = 0;
  uint32_t piece = claims[0];
  while (piece < pieces) {
    ++copied;
    if (threadIdx.x == 0) claims[copied % 2] = fetch_add_relaxed(params.counters + kClaimed, 1);
    const bool of_a = piece < pieces_a;
    Copy copy;
    copy.from = of_a ? a.from : b.from;
    copy.to = of_a ? a.to : b.to;
    copy.columns = of_a ? a.columns : b.columns;
    copy.row_chunks = of_a ? a.row_chunks : b.row_chunks;
    copy.chunks = of_a ? a.chunks : b.chunks;
    copy.vectors = of_a ? a.vectors : b.vectors;
    copy_chunks<Config::kThreads>(copy, (of_a ? piece : piece - pieces_a) * kPieceChunks);
    __syncthreads();
    piece = claims[copied % 2];
  }
  fence_async_proxy();
  __syncthreads();
  if (threadIdx.x == 0) wait_for_copies(params.counters, turn, piece, copied, pieces);
  __syncthreads();
  fence_async_proxy();  // what others stored is for TMA to read, and TMA writes where the claims were
}

}  // namespace cudal2
