// 128x256x64_s0_cooperative_c2x1_tma_persistent, fp16, fp32 accumulators, tn
#define CUTLASS_ENABLE_GDC_FOR_SM90
#include "cudal2/sm90_collective.cuh"

#include <cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized_cooperative.hpp>

struct Config {
  static constexpr int kTileM = 128;
  static constexpr int kTileN = 256;
  static constexpr int kTileK = 64;
  static constexpr int kStages = 0;
  static constexpr int kClusterM = 2;
  static constexpr int kClusterN = 1;
  static constexpr bool kPersistent = true;
  static constexpr bool kStreamK = false;
  static constexpr bool kKMajorB = true;
  static constexpr bool kTmaStore = true;
  static constexpr int kThreads = 384;
  static constexpr int kSmemBytes = 232448;
  using Schedule = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
  using Epilogue = cutlass::epilogue::TmaWarpSpecializedCooperative;
  using Element = cutlass::half_t;
  using Accumulator = float;
};

extern "C" __global__ void __launch_bounds__(Config::kThreads, 1) cudal2_gemm(const __grid_constant__ cudal2::Collective<Config>::Params params) {
  cudal2::Collective<Config>::run(params);
}

extern "C" __attribute__((visibility("default"))) int cudal2_plan(const cudal2::CollectiveCall* call,
                                                                  cudal2::CollectiveLaunch* launch, void* params) {
  return cudal2::Collective<Config>::plan(*call, *launch, params);
}
