// sm90_small: a warp group's part of a tile by wgmma, and a warp's by ldmatrix and mma.sync.
#pragma once

#include "cudal2/ampere.cuh"
#include "cudal2/small_geometry.cuh"

namespace cudal2 {

// A warp group's 64 rows and blocks of them.
template <class G>
struct WgmmaPart {
  static constexpr int kBlocks = G::Part::kBlocks;
  Accumulator<G::kPartColumns, G::kAccFp16, G::kBf16> acc[kBlocks];
  // Through a shuffle, so that descriptors are known to be the same in all lanes.
  int part = G::kReaders == 1 ? 0 : __shfl_sync(0xFFFFFFFF, threadIdx.x / kWarpGroup, 0);
  int part_m = part % G::kPartsM;
  int part_n = part / G::kPartsM;

  __device__ __forceinline__ int row() const {
    return part_m * G::kPartRows + threadIdx.x % kWarpGroup / 32 * 16 + threadIdx.x % 32 / 4;
  }
  __device__ __forceinline__ int col() const { return part_n * G::kPartColumns; }

  // Leaves the products of this K tile under way if the ring has a second stage, and none of those before.
  __device__ __forceinline__ void multiply(const SmallSmem<G>& smem, int stage, bool first) {
    const int part_b = part_n * (G::kKMajorB ? G::kPartColumns * 128 : G::kPartColumns / G::kBoxN * G::kTileK * G::kBoxNBytes);
    const uint64_t bits_b = G::kKMajorB ? descriptor_bits<128>(16, 1024)
                                        : descriptor_bits<G::kBoxNBytes>(G::kTileK * G::kBoxNBytes, 8 * G::kBoxNBytes);
    const uint64_t desc_a =
        descriptor_at(descriptor_bits<128>(16, 1024), cute::cast_smem_ptr_to_uint(smem.a(stage)) + part_m * G::kPartRows * 128);
    const uint64_t desc_b = descriptor_at(bits_b, cute::cast_smem_ptr_to_uint(smem.b(stage)) + part_b);
    fence_accumulators(acc);
    cute::warpgroup_arrive();
#pragma unroll
    for (int kk = 0; kk < G::kTileK / 16; ++kk) {
      const int at_a = kk / 4 * G::kTileM * 128 + kk % 4 * 32;
      const int at_b = G::kKMajorB ? kk / 4 * G::kTileN * 128 + kk % 4 * 32 : kk * 16 * G::kBoxNBytes;
      const gmma::ScaleOut scale = kk == 0 && first ? gmma::ScaleOut::Zero : gmma::ScaleOut::One;
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        wgmma<G::kKMajorB>(desc_a + ((at_a + i * 64 * 128) >> 4), desc_b + (at_b >> 4), acc[i], scale);
      }
    }
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<G::kLag>();
    fence_accumulators(acc);
  }
  __device__ __forceinline__ void finish() {
    cute::warpgroup_wait<0>();
    fence_accumulators(acc);
  }
  __device__ __forceinline__ float4 quad(int index) const {
    return acc[index / (G::kPartColumns / 8)].quad(index % (G::kPartColumns / 8));
  }
};

__device__ __forceinline__ float added(float a, float b) { return a + b; }
__device__ __forceinline__ uint32_t added(uint32_t a, uint32_t b) {  // pairs of fp16
  uint32_t sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}

// In a register from here on: what would be computed again in a loop that waits is not.
__device__ __forceinline__ uint32_t kept(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// A warp's 16 rows.
template <class G>
struct MmaPart {
  static constexpr int kBlocks = G::kPartColumns / 8;
  static constexpr bool kTwoSums = kBlocks <= 2;  // few products beside each other would wait for those before them
  struct Row {
    MmaAccumulator<G::kAccFp16, G::kBf16> block[kBlocks];

    __device__ __forceinline__ uint32_t word(int nb, int half) const { return block[nb].word(half); }
  };
  Row acc[1];
  Row odd;  // sums of every second step of 16, if there are two
  int part_m = threadIdx.x / 32 % G::kPartsM;
  int part_n = threadIdx.x / 32 / G::kPartsM;
  // Where the lane reads, from the start of A and of B in a stage, by step of K; N-major B by pair of blocks in a box.
  uint32_t at_a[4];
  uint32_t at_b[4];

  // The lane's row, and the 16-byte chunks of it that it reads: every second one, swizzled as TMA does it by rows of 8.
  __device__ __forceinline__ MmaPart() {
    const int lane = threadIdx.x % 32;
    const int row_a = part_m * 16 + lane % 16;
    const int row_b = G::kKMajorB ? col() + lane % 8 + lane / 16 * 8 : lane % 16;
    const int chunk_b = G::kKMajorB ? lane / 8 % 2 : lane / 16;
    const int parts_b = G::kKMajorB ? 0 : part_n * (G::kPartColumns / G::kBoxN) * G::kTileK * G::kBoxNBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      at_a[i] = kept(swizzled_offset<128>(row_a, i * 2 + lane / 16));
      at_b[i] = kept(parts_b + swizzled_offset<G::kBoxNBytes>(row_b, (i * 2 + chunk_b) % (G::kBoxN / 8)));
    }
  }
  __device__ __forceinline__ int row() const { return part_m * 16 + threadIdx.x % 32 / 4; }
  __device__ __forceinline__ int col() const { return part_n * G::kPartColumns; }

  __device__ __forceinline__ void multiply(const SmallSmem<G>& smem, int stage, bool) {
    const uint32_t a = shared_address(smem.a(stage));
    const uint32_t b = shared_address(smem.b(stage));
#pragma unroll
    for (int sub = 0; sub < G::kTileK / 64; ++sub) {
      uint32_t fragments_a[4][4];
      uint32_t fragments_b[4][kBlocks / 2][4];
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
        load_matrices<false>(fragments_a[kk], a + at_a[kk] + sub * G::kTileM * 128);
#pragma unroll
        for (int j = 0; j < kBlocks / 2; ++j) load_b(fragments_b[kk][j], b, sub, kk, j);
      }
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
        Row& sums = kTwoSums && kk % 2 ? odd : acc[0];
#pragma unroll
        for (int nb = 0; nb < kBlocks; ++nb) {
          const uint32_t(&pair)[4] = fragments_b[kk][nb / 2];
          sums.block[nb].multiply_add(fragments_a[kk], pair[nb % 2 * 2], pair[nb % 2 * 2 + 1]);
        }
      }
    }
  }
  // 16 (K) x 16 (N): both halves of K of the first 8 columns, then of the next.
  __device__ __forceinline__ void load_b(uint32_t (&fragment)[4], uint32_t b, int sub, int kk, int j) const {
    if constexpr (G::kKMajorB) {  // rows are columns of B
      load_matrices<false>(fragment, b + at_b[kk] + (sub * G::kTileN + j * 16) * 128);
    } else {  // rows are K: transposed on the way
      const int box = j * 16 / G::kBoxN;
      load_matrices<true>(fragment, b + at_b[j * 16 % G::kBoxN / 16] + (box * G::kTileK + sub * 64 + kk * 16) * G::kBoxNBytes);
    }
  }
  __device__ __forceinline__ void finish() {
    if constexpr (kTwoSums) {
#pragma unroll
      for (int nb = 0; nb < kBlocks; ++nb) {
#pragma unroll
        for (int r = 0; r < (G::kAccFp16 ? 2 : 4); ++r) acc[0].block[nb].d[r] = added(acc[0].block[nb].d[r], odd.block[nb].d[r]);
      }
    }
  }
  __device__ __forceinline__ float4 quad(int nb) const {
    const auto& d = acc[0].block[nb].d;
    if constexpr (G::kAccFp16) {
      const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&d[0]));
      const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&d[1]));
      return make_float4(low.x, low.y, high.x, high.y);
    } else {
      return make_float4(d[0], d[1], d[2], d[3]);
    }
  }
};

}  // namespace cudal2
