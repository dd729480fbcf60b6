// Latency kernel for small products: one CTA per tile of C and K slice, no roles, no loop over tiles, few barriers.
//
// One thread starts every load it can as soon as its barriers exist, before the other threads know of them; then all
// warps multiply K tile by K tile, by wgmma or by mma.sync. A K longer than the ring has the same thread refill it.
// Slices of K are CTAs of a cluster that send each other their partial sums. See kernels/README.md.
#pragma once

#include "cudal2/ampere.cuh"
#include "cudal2/epilogue.cuh"
#include "cudal2/params.cuh"
#include "cudal2/sync.cuh"
#include "cudal2/wgmma.cuh"

namespace cudal2 {

// What a configuration implies; cudal2/space/sm90_small/geometry.py derives the same values.
template <class Config>
struct SmallGeometry : Config {
  using Config::kKMajorB, Config::kSplitK, Config::kStages, Config::kTileK, Config::kTileM, Config::kTileN, Config::kWgmma;

  // Parts of a tile: a warp group's 64 rows or halves of 128 columns and less, or a warp's 16 rows and its columns.
  static constexpr int kReaders = kWgmma ? Config::kWarps / 4 : Config::kWarps;  // that give a stage back
  static constexpr int kReaderThreads = kWgmma ? kWarpGroup : 32;
  static constexpr int kPartRows = kWgmma ? (kReaders == 2 ? 64 : kTileM) : 16;
  static constexpr int kPartsM = kTileM / kPartRows;
  static constexpr int kPartsN = kReaders / kPartsM;
  static constexpr int kPartColumns = kTileN / kPartsN;

  static constexpr int kBytesA = kTileM * kTileK * kElementBytes;
  static constexpr int kStageBytes = kBytesA + kTileN * kTileK * kElementBytes;
  static constexpr int kLag = kStages > 1 ? 1 : 0;  // K tiles between a stage's products and its refill

  // A and K-major B: boxes of 64 elements of K, 128-byte swizzle. N-major B: boxes of kBoxN elements of N.
  static constexpr int kBoxN = kKMajorB ? 64 : kPartColumns % 64 == 0 ? 64 : kPartColumns % 32 == 0 ? 32 : 16;
  static constexpr int kBoxNBytes = kBoxN * kElementBytes;

  // Partial sums by 16 rows x 8 columns of a warp: four of each thread, a quad. Every slice adds its share of them.
  static constexpr int kQuads = kPartRows / (kWgmma ? 64 : 16) * kPartColumns / 8;
  static constexpr int kShare = (kQuads + kSplitK - 1) / kSplitK;
  static constexpr int kReceivedBytes = kSplitK > 1 ? kSplitK * kShare * Config::kThreads * 16 : 0;
  static constexpr int kBodyBytes = kStages * kStageBytes;

  // What the shared epilogue stores: blocks of 64 rows below each other in one thread.
  struct Part {
    static constexpr int kBlocks = kWgmma ? kPartRows / 64 : 1;
    static constexpr int kTileN = kPartColumns;
  };

  static_assert(kTileK % 64 == 0 && kTileK <= 256, "a K tile is one to four 128-byte swizzle rows");
  static_assert(kTileM % kPartRows == 0 && kReaders % kPartsM == 0 && kTileN % kPartsN == 0, "warps share the tile evenly");
  static_assert(!kWgmma || (Config::kWarps % 4 == 0 && kPartRows % 64 == 0), "wgmma: whole warp groups of 64 rows");
  static_assert(kPartColumns % (kWgmma ? 8 : 16) == 0, "a part is whole columns of its instruction");
  static_assert(kKMajorB || kPartColumns % 16 == 0, "N-major B is loaded in boxes of 16 columns at least");
  static_assert(kSplitK <= 16, "no cluster is larger than 16 CTAs");
  static_assert((2 * kStages + 1) * 8 <= kBarrierBytes, "barriers outgrow their room");
  static_assert(!Config::kBf16 || !Config::kAccFp16, "no instruction adds bf16 products in fp16");
  static_assert(Config::kThreads == Config::kWarps * 32, "threads disagree with the host");
  static_assert(Config::kSmemBytes == kBodyBytes + kReceivedBytes + kBarrierBytes, "shared memory disagrees with the host");
};

template <class G>
struct SmallSmem {
  uint8_t* base;

  __device__ __forceinline__ uint8_t* a(int stage) const { return base + stage * G::kStageBytes; }
  __device__ __forceinline__ uint8_t* b(int stage) const { return a(stage) + G::kBytesA; }
  // Beside the stages: a peer's partial sums may come while this CTA still multiplies.
  __device__ __forceinline__ float4* received() const { return reinterpret_cast<float4*>(base + G::kBodyBytes); }
  __device__ __forceinline__ uint64_t* all_received() const {
    return reinterpret_cast<uint64_t*>(base + G::kBodyBytes + G::kReceivedBytes);
  }
  __device__ __forceinline__ uint64_t* full(int stage) const { return all_received() + 1 + stage; }
  __device__ __forceinline__ uint64_t* empty(int stage) const { return full(G::kStages + stage); }
};

// A CTA's tile and its share of K: blockIdx is (slice, tile along M, tile along N), so that nothing is divided.
template <class G>
struct SmallWork {
  const GemmParams& params;
  int row;
  int col;
  int k0;       // first element of K
  int k_tiles;  // from there

  __device__ __forceinline__ explicit SmallWork(const GemmParams& p) : params(p) {
    row = blockIdx.y * G::kTileM;
    col = blockIdx.z * G::kTileN;
    const uint32_t all = uint32_t(p.k + G::kTileK - 1) / G::kTileK;  // unsigned: division is a shift
    const uint32_t begin = G::kSplitK == 1 ? 0 : all * blockIdx.x / G::kSplitK;
    k_tiles = (G::kSplitK == 1 ? all : all * (blockIdx.x + 1) / G::kSplitK) - begin;
    k0 = begin * G::kTileK;
  }

  // The TMA boxes of one K tile: where each goes from the start of its stage, and where it is in the matrix.
  template <class Body>
  __device__ __forceinline__ void each_box_of_a(int kt, Body body) const {
#pragma unroll
    for (int sub = 0; sub < G::kTileK / 64; ++sub) body(sub * G::kTileM * 128, k0 + kt * G::kTileK + sub * 64, row);
  }
  template <class Body>
  __device__ __forceinline__ void each_box_of_b(int kt, Body body) const {
    if constexpr (G::kKMajorB) {
#pragma unroll
      for (int sub = 0; sub < G::kTileK / 64; ++sub) {
        body(G::kBytesA + sub * G::kTileN * 128, k0 + kt * G::kTileK + sub * 64, col);
      }
    } else {
#pragma unroll
      for (int box = 0; box < G::kTileN / G::kBoxN; ++box) {
        body(G::kBytesA + box * G::kTileK * G::kBoxNBytes, col + box * G::kBoxN, k0 + kt * G::kTileK);
      }
    }
  }
};

// Runs in one thread.
template <class G>
__device__ __forceinline__ void load_k_tile(const SmallWork<G>& work, const SmallSmem<G>& smem, int kt, int stage) {
  uint64_t* full = smem.full(stage);
  FullBarrier::arrive_and_expect_tx(full, G::kStageBytes);
  uint8_t* to = smem.a(stage);
  work.each_box_of_a(kt, [&](int offset, int x, int y) {
    cute::SM90_TMA_LOAD_2D::copy(&work.params.a, full, work.params.hint_a, to + offset, x, y);
  });
  work.each_box_of_b(kt, [&](int offset, int x, int y) {
    cute::SM90_TMA_LOAD_2D::copy(&work.params.b, full, work.params.hint_b, to + offset, x, y);
  });
}

// Runs in one thread, while the previous grid still may: operands to L2, through which that grid writes as well, so that
// the loads find whatever it has written by then. CTAs that read the same rows or columns share their K tiles.
template <class G>
__device__ __forceinline__ void prefetch_share(const SmallWork<G>& work) {
  const int k_tiles = min(work.params.prefetch, work.k_tiles);
#pragma unroll 1
  for (int kt = blockIdx.z; kt < k_tiles; kt += gridDim.z) {
    work.each_box_of_a(kt, [&](int, int x, int y) { cute::SM90_TMA_LOAD_2D::PREFETCH::copy(&work.params.a, x, y); });
  }
#pragma unroll 1
  for (int kt = blockIdx.y; kt < k_tiles; kt += gridDim.y) {
    work.each_box_of_b(kt, [&](int, int x, int y) { cute::SM90_TMA_LOAD_2D::PREFETCH::copy(&work.params.b, x, y); });
  }
}

// Runs in one thread: barriers, then at once the loads that they count. The other threads learn of both by the barrier
// that follows; until then they have nothing to do.
template <class G>
__device__ __forceinline__ void start(const SmallWork<G>& work, const SmallSmem<G>& smem) {
  cute::prefetch_tma_descriptor(reinterpret_cast<const cute::TmaDescriptor*>(&work.params.a));
  cute::prefetch_tma_descriptor(reinterpret_cast<const cute::TmaDescriptor*>(&work.params.b));
#pragma unroll
  for (int stage = 0; stage < G::kStages; ++stage) FullBarrier::init(smem.full(stage), 1);
  if constexpr (G::kSplitK > 1) FullBarrier::init(smem.all_received(), 1);
  cutlass::arch::fence_barrier_init();
  if (work.params.prefetch > 0) prefetch_share<G>(work);
  wait_for_previous_grid();
  allow_next_grid();  // its CTAs touch no operand before this grid has ended
#pragma unroll
  for (int stage = 0; stage < G::kStages; ++stage) {
    if (stage < work.k_tiles) load_k_tile<G>(work, smem, stage, stage);
  }
  if constexpr (G::kReaders > 1) {
    if (work.k_tiles > G::kStages) {
#pragma unroll
      for (int stage = 0; stage < G::kStages; ++stage) EmptyBarrier::init(smem.empty(stage), G::kReaders);
    }
  }
  if constexpr (G::kSplitK > 1) {
    const int mine = max(0, min(G::kShare, G::kQuads - int(blockIdx.x) * G::kShare));
    FullBarrier::arrive_and_expect_tx(smem.all_received(), G::kSplitK * mine * G::kThreads * 16);
  }
}

// The stage whose products were issued kLag K tiles ago takes the next K tile, once every reader has left it. A warp
// group is one reader: its wgmma has read its operands as a whole when one of its threads has waited for it.
template <class G>
__device__ __forceinline__ void refill(const SmallWork<G>& work, const SmallSmem<G>& smem, int kt, StageCursor<G::kStages> freed) {
  if constexpr (G::kReaders > 1) {
    if (threadIdx.x % G::kReaderThreads == 0) EmptyBarrier::arrive(smem.empty(freed.stage));
  }
  if (threadIdx.x < 32) {
    if (cute::elect_one_sync()) {
      if constexpr (G::kReaders > 1) EmptyBarrier::wait(smem.empty(freed.stage), freed.phase);
      load_k_tile<G>(work, smem, kt, freed.stage);
    }
  }
  __syncwarp();  // the next products are of whole warps
}

// A warp group's 64 rows and blocks of them.
template <class G>
struct WgmmaPart {
  static constexpr int kBlocks = G::Part::kBlocks;
  Accumulator<G::kPartColumns, G::kAccFp16, G::kBf16> acc[kBlocks];
  // Through a shuffle, so that descriptors are known to be the same in all lanes.
  int part = G::kReaders == 1 ? 0 : __shfl_sync(0xFFFFFFFF, threadIdx.x / kWarpGroup, 0);
  int part_m = part % G::kPartsM;
  int part_n = part / G::kPartsM;

  __device__ __forceinline__ int row() const {
    return part_m * G::kPartRows + threadIdx.x % kWarpGroup / 32 * 16 + threadIdx.x % 32 / 4;
  }
  __device__ __forceinline__ int col() const { return part_n * G::kPartColumns; }

  // Leaves the products of this K tile under way if the ring has a second stage, and none of those before.
  __device__ __forceinline__ void multiply(const SmallSmem<G>& smem, int stage, bool first) {
    const int part_b = part_n * (G::kKMajorB ? G::kPartColumns * 128 : G::kPartColumns / G::kBoxN * G::kTileK * G::kBoxNBytes);
    const uint64_t bits_b = G::kKMajorB ? descriptor_bits<128>(16, 1024)
                                        : descriptor_bits<G::kBoxNBytes>(G::kTileK * G::kBoxNBytes, 8 * G::kBoxNBytes);
    const uint64_t desc_a =
        descriptor_at(descriptor_bits<128>(16, 1024), cute::cast_smem_ptr_to_uint(smem.a(stage)) + part_m * G::kPartRows * 128);
    const uint64_t desc_b = descriptor_at(bits_b, cute::cast_smem_ptr_to_uint(smem.b(stage)) + part_b);
    fence_accumulators(acc);
    cute::warpgroup_arrive();
#pragma unroll
    for (int kk = 0; kk < G::kTileK / 16; ++kk) {
      const int at_a = kk / 4 * G::kTileM * 128 + kk % 4 * 32;
      const int at_b = G::kKMajorB ? kk / 4 * G::kTileN * 128 + kk % 4 * 32 : kk * 16 * G::kBoxNBytes;
      const gmma::ScaleOut scale = kk == 0 && first ? gmma::ScaleOut::Zero : gmma::ScaleOut::One;
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        wgmma<G::kKMajorB>(desc_a + ((at_a + i * 64 * 128) >> 4), desc_b + (at_b >> 4), acc[i], scale);
      }
    }
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<G::kLag>();
    fence_accumulators(acc);
  }
  __device__ __forceinline__ void finish() {
    cute::warpgroup_wait<0>();
    fence_accumulators(acc);
  }
  __device__ __forceinline__ float4 quad(int index) const {
    return acc[index / (G::kPartColumns / 8)].quad(index % (G::kPartColumns / 8));
  }
};

__device__ __forceinline__ float added(float a, float b) { return a + b; }
__device__ __forceinline__ uint32_t added(uint32_t a, uint32_t b) {  // pairs of fp16
  uint32_t sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}

// In a register from here on: what would be computed again in a loop that waits is not.
__device__ __forceinline__ uint32_t kept(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// A warp's 16 rows.
template <class G>
struct MmaPart {
  static constexpr int kBlocks = G::kPartColumns / 8;
  static constexpr bool kTwoSums = kBlocks <= 2;  // few products beside each other would wait for those before them
  struct Row {
    MmaAccumulator<G::kAccFp16, G::kBf16> block[kBlocks];

    __device__ __forceinline__ uint32_t word(int nb, int half) const { return block[nb].word(half); }
  };
  Row acc[1];
  Row odd;  // sums of every second step of 16, if there are two
  int part_m = threadIdx.x / 32 % G::kPartsM;
  int part_n = threadIdx.x / 32 / G::kPartsM;
  // Where the lane reads, from the start of A and of B in a stage, by step of K; N-major B by pair of blocks in a box.
  uint32_t at_a[4];
  uint32_t at_b[4];

  // The lane's row, and the 16-byte chunks of it that it reads: every second one, swizzled as TMA does it by rows of 8.
  __device__ __forceinline__ MmaPart() {
    const int lane = threadIdx.x % 32;
    const int row_a = part_m * 16 + lane % 16;
    const int row_b = G::kKMajorB ? col() + lane % 8 + lane / 16 * 8 : lane % 16;
    const int chunk_b = G::kKMajorB ? lane / 8 % 2 : lane / 16;
    const int parts_b = G::kKMajorB ? 0 : part_n * (G::kPartColumns / G::kBoxN) * G::kTileK * G::kBoxNBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      at_a[i] = kept(swizzled_offset<128>(row_a, i * 2 + lane / 16));
      at_b[i] = kept(parts_b + swizzled_offset<G::kBoxNBytes>(row_b, (i * 2 + chunk_b) % (G::kBoxN / 8)));
    }
  }
  __device__ __forceinline__ int row() const { return part_m * 16 + threadIdx.x % 32 / 4; }
  __device__ __forceinline__ int col() const { return part_n * G::kPartColumns; }

  __device__ __forceinline__ void multiply(const SmallSmem<G>& smem, int stage, bool) {
    const uint32_t a = shared_address(smem.a(stage));
    const uint32_t b = shared_address(smem.b(stage));
#pragma unroll
    for (int sub = 0; sub < G::kTileK / 64; ++sub) {
      uint32_t fragments_a[4][4];
      uint32_t fragments_b[4][kBlocks / 2][4];
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
        load_matrices<false>(fragments_a[kk], a + at_a[kk] + sub * G::kTileM * 128);
#pragma unroll
        for (int j = 0; j < kBlocks / 2; ++j) load_b(fragments_b[kk][j], b, sub, kk, j);
      }
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
        Row& sums = kTwoSums && kk % 2 ? odd : acc[0];
#pragma unroll
        for (int nb = 0; nb < kBlocks; ++nb) {
          const uint32_t(&pair)[4] = fragments_b[kk][nb / 2];
          sums.block[nb].multiply_add(fragments_a[kk], pair[nb % 2 * 2], pair[nb % 2 * 2 + 1]);
        }
      }
    }
  }
  // 16 (K) x 16 (N): both halves of K of the first 8 columns, then of the next.
  __device__ __forceinline__ void load_b(uint32_t (&fragment)[4], uint32_t b, int sub, int kk, int j) const {
    if constexpr (G::kKMajorB) {  // rows are columns of B
      load_matrices<false>(fragment, b + at_b[kk] + (sub * G::kTileN + j * 16) * 128);
    } else {  // rows are K: transposed on the way
      const int box = j * 16 / G::kBoxN;
      load_matrices<true>(fragment, b + at_b[j * 16 % G::kBoxN / 16] + (box * G::kTileK + sub * 64 + kk * 16) * G::kBoxNBytes);
    }
  }
  __device__ __forceinline__ void finish() {
    if constexpr (kTwoSums) {
#pragma unroll
      for (int nb = 0; nb < kBlocks; ++nb) {
#pragma unroll
        for (int r = 0; r < (G::kAccFp16 ? 2 : 4); ++r) acc[0].block[nb].d[r] = added(acc[0].block[nb].d[r], odd.block[nb].d[r]);
      }
    }
  }
  __device__ __forceinline__ float4 quad(int nb) const {
    const auto& d = acc[0].block[nb].d;
    if constexpr (G::kAccFp16) {
      const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&d[0]));
      const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&d[1]));
      return make_float4(low.x, low.y, high.x, high.y);
    } else {
      return make_float4(d[0], d[1], d[2], d[3]);
    }
  }
};

template <class G, class Part>
__device__ __forceinline__ void multiply_share(const SmallWork<G>& work, const SmallSmem<G>& smem, Part& part) {
  StageCursor<G::kStages> cursor;
  StageCursor<G::kStages> freed;
#pragma unroll 1
  for (int kt = 0; kt < work.k_tiles; ++kt) {
    FullBarrier::wait(smem.full(cursor.stage), cursor.phase);
    part.multiply(smem, cursor.stage, kt == 0);
    if constexpr (G::kLag == 0) freed = cursor;
    const int next = kt - G::kLag + G::kStages;
    if (kt >= G::kLag && next < work.k_tiles) refill<G>(work, smem, next, freed);
    freed = cursor;
    cursor.step();
  }
  part.finish();
}

__device__ __forceinline__ uint32_t address_at_rank(uint32_t address, int rank) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

// 16 bytes to shared memory of a CTA of the cluster, counted by a barrier beside them.
__device__ __forceinline__ void send_quad(uint32_t to, uint32_t barrier, float4 quad) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "f"(quad.x),
               "f"(quad.y), "f"(quad.z), "f"(quad.w), "r"(barrier)
               : "memory");
}

// Until all that the cluster's CTAs send has come.
__device__ __forceinline__ void wait_for_sent(uint32_t barrier) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n .reg .pred p;\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier)
        : "memory");
  }
}

// Every quad goes to the slice that adds it, into this slice's own place there: a slot of kShare quads of all threads.
template <class G, class Part>
__device__ __forceinline__ void send_partials(const SmallSmem<G>& smem, const Part& part) {
  const uint32_t slot = shared_address(smem.received() + blockIdx.x * G::kShare * G::kThreads + threadIdx.x);
  const uint32_t barrier = shared_address(smem.all_received());
#pragma unroll
  for (int quad = 0; quad < G::kQuads; ++quad) {
    const int owner = quad / G::kShare;
    send_quad(address_at_rank(slot, owner) + quad % G::kShare * G::kThreads * 16, address_at_rank(barrier, owner), part.quad(quad));
  }
}

template <class G>
__device__ __forceinline__ float4 add_slots(const float4* quads) {
  float4 sum = quads[0];
#pragma unroll
  for (int slot = 1; slot < G::kSplitK; ++slot) {
    const float4 more = quads[slot * G::kShare * G::kThreads];
    sum.x += more.x;
    sum.y += more.y;
    sum.z += more.z;
    sum.w += more.w;
  }
  return sum;
}

// Adds this slice's share in the order of the slices, whenever they came: the result does not depend on timing.
template <class G>
__device__ __forceinline__ void store_sums(const SmallWork<G>& work, const SmallSmem<G>& smem, int row, int col) {
  constexpr int kBlocksN = G::kPartColumns / 8;
  constexpr bool kPairs = G::kShare % 2 == 0 && kBlocksN % 2 == 0;
  wait_for_sent(shared_address(smem.all_received()));
#pragma unroll
  for (int s = 0; s < G::kShare; s += kPairs ? 2 : 1) {
    const int quad = blockIdx.x * G::kShare + s;
    if (G::kQuads % G::kShare != 0 || G::kQuads / G::kShare < G::kSplitK) {
      if (quad >= G::kQuads) break;  // the last slices may have less, or nothing
    }
    const int r = row + quad / kBlocksN * 64;
    const int c = col + quad % kBlocksN * 8;
    const float4* from = smem.received() + s * G::kThreads + threadIdx.x;
    const float4 sum = add_slots<G>(from);
    const uint32_t low = pack_elements<G::kBf16>(sum.x, sum.y);
    const uint32_t high = pack_elements<G::kBf16>(sum.z, sum.w);
    if constexpr (kPairs) {
      const float4 next = add_slots<G>(from + G::kThreads);
      const uint32_t next_low = pack_elements<G::kBf16>(next.x, next.y);
      const uint32_t next_high = pack_elements<G::kBf16>(next.z, next.w);
      if (work.params.ldc % 8 == 0) {
        store_block_pair(work.params, r, c, low, high, next_low, next_high);
        continue;
      }
      store_pair(work.params, r, c + 8 + threadIdx.x % 4 * 2, next_low);
      store_pair(work.params, r + 8, c + 8 + threadIdx.x % 4 * 2, next_high);
    }
    store_pair(work.params, r, c + threadIdx.x % 4 * 2, low);
    store_pair(work.params, r + 8, c + threadIdx.x % 4 * 2, high);
  }
}

template <bool kWgmma, class G>
struct PartOf {
  using Type = WgmmaPart<G>;
};
template <class G>
struct PartOf<false, G> {
  using Type = MmaPart<G>;
};

template <class Config>
__device__ __forceinline__ void sm90_small(const GemmParams& params) {
  using G = SmallGeometry<Config>;
  extern __shared__ __align__(kAlignment) uint8_t smem_raw[];
  const SmallSmem<G> smem{smem_raw};
  const SmallWork<G> work(params);
  if (threadIdx.x < 32) {
    if (cute::elect_one_sync()) start<G>(work, smem);  // elected, so that the compiler knows the lane to be alone
  }
  __syncthreads();
  if constexpr (G::kSplitK > 1) cluster_arrive_relaxed();  // what peers send can be counted; the wait is behind the products

  typename PartOf<G::kWgmma, G>::Type part;
  multiply_share<G>(work, smem, part);
  const int row = work.row + part.row();
  const int col = work.col + part.col();
  if constexpr (G::kSplitK > 1) {
    cluster_wait();
    send_partials<G>(smem, part);
    store_sums<G>(work, smem, row, col);  // no CTA that adds leaves before its peers' last quads have come
  } else {
    store_rows<typename G::Part>(params, part.acc, row, col);
  }
}

}  // namespace cudal2
