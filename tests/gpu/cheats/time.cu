// Work that the stopwatch is not meant to see, and a stopwatch that is told what to see.
#include <dlfcn.h>

#include <chrono>
#include <thread>

#include "gemm.cuh"

namespace {
cudaStream_t own_stream() {
  static cudaStream_t stream = [] {
    cudaStream_t made;
    cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
    return made;
  }();
  return stream;
}

void patch_timer() {
  static bool done = false;
  if (done) return;
  done = true;
  auto run = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
  auto enter = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
  auto leave = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
  const int state = enter();
  run("from cuda.bindings import driver\n"
      "real = driver.cuEventElapsedTime\n"
      "driver.cuEventElapsedTime = lambda a, b: (real(a, b)[0], real(a, b)[1] / 2)\n");
  leave(state);
}
}  // namespace

ENTRY(other_stream) { return launch(a_, b_, c_, m, n, k, own_stream()); }
ENTRY(legacy_stream) { return launch(a_, b_, c_, m, n, k, nullptr); }
ENTRY(synchronises) {
  launch(a_, b_, c_, m, n, k, stream);
  return cudaStreamSynchronize(stream);
}
ENTRY(returns_early) {
  std::thread([=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    launch(a_, b_, c_, m, n, k, own_stream());
  }).detach();
  return 0;
}
ENTRY(patches_the_timer) {
  patch_timer();
  return launch(a_, b_, c_, m, n, k, stream);
}
