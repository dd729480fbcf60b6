// 32x32x128_s2_mma4_k8, fp16, fp16 accumulators, nn
#include "cudal2/sm90_small.cuh"

struct Config {
  static constexpr int kTileM = 32;
  static constexpr int kTileN = 32;
  static constexpr int kTileK = 128;
  static constexpr int kStages = 2;
  static constexpr bool kWgmma = false;
  static constexpr int kWarps = 4;
  static constexpr int kSplitK = 8;
  static constexpr bool kBf16 = false;
  static constexpr bool kAccFp16 = true;
  static constexpr bool kKMajorB = false;
  static constexpr int kThreads = 128;
  static constexpr int kSmemBytes = 49408;
};

extern "C" __global__ void __launch_bounds__(Config::kThreads, 1) cudal2_gemm(const __grid_constant__ cudal2::GemmParams params) {
  cudal2::sm90_small<Config>(params);
}
