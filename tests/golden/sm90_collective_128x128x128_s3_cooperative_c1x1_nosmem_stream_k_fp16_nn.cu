// 128x128x128_s3_cooperative_c1x1_nosmem_stream_k, fp16, fp16 accumulators, nn

#include "cudal2/sm90_collective.cuh"

#include <cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized_cooperative.hpp>

struct Config {
  static constexpr int kTileM = 128;
  static constexpr int kTileN = 128;
  static constexpr int kTileK = 128;
  static constexpr int kStages = 3;
  static constexpr int kClusterM = 1;
  static constexpr int kClusterN = 1;
  static constexpr bool kPersistent = true;
  static constexpr bool kStreamK = true;
  static constexpr bool kKMajorB = false;
  static constexpr bool kTmaStore = false;
  static constexpr int kThreads = 384;
  static constexpr int kSmemBytes = 197632;
  using Schedule = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
  using Epilogue = cutlass::epilogue::NoSmemWarpSpecialized;
  using Element = cutlass::half_t;
  using Accumulator = cutlass::half_t;
};

extern "C" __global__ void __launch_bounds__(Config::kThreads, 1) cudal2_gemm(const __grid_constant__ cudal2::Collective<Config>::Params params) {
  cudal2::Collective<Config>::run(params);
}

extern "C" __attribute__((visibility("default"))) int cudal2_plan(const cudal2::CollectiveCall* call,
                                                                  cudal2::CollectiveLaunch* launch, void* params) {
  return cudal2::Collective<Config>::plan(*call, *launch, params);
}
