// A GEMM that CUTLASS's CollectiveBuilder puts together, under the entry name and the launch of our own kernels.
//
// Compiled by nvcc: the device half is a cubin like any other; the host half, a shared library, fills the kernel's
// parameters and says how it is launched. Only headers of sm_90 are included where CUTLASS lets us: reading them is most of
// the half minute that a kernel takes. See kernels/README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <cutlass/cutlass.h>
#include <cutlass/epilogue/dispatch_policy.hpp>
#include <cutlass/gemm/dispatch_policy.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/collective/collective_mma_decl.hpp>
#include <cutlass/gemm/collective/collective_builder_decl.hpp>
#include <cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp>
#include <cutlass/gemm/collective/builders/sm90_gmma_builder.inl>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal_decl.h>
#include <cutlass/gemm/kernel/tile_scheduler.hpp>

namespace cudal2 {

// What the host asks for; cudal2/launch/collective.py has its twin.
struct CollectiveCall {
  const void* a;
  const void* b;
  void* c;
  void* workspace;
  int32_t m, n, k;
  int32_t sm_count;
  int32_t splits;         // of K; 1: none, or stream-K where the scheduler has it
  int32_t max_swizzle;    // tiles
  int32_t raster;         // 0: CUTLASS decides, 1: along M, 2: along N
  uint32_t params_bytes;  // room for the parameters
};

// What it is told. Slots are offsets in the parameters of the words that hold addresses: those of A, B and C, of which a
// tensor map's first word is one, and with stream-K of the counter and of CUTLASS's workspace behind it.
struct CollectiveLaunch {
  uint32_t grid[3];
  uint32_t threads;
  uint32_t smem_bytes;
  uint32_t params_bytes;
  uint32_t slots[5];
  uint64_t done_bytes;       // zero before the first launch, and after each: counts warp groups that are done
  uint64_t workspace_bytes;  // CUTLASS's own behind it, at first zero
};

// What CTAs that share an output tile count their sums in, behind the sums, and who is done with it.
struct Locks {
  uint32_t* done;   // warp groups; in front of CUTLASS's workspace
  uint64_t offset;  // bytes, in CUTLASS's workspace
  uint32_t count;
};

template <class Config>
struct Collective {
  using Element = typename Config::Element;
  using Accumulator = typename Config::Accumulator;
  using RowMajor = cutlass::layout::RowMajor;
  using LayoutB = cute::conditional_t<Config::kKMajorB, cutlass::layout::ColumnMajor, RowMajor>;
  using Tile = cute::Shape<cute::Int<Config::kTileM>, cute::Int<Config::kTileN>, cute::Int<Config::kTileK>>;
  using Cluster = cute::Shape<cute::Int<Config::kClusterM>, cute::Int<Config::kClusterN>, cute::_1>;
  using Scheduler = cute::conditional_t<Config::kStreamK, cutlass::gemm::StreamKScheduler, cutlass::gemm::PersistentScheduler>;
  static constexpr int kAlignment = 16 / sizeof(Element);
  static constexpr int kAlignmentC = Config::kTmaStore ? kAlignment : 1;

  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto,
      Accumulator, float, void, RowMajor, kAlignmentC, Element, RowMajor, kAlignmentC,
      typename Config::Epilogue>::CollectiveOp;
  static constexpr int kCarveout = static_cast<int>(sizeof(typename Epilogue::SharedStorage));
  using Stages = cute::conditional_t<Config::kStages == 0, cutlass::gemm::collective::StageCountAutoCarveout<kCarveout>,
                                     cutlass::gemm::collective::StageCount<Config::kStages>>;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, RowMajor, kAlignment, Element, LayoutB, kAlignment,
      Accumulator, Tile, Cluster, Stages, typename Config::Schedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue, Scheduler>;
  using Arguments = typename Kernel::Arguments;

  struct Params {
    typename Kernel::Params gemm;
    Locks locks;
  };

  static_assert(Kernel::MaxThreadsPerBlock == Config::kThreads, "threads are not what cudal2/space says");
  static_assert(Kernel::SharedStorageSize <= Config::kSmemBytes, "shared memory is more than cudal2/space says");

  static constexpr int kWarpGroup = 128;
  static constexpr int kConsumers = Config::kThreads / kWarpGroup - 1;
  static constexpr std::size_t kDoneBytes = 128;  // in front of CUTLASS's workspace, which keeps its alignment

  static Arguments arguments(const CollectiveCall& call) {
    Arguments args{};
    args.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    args.problem_shape = cute::make_shape(call.m, call.n, call.k, 1);
    args.mainloop.ptr_A = static_cast<const Element*>(call.a);
    args.mainloop.ptr_B = static_cast<const Element*>(call.b);
    cute::get<0>(args.mainloop.dA) = call.k;
    cute::get<Config::kKMajorB ? 0 : 1>(args.mainloop.dB) = Config::kKMajorB ? call.k : call.n;
    args.epilogue.ptr_D = static_cast<Element*>(call.c);
    cute::get<0>(args.epilogue.dD) = call.n;
    args.hw_info.sm_count = call.sm_count;
    if constexpr (Config::kPersistent) {
      using Raster = typename Kernel::TileScheduler::RasterOrderOptions;
      args.scheduler.max_swizzle_size = call.max_swizzle;
      args.scheduler.raster_order = call.raster == 1 ? Raster::AlongM : call.raster == 2 ? Raster::AlongN : Raster::Heuristic;
    }
    if constexpr (Config::kStreamK) {
      using Mode = typename Kernel::TileScheduler::DecompositionMode;
      args.scheduler.splits = call.splits;
      args.scheduler.decomposition_mode = call.splits > 1 ? Mode::SplitK : Mode::StreamK;
    }
    return args;
  }

  // CUTLASS's own begins behind the counter.
  static uint8_t* scheduler_workspace(const CollectiveCall& call) {
    return static_cast<uint8_t*>(call.workspace) + (Config::kStreamK ? kDoneBytes : 0);
  }

  // Locks lie behind the partial sums: what no warp group would need less of is theirs.
  static std::size_t scheduler_bytes(const Arguments& args, int warp_groups) {
    return Kernel::TileScheduler::template get_workspace_size<typename Kernel::ProblemShape, Accumulator>(
        args.scheduler, args.problem_shape, args.hw_info, warp_groups);
  }

  static Params make(const CollectiveCall& call, const Arguments& args) {
    Params params{Kernel::to_underlying_arguments(args, scheduler_workspace(call)), {}};
    if constexpr (Config::kStreamK) {
      const std::size_t sums = scheduler_bytes(args, 0);
      const std::size_t locks = scheduler_bytes(args, kConsumers) - sums;
      params.locks = {static_cast<uint32_t*>(call.workspace), sums, static_cast<uint32_t>(locks / sizeof(uint32_t))};
    }
    return params;
  }

  // Nonzero where CUTLASS does not take the problem.
  static int plan(const CollectiveCall& call, CollectiveLaunch& launch, void* out) {
    const Arguments args = arguments(call);
    if (!Kernel::can_implement(args)) return 1;
    const Params params = make(call, args);
    const dim3 grid = Kernel::get_grid_shape(params.gemm);
    const auto slot = [&](const void* member) {
      return static_cast<uint32_t>(static_cast<const char*>(member) - reinterpret_cast<const char*>(&params));
    };
    launch = CollectiveLaunch{};
    launch.grid[0] = grid.x;
    launch.grid[1] = grid.y;
    launch.grid[2] = grid.z;
    launch.threads = Config::kThreads;
    launch.smem_bytes = Config::kSmemBytes;
    launch.params_bytes = sizeof(Params);
    launch.slots[0] = slot(params.gemm.mainloop.tma_load_a.get_tma_descriptor());
    launch.slots[1] = slot(params.gemm.mainloop.tma_load_b.get_tma_descriptor());
    if constexpr (Config::kTmaStore) {
      launch.slots[2] = slot(params.gemm.epilogue.tma_store_d.get_tma_descriptor());
    } else {
      launch.slots[2] = slot(&params.gemm.epilogue.ptr_D);
    }
    if constexpr (Config::kStreamK) {
      launch.slots[3] = slot(&params.locks.done);
      launch.slots[4] = slot(&params.gemm.scheduler.reduction_workspace_);
      launch.done_bytes = kDoneBytes;
      launch.workspace_bytes = Kernel::get_workspace_size(args);
    }
    if (call.params_bytes >= sizeof(Params)) std::memcpy(out, &params, sizeof(Params));
    return 0;
  }

  static CUTLASS_DEVICE void run(const Params& params) {
    extern __shared__ __align__(1024) char smem[];
    // CUTLASS 4.2's stream-K does not compile with its own waits. Every CTA of it runs from the start, so that the next
    // grid's may come as soon as one leaves.
    if constexpr (Config::kStreamK) {
      asm volatile("griddepcontrol.wait;" ::: "memory");
      asm volatile("griddepcontrol.launch_dependents;");
    }
    Kernel{}(params.gemm, smem);
    if constexpr (Config::kStreamK) {
      auto* workspace = static_cast<uint8_t*>(params.gemm.scheduler.reduction_workspace_);
      reset(params.locks, reinterpret_cast<uint32_t*>(workspace + params.locks.offset));
    }
  }

  // The last warp group of the grid that is done leaves the locks as it found them, zero: a launch needs no memset
  // before it. Of a consumer warp group only the first thread reads or writes a lock, so its warp speaks for all.
  static CUTLASS_DEVICE void reset(const Locks& locks, uint32_t* words) {
    if (threadIdx.x < kWarpGroup || threadIdx.x % kWarpGroup >= 32) return;
    const uint32_t lane = threadIdx.x % 32;
    bool last = false;
    if (lane == 0) {
      __threadfence();
      last = atomicAdd(locks.done, 1u) == gridDim.x * gridDim.y * gridDim.z * kConsumers - 1;
      __threadfence();
    }
    if (!__shfl_sync(~0u, last, 0)) return;
    for (uint32_t word = lane; word < locks.count; word += 32) words[word] = 0;
    if (lane == 0) *locks.done = 0;
  }
};

}  // namespace cudal2
