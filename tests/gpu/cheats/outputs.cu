// Wrong results, each in its own way.
#include <cmath>

#include "gemm.cuh"

namespace {
__half* stale = nullptr;  // the first answer
int calls = 0;
__device__ unsigned device_calls = 0;

__global__ void half_accumulator(const __half* a, const __half* b, __half* c, int m, int n, int k, int parts) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (column >= n) return;
  __half sum = 0.0f;
  if (parts == 0) {
    for (int t = 0; t < k; ++t) {
      sum = __float2half(__half2float(sum) + __half2float(a[row * k + t]) * __half2float(b[column * k + t]));
    }
  }
  for (int part = 0; part < parts; ++part) {
    float partial = 0.0f;
    for (int t = part * k / parts; t < (part + 1) * k / parts; ++t) {
      partial += __half2float(a[row * k + t]) * __half2float(b[column * k + t]);
    }
    sum = __hadd(sum, __float2half(partial));
  }
  c[row * n + column] = sum;
}

__global__ void without_tail(const __half* a, const __half* b, __half* c, int n, int k, int used) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  float sum = 0.0f;
  for (int t = 0; column < n && t < used; ++t) sum += __half2float(a[row * k + t]) * __half2float(b[column * k + t]);
  if (column < n) c[row * n + column] = __float2half(sum);
}

__global__ void set(__half* where, float value) { *where = __float2half(value); }

// Right for a number of launches, then not even there.
__global__ void give_up(__half* c, int elements, unsigned right) {
  __shared__ bool tired;
  if (threadIdx.x == 0) tired = atomicAdd(&device_calls, 1) >= right;
  __syncthreads();
  for (int i = threadIdx.x; tired && i < elements; i += blockDim.x) c[i] = __float2half(0.25f);
}
}  // namespace

ENTRY(honest) { return launch(a_, b_, c_, m, n, k, stream); }
ENTRY(writes_nothing) { return 0; }
ENTRY(zeros) { return cudaMemsetAsync(c_, 0, sizeof(__half) * m * n, stream); }
ENTRY(refuses) { return 7; }
ENTRY(nan_output) {
  launch(a_, b_, c_, m, n, k, stream);
  set<<<1, 1, 0, stream>>>(static_cast<__half*>(c_) + 5, NAN);
  return 0;
}
ENTRY(skips_the_k_tail) {
  OPERANDS;
  without_tail<<<dim3((n + 127) / 128, m), 128, 0, stream>>>(a, b, c, n, k, k - 64);
  return 0;
}
ENTRY(stale_output) {
  if (calls++ == 0) {
    cudaMalloc(&stale, sizeof(__half) * m * n);
    launch(a_, b_, c_, m, n, k, stream);
    return cudaMemcpyAsync(stale, c_, sizeof(__half) * m * n, cudaMemcpyDeviceToDevice, stream);
  }
  return cudaMemcpyAsync(c_, stale, sizeof(__half) * m * n, cudaMemcpyDeviceToDevice, stream);
}
ENTRY(first_call_only) { return calls++ == 0 ? launch(a_, b_, c_, m, n, k, stream) : 0; }
ENTRY(right_until_timed) {
  launch(a_, b_, c_, m, n, k, stream);
  give_up<<<1, 256, 0, stream>>>(static_cast<__half*>(c_), m * n, 3200);
  return 0;
}
ENTRY(fp16_accumulator) {
  OPERANDS;
  half_accumulator<<<dim3((n + 127) / 128, m), 128, 0, stream>>>(a, b, c, m, n, k, 0);
  return 0;
}
ENTRY(fp16_partials) {
  OPERANDS;
  half_accumulator<<<dim3((n + 127) / 128, m), 128, 0, stream>>>(a, b, c, m, n, k, 4);
  return 0;
}
ENTRY(changes_its_input) {
  launch(a_, b_, c_, m, n, k, stream);
  set<<<1, 1, 0, stream>>>(const_cast<__half*>(static_cast<const __half*>(b_)) + 9, 3.0f);
  return 0;
}
ENTRY(empties_its_input_when_timed) {
  if (calls++ < 1100) return launch(a_, b_, c_, m, n, k, stream);
  cudaMemsetAsync(const_cast<void*>(a_), 0, sizeof(__half) * m * k, stream);
  return cudaMemsetAsync(c_, 0, sizeof(__half) * m * n, stream);
}
ENTRY(writes_behind_c) {
  launch(a_, b_, c_, m, n, k, stream);
  set<<<1, 1, 0, stream>>>(static_cast<__half*>(c_) + static_cast<size_t>(m) * n, 3.0f);
  return 0;
}
