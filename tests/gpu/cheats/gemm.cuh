// What the cheats cheat around: an honest product, slow and right. B is [n, k].
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>

constexpr int kTile = 16;

__global__ void gemm(const __half* a, const __half* b, __half* c, int m, int n, int k) {
  __shared__ __half left[kTile][kTile + 1], right[kTile][kTile + 1];
  const int x = threadIdx.x, y = threadIdx.y;
  const int row = blockIdx.y * kTile + y, column = blockIdx.x * kTile + x, other = blockIdx.x * kTile + y;
  float sum = 0.0f;
  for (int t = 0; t < k; t += kTile) {
    const bool inside = t + x < k;
    left[y][x] = inside && row < m ? a[static_cast<size_t>(row) * k + t + x] : __half(0.0f);
    right[y][x] = inside && other < n ? b[static_cast<size_t>(other) * k + t + x] : __half(0.0f);
    __syncthreads();
    for (int i = 0; i < kTile; ++i) sum += __half2float(left[y][i]) * __half2float(right[x][i]);
    __syncthreads();
  }
  if (row < m && column < n) c[static_cast<size_t>(row) * n + column] = __float2half(sum);
}

#define ENTRY(name)                                                                                             \
  extern "C" int name(const void* a_, const void* b_, void* c_, int m, int n, int k, void* workspace,           \
                      size_t workspace_bytes, cudaStream_t stream)
#define OPERANDS                                \
  const __half* a = static_cast<const __half*>(a_); \
  const __half* b = static_cast<const __half*>(b_); \
  __half* c = static_cast<__half*>(c_)

inline int launch(const void* a, const void* b, void* c, int m, int n, int k, cudaStream_t stream) {
  const dim3 grid((n + kTile - 1) / kTile, (m + kTile - 1) / kTile);
  gemm<<<grid, dim3(kTile, kTile), 0, stream>>>(static_cast<const __half*>(a), static_cast<const __half*>(b),
                                                static_cast<__half*>(c), m, n, k);
  return 0;
}
