// What a process must be taken away for.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include <unistd.h>

#include "gemm.cuh"

namespace {
__global__ void hang() {
  while (true) __nanosleep(1000);
}
__global__ void corrupt() { *reinterpret_cast<volatile int*>(64) = 1; }
}  // namespace

ENTRY(hangs) {
  hang<<<1, 1, 0, stream>>>();
  return 0;
}
ENTRY(corrupts_the_context) {
  launch(a_, b_, c_, m, n, k, stream);
  corrupt<<<1, 1, 0, stream>>>();
  return 0;
}
ENTRY(throws) { throw std::runtime_error("not today"); }
ENTRY(exits) { std::exit(3); }
ENTRY(forks_and_prints) {
  static bool forked = false;
  if (!std::exchange(forked, true) && fork() == 0) {
    setsid();
    while (true) pause();
  }
  std::puts("a line for the log");
  return launch(a_, b_, c_, m, n, k, stream);
}
ENTRY(loops) {
  while (true) usleep(1000);
}
ENTRY(bad_launch) {
  gemm<<<1, dim3(64, 64), 0, stream>>>(nullptr, nullptr, nullptr, 0, 0, 0);  // 4,096 threads
  return 0;
}
ENTRY(leaks) {
  void* lost = nullptr;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(stream, &status);
  if (status == cudaStreamCaptureStatusNone) cudaMalloc(&lost, 1 << 14);
  return launch(a_, b_, c_, m, n, k, stream);
}
ENTRY(leaves_a_persisting_limit) {
  cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 1 << 20);
  return launch(a_, b_, c_, m, n, k, stream);
}
ENTRY(leaves_a_persisting_window) {
  cudaStreamAttrValue value = {};
  value.accessPolicyWindow.base_ptr = c_;
  value.accessPolicyWindow.num_bytes = 1 << 12;
  value.accessPolicyWindow.hitRatio = 1.0f;
  value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
  value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
  cudaStreamSetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &value);
  return launch(a_, b_, c_, m, n, k, stream);
}
