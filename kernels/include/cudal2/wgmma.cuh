// The tensor-core side: instruction by tile width, shared-memory descriptors, accumulator registers.
#pragma once

#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/arch/mma_sm90_gmma_ext.hpp>
#include <cute/numeric/integer_sequence.hpp>
#include <cuda_fp16.h>

#include "cudal2/element.cuh"

namespace cudal2 {

namespace gmma = cute::SM90::GMMA;

template <int kN, bool kAccFp16, bool kBf16, gmma::Major kMajorA, gmma::Major kMajorB>
struct WgmmaAtom;

#define CUDAL2_WGMMA(N)                                                                              \
  template <gmma::Major kMajorA, gmma::Major kMajorB>                                                \
  struct WgmmaAtom<N, false, false, kMajorA, kMajorB> {                                              \
    using Type = gmma::MMA_64x##N##x16_F32F16F16_SS<kMajorA, kMajorB>;                               \
  };                                                                                                 \
  template <gmma::Major kMajorA, gmma::Major kMajorB>                                                \
  struct WgmmaAtom<N, false, true, kMajorA, kMajorB> {                                               \
    using Type = gmma::MMA_64x##N##x16_F32BF16BF16_SS<kMajorA, kMajorB>;                             \
  };                                                                                                 \
  template <gmma::Major kMajorA, gmma::Major kMajorB>                                                \
  struct WgmmaAtom<N, true, false, kMajorA, kMajorB> {                                               \
    using Type = gmma::MMA_64x##N##x16_F16F16F16_SS<kMajorA, kMajorB>;                               \
  };
CUDAL2_WGMMA(8) CUDAL2_WGMMA(16) CUDAL2_WGMMA(24) CUDAL2_WGMMA(32) CUDAL2_WGMMA(40) CUDAL2_WGMMA(48) CUDAL2_WGMMA(56) CUDAL2_WGMMA(64)
CUDAL2_WGMMA(72) CUDAL2_WGMMA(80) CUDAL2_WGMMA(88) CUDAL2_WGMMA(96) CUDAL2_WGMMA(104) CUDAL2_WGMMA(112) CUDAL2_WGMMA(120) CUDAL2_WGMMA(128)
CUDAL2_WGMMA(136) CUDAL2_WGMMA(144) CUDAL2_WGMMA(152) CUDAL2_WGMMA(160) CUDAL2_WGMMA(168) CUDAL2_WGMMA(176) CUDAL2_WGMMA(184) CUDAL2_WGMMA(192)
CUDAL2_WGMMA(200) CUDAL2_WGMMA(208) CUDAL2_WGMMA(216) CUDAL2_WGMMA(224) CUDAL2_WGMMA(232) CUDAL2_WGMMA(240) CUDAL2_WGMMA(248) CUDAL2_WGMMA(256)
#undef CUDAL2_WGMMA

// Accumulators of one 64 x kN block in one thread. Row r, columns 8 nb + 2 (lane % 4) + {0, 1} sit in word(nb, 0),
// row r + 8 in word(nb, 1), with r = 16 (warp % 4) + lane / 4 (PTX ISA, wgmma m64nNk16 fragment D).
template <int kN, bool kAccFp16, bool kBf16>
struct Accumulator;

template <int kN, bool kBf16>
struct Accumulator<kN, false, kBf16> {
  using Element = float;
  static constexpr int kRegisters = kN / 2;
  float d[kRegisters];

  __device__ __forceinline__ uint32_t word(int nb, int half) const {
    return pack_elements<kBf16>(d[nb * 4 + half * 2], d[nb * 4 + half * 2 + 1]);
  }
  __device__ __forceinline__ float4 quad(int nb) const {
    return make_float4(d[nb * 4], d[nb * 4 + 1], d[nb * 4 + 2], d[nb * 4 + 3]);
  }
};

template <int kN>
struct Accumulator<kN, true, false> {
  using Element = uint32_t;
  static constexpr int kRegisters = kN / 4;
  uint32_t d[kRegisters];

  __device__ __forceinline__ uint32_t word(int nb, int half) const { return d[nb * 2 + half]; }
  __device__ __forceinline__ float4 quad(int nb) const {
    const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&d[nb * 2]));
    const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&d[nb * 2 + 1]));
    return make_float4(low.x, low.y, high.x, high.y);
  }
};

template <class Atom, class Element, int... I>
__device__ __forceinline__ void wgmma_expand(uint64_t desc_a, uint64_t desc_b, Element* d, gmma::ScaleOut scale,
                                             cute::integer_sequence<int, I...>) {
  Atom::fma(desc_a, desc_b, d[I]..., scale);
}

// Adds A [64, 16] times B [16, kN]; each is K-major, or its other axis is contiguous.
template <bool kKMajorB, bool kKMajorA = true, int kN, bool kAccFp16, bool kBf16>
__device__ __forceinline__ void wgmma(uint64_t desc_a, uint64_t desc_b, Accumulator<kN, kAccFp16, kBf16>& acc,
                                      gmma::ScaleOut scale) {
  constexpr gmma::Major kMajorA = kKMajorA ? gmma::Major::K : gmma::Major::MN;
  constexpr gmma::Major kMajorB = kKMajorB ? gmma::Major::K : gmma::Major::MN;
  using Atom = typename WgmmaAtom<kN, kAccFp16, kBf16, kMajorA, kMajorB>::Type;
  wgmma_expand<Atom>(desc_a, desc_b, acc.d, scale,
                     cute::make_integer_sequence<int, Accumulator<kN, kAccFp16, kBf16>::kRegisters>{});
}

template <int kBlocks, int kN, bool kAccFp16, bool kBf16>
__device__ __forceinline__ void fence_accumulators(Accumulator<kN, kAccFp16, kBf16> (&acc)[kBlocks]) {
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
    for (int r = 0; r < Accumulator<kN, kAccFp16, kBf16>::kRegisters; ++r) {
      cute::warpgroup_fence_operand(acc[i].d[r]);
    }
  }
}

// Shared-memory matrix descriptor (PTX ISA, "Matrix Descriptor Format"): offsets in units of 16 bytes.
// K-major, 128-byte swizzle: rows of 128 bytes, 8 rows per atom, so the stride offset is 1024; the leading one is unused.
// N-major, swizzle of S bytes: the leading offset steps to the next S bytes of N, the stride offset to the next 8 rows of K.
template <int kSwizzleBytes>
__device__ __forceinline__ constexpr uint64_t descriptor_bits(int leading_bytes, int stride_bytes) {
  static_assert(kSwizzleBytes == 128 || kSwizzleBytes == 64 || kSwizzleBytes == 32, "no such wgmma swizzle");
  constexpr uint64_t kLayout = kSwizzleBytes == 128 ? 1 : kSwizzleBytes == 64 ? 2 : 3;
  return (kLayout << 62) | (uint64_t(stride_bytes >> 4) << 32) | (uint64_t(leading_bytes >> 4) << 16);
}

__device__ __forceinline__ uint64_t descriptor_at(uint64_t bits, uint32_t smem_address) {
  return bits | uint64_t((smem_address & 0x3FFFF) >> 4);
}

}  // namespace cudal2
