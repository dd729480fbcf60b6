// The instructions that the sm90_ws kernel uses, by the names that CuTe, CUTLASS and hopper.cuh give them.
#pragma once

#include "machine.h"

#include <algorithm>
#include <initializer_list>
#include <tuple>
#include <utility>

#include "cudal2/element.cuh"

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__
#define threadIdx (::emulation::Dim{::emulation::machine.thread})
#define blockIdx (::emulation::Dim{::emulation::machine.first_block + ::emulation::machine.cta})
#define gridDim (::emulation::Dim{::emulation::machine.blocks})

struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
struct __half2 {
  uint16_t x, y;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 __half22float2(__half2 pair) { return {emulation::to_float<false>(pair.x), emulation::to_float<false>(pair.y)}; }
// Behind the last tile the raster divides by zero, which on a GPU gives a number that nobody uses.
inline int min(int a, int b) { return std::max(std::min(a, b), 1); }
inline void __syncthreads() { emulation::named_sync(0, int(emulation::here().fibers.size()), true); }

namespace emulation {

// Every lane of the warp gives a word and gets another thread's.
inline uint32_t exchange(uint32_t word, int from) {
  auto& posted = here().posted;
  posted[machine.thread][0] = word;
  sync_warp();
  const uint32_t got = posted[from][0];
  sync_warp();
  return got;
}

}  // namespace emulation

inline uint32_t __shfl_xor_sync(uint32_t, uint32_t word, int mask) { return emulation::exchange(word, emulation::machine.thread ^ mask); }
inline uint32_t __shfl_down_sync(uint32_t, uint32_t word, int by) {
  const int lane = emulation::machine.thread % 32;
  return emulation::exchange(word, emulation::machine.thread + (lane + by < 32 ? by : 0));
}
inline uint32_t __shfl_sync(uint32_t, uint32_t word, int lane, int width = 32) {
  return emulation::exchange(word, emulation::machine.thread / width * width + lane % width);
}
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t by) { return uint32_t(((uint64_t(high) << 32 | low) << by) >> 32); }

namespace cute {

template <class T, T... I>
using integer_sequence = std::integer_sequence<T, I...>;
template <class T, T N>
using make_integer_sequence = std::make_integer_sequence<T, N>;

using emulation::machine;

inline uint32_t cast_smem_ptr_to_uint(const void* pointer) { return emulation::address_of(pointer); }
inline int block_rank_in_cluster() { return machine.cta - emulation::first_of_cluster(); }
inline bool elect_one_sync() { return machine.thread % 32 == 0; }
struct TmaDescriptor {};
inline void prefetch_tma_descriptor(const TmaDescriptor*) {}

// What the test puts into a tensor map.
struct Map {
  uint16_t* matrix;
  int64_t columns, rows, box_columns, box_rows;

  explicit Map(const void* map) { std::memcpy(this, map, sizeof(Map)); }
  int span() const { return int(box_columns) * 2; }
  // Calls `see` with each 16 bytes of the matrix that are in a box.
  template <class See>
  void each_chunk(int x, int y, See see) const {
    for (int64_t r = y; r < std::min(y + box_rows, rows); ++r) {
      for (int64_t c = x; c < std::min(x + box_columns, columns); c += 8) see(matrix + r * columns + c);
    }
  }
  // Calls `move` with each element's shared address and its place in the matrix, null outside.
  template <class Move>
  void each(uint32_t at, int x, int y, Move move) const {
    if (at % (span() * 8) != 0) emulation::fail("a box does not begin where its swizzle does");
    for (int64_t r = 0; r < box_rows; ++r) {
      for (int64_t c = 0; c < box_columns; ++c) {
        const bool inside = y + r < rows && x + c < columns && x >= 0 && y >= 0;
        move(emulation::swizzled(uint32_t(at + r * span() + c * 2), span()), inside ? matrix + (y + r) * columns + x + c : nullptr);
      }
    }
  }
};

struct SM90_TMA_LOAD_MULTICAST_2D {
  static void copy(const void* map, uint64_t* barrier, uint16_t mask, uint64_t, void* to, int x, int y) {
    const Map box(map);
    const uint32_t at = cast_smem_ptr_to_uint(to), done = cast_smem_ptr_to_uint(barrier);
    const int first = emulation::first_of_cluster();
    box.each_chunk(x, y, [](const void* chunk) { machine.loaded.insert(chunk); });
    for (int cta = first; cta < first + machine.cluster; ++cta) {
      if (!(mask >> (cta - first) & 1)) continue;
      emulation::under_way([=] {
        box.each(at, x, y, [&](uint32_t address, const uint16_t* element) {
          const uint16_t value = element ? *element : 0;
          std::memcpy(emulation::shared_at(cta, address, 2), &value, 2);
        });
        emulation::update(emulation::barrier_at(cta, done), 0, -box.box_rows * box.span());
      });
    }
    if (mask >> machine.cluster) emulation::fail("a multicast to a CTA that is not in the cluster");
  }
};
struct SM90_TMA_LOAD_2D {
  static void copy(const void* map, uint64_t* barrier, uint64_t hint, void* to, int x, int y) {
    SM90_TMA_LOAD_MULTICAST_2D::copy(map, barrier, uint16_t(1 << (machine.cta - emulation::first_of_cluster())), hint, to, x, y);
  }
  struct PREFETCH {
    // Nothing moves.
    static void copy(const void* map, int x, int y) {
      Map(map).each_chunk(x, y, [](const void* chunk) { machine.fetched.insert(chunk); });
    }
  };
};
struct SM90_TMA_STORE_2D {
  static void copy(const void* map, const void* from, int x, int y) {
    const Map box(map);
    const uint32_t at = cast_smem_ptr_to_uint(from);
    const int cta = machine.cta;
    auto store = [=] {
      box.each(at, x, y, [&](uint32_t address, uint16_t* element) {
        if (element) std::memcpy(element, emulation::shared_at(cta, address, 2), 2);
      });
    };
    if (machine.products_early) return store();
    emulation::self().stores.push_back(store);
  }
};
inline void tma_store_arrive() {}
template <int kPending>
void tma_store_wait() {
  auto& stores = emulation::self().stores;  // each is a group of its own
  while (int(stores.size()) > kPending) {
    stores.front()();
    stores.erase(stores.begin());
  }
}

inline void warpgroup_arrive() {}
inline void warpgroup_commit_batch() { emulation::self().products.emplace_back(); }
template <int kPending>
void warpgroup_wait() {
  auto& groups = emulation::self().products;
  while (int(groups.size()) - 1 > kPending) {
    for (auto& product : groups.front()) product();
    groups.erase(groups.begin());
  }
  // The four warps of a group multiply as one: none reads on while another has not read.
  emulation::named_sync(2000 + machine.thread / 128, 128, true);
}
template <class T>
void warpgroup_fence_operand(T&) {}

namespace SM90::GMMA {

enum class Major { K, MN };
enum class ScaleOut { Zero, One };

// Element (row, k) of an operand in shared memory (PTX ISA, matrix descriptors and canonical layouts).
template <Major kMajor>
float element(uint64_t descriptor, int row, int k, float (*value)(uint16_t)) {
  const uint32_t start = uint32_t(descriptor & 0x3FFF) << 4, leading = uint32_t(descriptor >> 16 & 0x3FFF) << 4;
  const uint32_t stride = uint32_t(descriptor >> 32 & 0x3FFF) << 4;
  const int span = 256 >> (descriptor >> 62);
  const uint32_t at = kMajor == Major::K ? start + row / 8 * stride + row % 8 * span + k * 2
                                         : start + row * 2 / span * leading + k / 8 * stride + k % 8 * span + row * 2 % span;
  uint16_t bits;
  std::memcpy(&bits, emulation::shared_at(machine.cta, emulation::swizzled(at, span), 2), 2);
  return value(bits);
}

template <int kN, bool kAccFp16, bool kBf16, Major kMajorA, Major kMajorB>
struct Wgmma {
  template <class Element, class... Rest>
  static void fma(uint64_t a, uint64_t b, Element& first, Rest&&... rest) {
    Element* d = &first;
    const ScaleOut scale = std::get<sizeof...(Rest) - 1>(std::tuple<Rest&...>(rest...));
    static_assert(sizeof...(Rest) == (kAccFp16 ? kN / 4 : kN / 2), "as many registers as the instruction has, and the scale");
    auto product = [=] { multiply(a, b, d, scale == ScaleOut::One); };
    if (machine.products_early) return product();
    emulation::self().products.back().push_back(product);
  }

  template <class Element>
  static void multiply(uint64_t a, uint64_t b, Element* d, bool add) {
    const auto value = emulation::to_float<kBf16>;
    const int lane = machine.thread % 32, top = machine.thread % 128 / 32 * 16 + lane / 4;
    float rows[2][16];
    for (int i = 0; i < 32; ++i) rows[i / 16][i % 16] = element<kMajorA>(a, top + i / 16 * 8, i % 16, value);
    for (int column = 0; column < kN / 4; ++column) {
      const int nb = column / 2, e = column % 2;
      float sums[2] = {};
      for (int k = 0; k < 16; ++k) {
        const float right = element<kMajorB>(b, nb * 8 + lane % 4 * 2 + e, k, value);
        for (int half = 0; half < 2; ++half) sums[half] += rows[half][k] * right;
      }
      for (int half = 0; half < 2; ++half) {
        if constexpr (kAccFp16) {
          uint16_t pair[2];
          std::memcpy(pair, &d[nb * 2 + half], 4);
          pair[e] = emulation::from_float<false>((add ? emulation::to_float<false>(pair[e]) : 0.f) + sums[half]);
          std::memcpy(&d[nb * 2 + half], pair, 4);
        } else {
          float& sum = d[nb * 4 + half * 2 + e];
          sum = (add ? sum : 0.f) + sums[half];
        }
      }
    }
  }
};

#define WIDTH(N)                                                                          \
  template <Major kA, Major kB>                                                           \
  using MMA_64x##N##x16_F32F16F16_SS = Wgmma<N, false, false, kA, kB>;                    \
  template <Major kA, Major kB>                                                           \
  using MMA_64x##N##x16_F32BF16BF16_SS = Wgmma<N, false, true, kA, kB>;                   \
  template <Major kA, Major kB>                                                           \
  using MMA_64x##N##x16_F16F16F16_SS = Wgmma<N, true, false, kA, kB>;
WIDTH(8) WIDTH(16) WIDTH(24) WIDTH(32) WIDTH(40) WIDTH(48) WIDTH(56) WIDTH(64) WIDTH(72) WIDTH(80) WIDTH(88) WIDTH(96)
WIDTH(104) WIDTH(112) WIDTH(120) WIDTH(128) WIDTH(136) WIDTH(144) WIDTH(152) WIDTH(160) WIDTH(168) WIDTH(176) WIDTH(184)
WIDTH(192) WIDTH(200) WIDTH(208) WIDTH(216) WIDTH(224) WIDTH(232) WIDTH(240) WIDTH(248) WIDTH(256)
#undef WIDTH

}  // namespace SM90::GMMA
}  // namespace cute

namespace cutlass::arch {

using emulation::machine;

struct ClusterBarrier {
  static void init(uint64_t* barrier, int count) { emulation::here().barriers[emulation::address_of(barrier)] = {true, count, count, 0, 0}; }
  static void wait(uint64_t* barrier, uint32_t phase) {
    auto& state = emulation::barrier_at(machine.cta, emulation::address_of(barrier));
    emulation::wait_until([&state, phase] { return state.phase != int(phase); });
  }
  static void arrive(uint64_t* barrier) { arrive(barrier, machine.cta - emulation::first_of_cluster(), 1); }
  static void arrive(uint64_t* barrier, int cta, uint32_t predicate) {
    if (!predicate) return;
    emulation::update(emulation::barrier_at(emulation::first_of_cluster() + cta, emulation::address_of(barrier)), 1, 0);
    emulation::yield();  // whoever waits for it may go on before this thread does
  }
};
struct ClusterTransactionBarrier : ClusterBarrier {
  static void arrive_and_expect_tx(uint64_t* barrier, uint32_t bytes) {
    emulation::update(emulation::barrier_at(machine.cta, emulation::address_of(barrier)), 1, bytes);
  }
};
inline void fence_barrier_init() {}
inline void fence_view_async_shared() {}
template <int>
void warpgroup_reg_alloc() {}
template <int>
void warpgroup_reg_dealloc() {}

}  // namespace cutlass::arch

namespace cudal2 {

using emulation::machine;

inline void barrier_sync(int id, int threads) { emulation::named_sync(id, threads, true); }
inline void barrier_arrive(int id, int threads) { emulation::named_sync(id, threads, false); }
inline void wait_for_previous_grid() {}
inline void fence_async_proxy() {}
inline uint4 from_next_lane(uint4 value) {
  return make_uint4(__shfl_down_sync(~0u, value.x, 1), __shfl_down_sync(~0u, value.y, 1), __shfl_down_sync(~0u, value.z, 1),
                    __shfl_down_sync(~0u, value.w, 1));
}
inline void allow_next_grid() {}

inline void cluster_arrive_relaxed() {
  const int threads = machine.cluster * int(emulation::here().fibers.size());
  auto& barrier = emulation::cluster();
  emulation::self().cluster_phase = barrier.phase;
  machine.progress = true;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.phase;
  }
}
inline void cluster_wait() {
  const int phase = emulation::self().cluster_phase;
  auto& barrier = emulation::cluster();
  emulation::wait_until([&barrier, phase] { return barrier.phase != phase; });
}
inline void cluster_barrier() {
  cluster_arrive_relaxed();
  cluster_wait();
}

// Element j of row i of a matrix is in half j % 2 of lane 4 i + j / 2; transposed, it is stored at column i of row j.
inline void store_matrices(uint32_t address, std::initializer_list<uint32_t> words, bool transposed) {
  const int me = machine.thread, first = me / 32 * 32, lane = me % 32;
  auto& posted = emulation::here().posted;
  posted[me][1] = address;
  emulation::sync_warp();
  int matrix = 0;
  for (const uint32_t word : words) {
    for (int e = 0; e < 2; ++e) {
      const int i = lane / 4, j = lane % 4 * 2 + e;
      const uint32_t row = posted[first + matrix * 8 + (transposed ? j : i)][1];
      const uint16_t element = uint16_t(word >> e * 16);
      if (row % 16 != 0) emulation::fail("stmatrix to a misaligned row");
      std::memcpy(emulation::shared_at(machine.cta, row + (transposed ? i : j) * 2, 2), &element, 2);
    }
    if (lane == 0) {
      uint32_t chunks = 0;
      for (int row = 0; row < 8; ++row) chunks |= 1u << (posted[first + matrix * 8 + row][1] / 16 % 8);
      if (chunks != 0xFF) emulation::fail("bank conflicts of stmatrix");
    }
    ++matrix;
  }
  emulation::sync_warp();
}
inline void stmatrix_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  store_matrices(address, {r0, r1, r2, r3}, false);
}
inline void stmatrix_trans_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  store_matrices(address, {r0, r1, r2, r3}, true);
}
inline void stmatrix_trans_x2(uint32_t address, uint32_t r0, uint32_t r1) { store_matrices(address, {r0, r1}, true); }

inline uint32_t transpose_matrix(uint32_t word) {
  const int me = machine.thread, first = me / 32 * 32, lane = me % 32;
  auto& posted = emulation::here().posted;
  posted[me][0] = word;
  emulation::sync_warp();
  uint32_t transposed = 0;
  for (int e = 0; e < 2; ++e) {
    const int i = lane % 4 * 2 + e, j = lane / 4;
    transposed |= uint32_t(uint16_t(posted[first + i * 4 + j / 2][0] >> j % 2 * 16)) << e * 16;
  }
  emulation::sync_warp();
  return transposed;
}

inline float4 load_from_rank(uint32_t address, uint32_t rank) {
  float4 value;
  std::memcpy(&value, emulation::shared_at(emulation::first_of_cluster() + int(rank), address, 16), 16);
  return value;
}

// Whoever reads a ticket lets the others run first; that alone keeps no load from landing for ever.
inline uint32_t load_acquire(const uint32_t* at) {
  if (++machine.polls > 100'000) emulation::fail("a thread waits for ever");
  emulation::yield();
  machine.progress = true;
  return *at;
}
inline uint32_t fetch_add_relaxed(uint32_t* at, uint32_t value) {
  const uint32_t before = *at;
  *at += value;
  return before;
}
inline uint32_t fetch_add_acq_rel(uint32_t* at, uint32_t value) { return fetch_add_relaxed(at, value); }
inline void store_relaxed(uint32_t* at, uint32_t value) { *at = value; }
inline float4 load_shared_by_gpu(const float4* at) { return *at; }
inline void store_shared_by_gpu(float4* at, float4 value) { *at = value; }
template <class T>
T load_operand(const T* at) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(T) != 0) emulation::fail("a load from a misaligned address");
  for (const auto& [begin, end] : machine.operands) {
    if (at >= begin && at + 1 <= end) return *at;
  }
  emulation::fail("a load from outside the operands");
  return {};
}
inline uint4 load_vector(const uint4* at) {
  // One CTA is far behind the others, who have to wait for what it copies.
  for (int turn = 0; machine.cta == 0 && turn < 4; ++turn) {
    machine.progress = true;
    emulation::yield();
  }
  return load_operand(at);
}
inline uint16_t* kept(uint16_t* at) { return at; }
template <class T>
void store_piece(uint16_t* at, T value) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(T) != 0) emulation::fail("a store to a misaligned address");
  if (at < machine.result.first || at + sizeof(T) / 2 > machine.result.second) return emulation::fail("a store outside C");
  for (const uint16_t* element = at; element < at + sizeof(T) / 2; ++element) {
    if (!machine.stored.insert(element).second) emulation::fail("an element stored twice");
  }
  machine.stored_chunks += sizeof(T) == 16;
  std::memcpy(at, &value, sizeof(T));
}
inline uint16_t load_element(const uint16_t* at) { return load_operand(at); }
inline void store_tensor_evict_first(const void* map, const void* from, int x, int y) { cute::SM90_TMA_STORE_2D::copy(map, from, x, y); }

}  // namespace cudal2
