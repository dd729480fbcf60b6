// 64x96x64_s3_pingpong2_c1x1_k1_tma_o2, bf16, fp32 accumulators, nn
#include "cudal2/padded.cuh"
#include "cudal2/sm90_ws.cuh"

struct Config {
  static constexpr int kTileM = 64;
  static constexpr int kTileN = 96;
  static constexpr int kTileK = 64;
  static constexpr int kStages = 3;
  static constexpr bool kPingpong = true;
  static constexpr int kConsumers = 2;
  static constexpr int kClusterM = 1;
  static constexpr int kClusterN = 1;
  static constexpr int kSplitK = 1;
  static constexpr int kWorkspaceSplitK = 1;
  static constexpr bool kStreamK = false;
  static constexpr int kResidentA = 0;
  static constexpr bool kTmaStore = true;
  static constexpr bool kShiftedStore = false;
  static constexpr bool kStoreEvictFirst = false;
  static constexpr int kStoreBuffers = 2;
  static constexpr int kCtasPerSm = 2;
  static constexpr bool kSwapAB = false;
  static constexpr bool kBf16 = true;
  static constexpr bool kAccFp16 = false;
  static constexpr bool kKMajorB = false;
  static constexpr int kThreads = 288;
  static constexpr int kSmemBytes = 79104;
  static constexpr int kProducerRegisters = 0;
  static constexpr int kConsumerRegisters = 0;
};

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kCtasPerSm)
    cudal2_gemm(const __grid_constant__ cudal2::GemmParams params) {
  cudal2::copy_operands<Config>(params);
  cudal2::sm90_ws<Config>(params);
}
