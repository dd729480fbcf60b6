// 128x128x32_s4_w2x2_swizzle_f2_plain_wide_b16_o2, bf16, fp32 accumulators, nn
#include "cudal2/sm80_mma.cuh"

struct Config {
  static constexpr int kTileM = 128;
  static constexpr int kTileN = 128;
  static constexpr int kTileK = 32;
  static constexpr int kStages = 4;
  static constexpr int kWarpsM = 2;
  static constexpr int kWarpsN = 2;
  static constexpr bool kSwizzle = true;
  static constexpr int kFragmentBuffers = 2;
  static constexpr bool kStaggered = false;
  static constexpr bool kWideStore = true;
  static constexpr bool kShiftedStore = false;
  static constexpr int kCopyBytes = 16;
  static constexpr int kCtasPerSm = 2;
  static constexpr int kSplitK = 1;
  static constexpr bool kBf16 = true;
  static constexpr bool kAccFp16 = false;
  static constexpr bool kKMajorB = false;
  static constexpr int kThreads = 128;
  static constexpr int kSmemBytes = 65536;
};

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kCtasPerSm)
    cudal2_gemm(const __grid_constant__ cudal2::MmaParams params) {
  cudal2::sm80_mma<Config>(params);
}
