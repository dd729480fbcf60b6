// 32x32x128_s2_w2x2_swizzle_f1_plain_direct_b2_o1_k4, fp16, fp32 accumulators, tn
#include "cudal2/sm80_mma.cuh"

struct Config {
  static constexpr int kTileM = 32;
  static constexpr int kTileN = 32;
  static constexpr int kTileK = 128;
  static constexpr int kStages = 2;
  static constexpr int kWarpsM = 2;
  static constexpr int kWarpsN = 2;
  static constexpr bool kSwizzle = true;
  static constexpr int kFragmentBuffers = 1;
  static constexpr bool kStaggered = false;
  static constexpr bool kWideStore = false;
  static constexpr bool kShiftedStore = false;
  static constexpr int kCopyBytes = 2;
  static constexpr int kCtasPerSm = 1;
  static constexpr int kSplitK = 4;
  static constexpr bool kBf16 = false;
  static constexpr bool kAccFp16 = false;
  static constexpr bool kKMajorB = true;
  static constexpr int kThreads = 128;
  static constexpr int kSmemBytes = 32768;
};

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kCtasPerSm)
    cudal2_gemm(const __grid_constant__ cudal2::SplitMmaParams params) {
  cudal2::sm80_mma<Config>(params);
}
