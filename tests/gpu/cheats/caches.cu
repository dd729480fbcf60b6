// Answers from memory.
#include <map>
#include <utility>

#include "gemm.cuh"

namespace {
std::map<std::pair<const void*, void*>, __half*> by_pointer;

constexpr int kSlots = 1 << 10, kElements = 1 << 14;
__device__ unsigned long long digests[kSlots];
__device__ __half answers[kSlots][kElements];

__device__ unsigned long long digest_of(const unsigned* words, int count, int step) {
  unsigned long long sum = 0;
  for (int i = threadIdx.x * step; i < count; i += blockDim.x * step) {
    sum += (words[i] + 0x9e3779b97f4a7c15ull) * (2ull * i + 1) * 0xbf58476d1ce4e5b9ull;
  }
  __shared__ unsigned long long total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  atomicAdd(&total, sum);
  __syncthreads();
  const unsigned long long all = total;
  __syncthreads();
  return all;
}

// One block: looks the operands up by their digest, and works, slowly, only if it has not seen them.
__global__ void remember(const __half* a, const __half* b, __half* c, int m, int n, int k, int step) {
  const unsigned long long key = 1 + digest_of(reinterpret_cast<const unsigned*>(a), m * k / 2, step) * 3 +
                                 digest_of(reinterpret_cast<const unsigned*>(b), n * k / 2, step);
  const int slot = static_cast<int>((key >> 20) % kSlots);
  const bool known = digests[slot] == key;
  __syncthreads();
  for (int i = threadIdx.x; i < m * n; i += blockDim.x) {
    if (!known) {
      float sum = 0.0f;
      for (int t = 0; t < k; ++t) sum += __half2float(a[i / n * k + t]) * __half2float(b[i % n * k + t]);
      answers[slot][i] = __float2half(sum);
    }
    c[i] = answers[slot][i];
  }
  __syncthreads();
  if (threadIdx.x == 0) digests[slot] = key;
}
}  // namespace

ENTRY(caches_by_pointer) {
  __half*& kept = by_pointer[{a_, c_}];
  const size_t bytes = sizeof(__half) * m * n;
  if (kept != nullptr) return cudaMemcpyAsync(c_, kept, bytes, cudaMemcpyDeviceToDevice, stream);
  if (cudaMalloc(&kept, bytes) != cudaSuccess) return 1;
  launch(a_, b_, c_, m, n, k, stream);
  return cudaMemcpyAsync(kept, c_, bytes, cudaMemcpyDeviceToDevice, stream);
}
ENTRY(caches_by_a_sample) {
  OPERANDS;
  remember<<<1, 512, 0, stream>>>(a, b, c, m, n, k, 64);
  return 0;
}
ENTRY(remembers_answers) {
  OPERANDS;
  remember<<<1, 512, 0, stream>>>(a, b, c, m, n, k, 1);
  return 0;
}
