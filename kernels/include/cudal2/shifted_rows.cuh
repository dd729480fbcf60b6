// Direct stores to rows of C that begin inside a 16-byte chunk of memory: a quad of lanes has 32 columns of a row at a time
// and moves their words, so that all but the two ends of the row's share of the tile are stored as whole chunks.
//
// With `phase` elements of its first chunk before it, a row's elements move on by so many places. By whole words they do in
// the transpose: the lanes number themselves from another one, a lane's words having the same place in all chunks, and those
// that pass a chunk's end belong to the next, of the step after. One more shuffle moves odd rows on by half a word.
#pragma once

#include "cudal2/epilogue.cuh"
#include "cudal2/unaligned.cuh"

namespace cudal2 {

// What a lane knows of its quad's row.
struct ShiftedRow {
  uint16_t* begin;  // of its elements in this tile
  int columns;      // of C from there on, none in a row below C
  int phase;        // elements of the first chunk before `begin`
  int place;        // of this lane's words in chunks before an odd row moves on, and of its chunk among the step's four

  __device__ __forceinline__ ShiftedRow(const GemmParams& params, int row, int col0)
      : begin(static_cast<uint16_t*>(params.c_ptr) + int64_t(row) * params.ldc + col0),
        columns(row < params.m ? params.n - col0 : 0),
        phase(int(reinterpret_cast<uintptr_t>(begin) / kElementBytes % 8)),
        place(int((threadIdx.x + phase / 2) % 4)) {}

  __device__ __forceinline__ bool passes_end() const { return int(threadIdx.x % 4) + phase / 2 >= 4; }
};

// As transpose_quad does, for lanes that number themselves from any of the four on.
__device__ __forceinline__ void transpose_ring(uint32_t (&w)[4], int place) {
  const bool odd = place & 1;
  const bool high = place & 2;
  const int beside = threadIdx.x + (odd ? 3 : 1);
#pragma unroll
  for (int j = 0; j < 4; j += 2) {
    const uint32_t got = __shfl_sync(0xFFFFFFFF, odd ? w[j] : w[j + 1], beside, 4);
    w[j] = odd ? got : w[j];
    w[j + 1] = odd ? w[j + 1] : got;
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint32_t got = __shfl_xor_sync(0xFFFFFFFF, high ? w[j] : w[j + 2], 2);
    w[j] = high ? got : w[j];
    w[j + 2] = high ? w[j + 2] : got;
  }
}

// Words of a lane's chunk move on by `bits`, 0 or 16, behind the last word of the chunk before. `last`: that of this lane's
// chunk of the step before, which is the one before the first of this step.
__device__ __forceinline__ void move_on(uint32_t (&w)[4], int place, int bits, uint32_t& last) {
  const uint32_t before = __shfl_sync(0xFFFFFFFF, place == 3 ? last : w[3], threadIdx.x + 3, 4);
  last = w[3];
#pragma unroll
  for (int j = 3; j > 0; --j) w[j] = __funnelshift_l(w[j - 1], w[j], bits);
  w[0] = __funnelshift_l(before, w[0], bits);
}

// The first `count` elements of a chunk that the last column of C ends, one to seven.
__device__ __forceinline__ void store_first(uint16_t* at, const uint32_t (&w)[4], int count) {
  const bool four = count & 4;
  const bool two = count & 2;
  if (four) store_piece(at, make_uint2(w[0], w[1]));
  const uint32_t pair = four ? w[2] : w[0];
  const uint32_t next = four ? w[3] : w[1];
  if (two) store_piece(at + (count & 4), pair);
  if (count & 1) store_piece(at + (count & 6), uint16_t(two ? next : pair));
}

// A row's share of the tile begins and ends inside a chunk: of its first block as many elements as there is room for in the
// first chunk, and of its last block the others, make eight, two for each lane. A row that begins with a chunk has no such.
template <class G>
__device__ __forceinline__ void store_ends(const ShiftedRow& to, uint32_t first, uint32_t last) {
  const int room = 8 - to.phase;
  const int element = threadIdx.x % 4 * 2;
  const int at0 = element < room ? element : G::kTileN - 8 + element;
  const int at1 = element + 1 < room ? element + 1 : G::kTileN - 8 + element + 1;
  const bool shares = to.phase != 0;
  if (shares && to.phase % 2 == 0 && at1 < to.columns) {
    store_piece(to.begin + at0, element < room ? first : last);
  } else {
    if (shares && at0 < to.columns) store_piece(to.begin + at0, uint16_t(element < room ? first : last));
    if (shares && at1 < to.columns) store_piece(to.begin + at1, uint16_t((element + 1 < room ? first : last) >> 16));
  }
}

// The words of one of a thread's rows in a block of accumulators: `half` as in Accumulator::word.
template <class G, class Acc>
__device__ __forceinline__ void store_shifted_row(const ShiftedRow& to, const Acc& acc, int half) {
  constexpr int kWide = G::kTileN / 8;
  store_ends<G>(to, acc.word(0, half), acc.word(kWide - 1, half));
  const int skipped = to.place * 8 - to.phase;  // columns before this lane's first chunk
  uint16_t* at = kept(to.begin + skipped);
  const int columns = to.columns > 0 ? to.columns - skipped : 0;
  const bool passes_end = to.passes_end();
  uint32_t behind = 0;  // this lane's word of the block before
  uint32_t last = 0;
#pragma unroll
  for (int nb = 0; nb < kWide; nb += 4) {
    uint32_t w[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t word = nb + j < kWide ? acc.word(nb + j, half) : 0;
      w[j] = passes_end ? behind : word;
      behind = word;
    }
    transpose_ring(w, to.place);
    move_on(w, to.place, to.phase % 2 * 16, last);
    const bool alone = (nb > 0 || skipped >= 0) && (nb + 4 <= kWide || nb + to.place < kWide);  // all of this tile
    const int left = columns - nb * 8;
    if (alone && left >= 8) {
      store_piece(at + nb * 8, make_uint4(w[0], w[1], w[2], w[3]));
    } else if (alone && left > 0) {
      store_first(at + nb * 8, w, left);
    }
  }
}

// In place of store_direct, where rows of C do not begin on chunks.
template <class G, class Acc>
__device__ __forceinline__ void store_shifted(const GemmParams& params, const Acc (&acc)[G::kBlocks], int row0, int col0) {
  const int row = row0 + threadIdx.x % kWarpGroup / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < G::kBlocks; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      store_shifted_row<G>(ShiftedRow(params, row + i * 64 + half * 8, col0), acc[i], half);
    }
  }
}

}  // namespace cudal2
