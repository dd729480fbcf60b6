// Kernels that cannot be captured, and one that afterwards cannot be launched either. B is [n, k].
#include <cuda_runtime.h>
#include <immintrin.h>

#include <cstddef>
#include <stdexcept>

#define ENTRY(name)                                                                                   \
  int name(const void* a, const void* b, void* c, int m, int n, int k, void*, std::size_t, cudaStream_t stream)

static int gemm(const void* a_, const void* b_, void* c_, int m, int n, int k) {
  const auto* a = static_cast<const unsigned short*>(a_);
  const auto* b = static_cast<const unsigned short*>(b_);
  for (int i = 0; i < m * n; ++i) {
    float sum = 0;
    for (int t = 0; t < k; ++t) sum += _cvtsh_ss(a[i / n * k + t]) * _cvtsh_ss(b[i % n * k + t]);
    static_cast<unsigned short*>(c_)[i] = _cvtss_sh(sum, 0);
  }
  return 0;
}

ENTRY(returns_the_error) {
  gemm(a, b, c, m, n, k);
  return cudaStreamSynchronize(stream);
}
ENTRY(swallows_the_error) {
  cudaStreamSynchronize(stream);
  return gemm(a, b, c, m, n, k);
}
ENTRY(throws_the_error) {
  if (cudaStreamSynchronize(stream) != cudaSuccess) throw std::runtime_error("no waiting");
  return gemm(a, b, c, m, n, k);
}
ENTRY(bad_launch_from_then_on) {
  static bool captured = false;
  captured = captured || capturing();
  if (captured) last = cudaErrorInvalidConfiguration;
  return gemm(a, b, c, m, n, k);
}
