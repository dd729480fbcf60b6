// The CUDA runtime's last error, which stays until somebody reads it, and a capture that nothing may be waited for in.
#pragma once
#include <cstdlib>

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidConfiguration = 9, cudaErrorStreamCaptureUnsupported = 900 };
using cudaStream_t = void*;

inline cudaError_t last = cudaSuccess;

inline bool capturing() { return std::getenv("TEST_CAPTURING") != nullptr; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
  if (capturing()) last = cudaErrorStreamCaptureUnsupported;
  return capturing() ? last : cudaSuccess;
}
inline cudaError_t cudaGetLastError() {
  const cudaError_t error = last;
  last = cudaSuccess;
  return error;
}
inline const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorInvalidConfiguration ? "cudaErrorInvalidConfiguration" : "cudaErrorStreamCaptureUnsupported";
}
inline const char* cudaGetErrorString(cudaError_t) { return "what it means"; }
