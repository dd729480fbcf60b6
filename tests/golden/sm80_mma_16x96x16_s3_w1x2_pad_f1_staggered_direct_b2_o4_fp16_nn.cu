// 16x96x16_s3_w1x2_pad_f1_staggered_direct_b2_o4, fp16, fp16 accumulators, nn
#include "cudal2/sm80_mma.cuh"

struct Config {
  static constexpr int kTileM = 16;
  static constexpr int kTileN = 96;
  static constexpr int kTileK = 16;
  static constexpr int kStages = 3;
  static constexpr int kWarpsM = 1;
  static constexpr int kWarpsN = 2;
  static constexpr bool kSwizzle = false;
  static constexpr int kFragmentBuffers = 1;
  static constexpr bool kStaggered = true;
  static constexpr bool kWideStore = false;
  static constexpr bool kShiftedStore = false;
  static constexpr int kCopyBytes = 2;
  static constexpr int kCtasPerSm = 4;
  static constexpr int kSplitK = 1;
  static constexpr bool kBf16 = false;
  static constexpr bool kAccFp16 = true;
  static constexpr bool kKMajorB = false;
  static constexpr int kThreads = 64;
  static constexpr int kSmemBytes = 16128;
};

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kCtasPerSm)
    cudal2_gemm(const __grid_constant__ cudal2::MmaParams params) {
  cudal2::sm80_mma<Config>(params);
}
