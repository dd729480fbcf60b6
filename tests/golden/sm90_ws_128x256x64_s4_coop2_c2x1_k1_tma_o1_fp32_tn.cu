// 128x256x64_s4_coop2_c2x1_k1_tma_o1, fp16, fp32 accumulators, tn
#include "cudal2/padded.cuh"
#include "cudal2/sm90_ws.cuh"

struct Config {
  static constexpr int kTileM = 128;
  static constexpr int kTileN = 256;
  static constexpr int kTileK = 64;
  static constexpr int kStages = 4;
  static constexpr bool kPingpong = false;
  static constexpr int kConsumers = 2;
  static constexpr int kClusterM = 2;
  static constexpr int kClusterN = 1;
  static constexpr int kSplitK = 1;
  static constexpr int kWorkspaceSplitK = 1;
  static constexpr bool kStreamK = false;
  static constexpr int kResidentA = 0;
  static constexpr bool kTmaStore = true;
  static constexpr bool kShiftedStore = false;
  static constexpr bool kStoreEvictFirst = false;
  static constexpr int kStoreBuffers = 2;
  static constexpr int kCtasPerSm = 1;
  static constexpr bool kSwapAB = false;
  static constexpr bool kBf16 = false;
  static constexpr bool kAccFp16 = false;
  static constexpr bool kKMajorB = true;
  static constexpr int kThreads = 384;
  static constexpr int kSmemBytes = 230656;
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
};

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kCtasPerSm)
    cudal2_gemm(const __grid_constant__ cudal2::GemmParams params) {
  cudal2::copy_operands<Config>(params);
  cudal2::sm90_ws<Config>(params);
}
