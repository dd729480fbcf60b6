// 64x32x64_s4_wgmma4_k1, fp16, fp32 accumulators, tn
#include "cudal2/sm90_small.cuh"

struct Config {
  static constexpr int kTileM = 64;
  static constexpr int kTileN = 32;
  static constexpr int kTileK = 64;
  static constexpr int kStages = 4;
  static constexpr bool kWgmma = true;
  static constexpr int kWarps = 4;
  static constexpr int kSplitK = 1;
  static constexpr bool kBf16 = false;
  static constexpr bool kAccFp16 = false;
  static constexpr bool kKMajorB = true;
  static constexpr int kThreads = 128;
  static constexpr int kSmemBytes = 49408;
};

extern "C" __global__ void __launch_bounds__(Config::kThreads, 1) cudal2_gemm(const __grid_constant__ cudal2::GemmParams params) {
  cudal2::sm90_small<Config>(params);
}
