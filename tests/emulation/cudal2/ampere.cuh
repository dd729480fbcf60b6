// The instructions of kernels/include/cudal2/ampere.cuh on a CPU: same names, same meaning, and every liberty that the
// hardware has taken against the kernel: copies land as late, or as early, as they may.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cudal2/element.cuh"

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__
#define __align__(n)

namespace cudal2 {
alignas(1024) unsigned char smem[256 * 1024];  // what the kernel declares extern
}

namespace emulation {

struct Dim {
  int x;
};
struct Copy {
  uint32_t to;
  unsigned char bytes[16];
  int size;
};

constexpr int kWarp = 32;
constexpr size_t kStack = 128 * 1024;

struct Fiber {
  ucontext_t context;
  std::unique_ptr<unsigned char[]> stack{new unsigned char[kStack]};
  bool done = false;
  std::vector<std::vector<Copy>> groups{1};  // committed ones, then the open one
};

struct Barrier {
  int arrived = 0;
  int generation = 0;
};

struct Machine {
  std::vector<Fiber> fibers;
  std::vector<Barrier> warps;
  Barrier block;
  ucontext_t scheduler;
  int current = 0;
  int block_index = 0;
  bool early = false;          // copies land when issued, not when waited for
  uint32_t smem_bytes = 0;
  const unsigned char* operands[2][2];  // first byte of A and B, and the byte after the last
  uint32_t addresses[1024];
  uint32_t words[1024][6];
  float floats[1024][4];
  std::string error;
  std::set<const void*> stored;  // elements of C, where that is seen
  long conflicts = 0;          // of ldmatrix: extra passes over the banks
};

inline Machine machine;

inline void fail(const std::string& what) {
  if (machine.error.empty()) machine.error = what;
}
inline Fiber& self() { return machine.fibers[machine.current]; }
inline void yield() {
  const int me = machine.current;
  swapcontext(&machine.fibers[me].context, &machine.scheduler);
}
inline void wait_for_all(Barrier& barrier, int count) {
  const int generation = barrier.generation;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  while (barrier.generation == generation) yield();
}
inline void sync_warp() { wait_for_all(machine.warps[machine.current / kWarp], kWarp); }

inline bool in_operand(const void* from, int size) {
  const auto* at = static_cast<const unsigned char*>(from);
  for (const auto& [first, end] : machine.operands) {
    if (at >= first && at + size <= end) return true;
  }
  fail("a copy reads outside A and B");
  return false;
}

inline void land(const Copy& copy) { std::memcpy(&cudal2::smem[copy.to], copy.bytes, copy.size); }
inline bool in_shared(uint32_t at, int size) {
  if (at + size <= machine.smem_bytes && at % size == 0) return true;
  fail("shared address " + std::to_string(at) + " is misaligned or beyond " + std::to_string(machine.smem_bytes));
  return false;
}

}  // namespace emulation

#define threadIdx (::emulation::Dim{::emulation::machine.current})
#define blockIdx (::emulation::Dim{::emulation::machine.block_index})
struct uint4 {
  uint32_t x, y, z, w;
};
using std::min;
inline void __syncthreads() { emulation::wait_for_all(emulation::machine.block, int(emulation::machine.fibers.size())); }

namespace cudal2 {

using emulation::machine;

inline uint32_t shared_address(const void* pointer) {
  return uint32_t(static_cast<const unsigned char*>(pointer) - smem);
}

template <int kBytes>
void copy_async(uint32_t to, const void* from, bool inside) {
  emulation::Copy copy{to, {}, kBytes};
  if (!emulation::in_shared(to, kBytes)) return;
  if (inside) {
    if (reinterpret_cast<uintptr_t>(from) % kBytes) emulation::fail("cp.async of " + std::to_string(kBytes) + " bytes from a misaligned address");
    if (!emulation::in_operand(from, kBytes)) return;
    std::memcpy(copy.bytes, from, kBytes);
  }
  if (machine.early) emulation::land(copy);
  emulation::self().groups.back().push_back(copy);
}

inline void commit_copies() { emulation::self().groups.emplace_back(); }

template <int kPending>
void wait_copies() {
  auto& groups = emulation::self().groups;
  while (int(groups.size()) - 1 > kPending) {
    if (!machine.early) {
      for (const auto& copy : groups.front()) emulation::land(copy);
    }
    groups.erase(groups.begin());
  }
}

inline void store_shared(uint32_t to, const uint32_t (&words)[4]) {
  if (emulation::in_shared(to, 16)) std::memcpy(&cudal2::smem[to], words, 16);
}

template <bool kTranspose>
void load_matrices(uint32_t (&r)[4], uint32_t address) {
  const int me = machine.current, first = me / 32 * 32, lane = me % 32;
  machine.addresses[me] = emulation::in_shared(address, 16) ? address : 0;
  emulation::sync_warp();
  for (int matrix = 0; matrix < 4; ++matrix) {
    const uint32_t* rows = &machine.addresses[first + matrix * 8];
    uint16_t pair[2];
    for (int e = 0; e < 2; ++e) {
      const int row = kTranspose ? lane % 4 * 2 + e : lane / 4;
      const int column = kTranspose ? lane / 4 : lane % 4 * 2 + e;
      std::memcpy(&pair[e], &cudal2::smem[rows[row] + column * 2], 2);
    }
    r[matrix] = pair[0] | uint32_t(pair[1]) << 16;
    if (lane == 0) {
      int groups[8] = {};
      for (int row = 0; row < 8; ++row) ++groups[rows[row] / 16 % 8];
      machine.conflicts += *std::max_element(groups, groups + 8) - 1;
    }
  }
  emulation::sync_warp();
}

// Element (row, k) of A and (k, column) of B as the PTX ISA lays m16n8k16 out over the lanes of a warp.
template <bool kBf16>
float mma_element(int first, int row, int column) {
  float sum = 0;
  for (int k = 0; k < 16; ++k) {
    const uint32_t a = machine.words[first + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
    const uint32_t b = machine.words[first + column * 4 + k % 8 / 2][4 + k / 8];
    sum += k % 2 ? emulation::high<kBf16>(a) * emulation::high<kBf16>(b) : emulation::low<kBf16>(a) * emulation::low<kBf16>(b);
  }
  return sum;
}

inline int post_operands(const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  uint32_t(&words)[6] = machine.words[machine.current];
  std::copy(a, a + 4, words);
  words[4] = b0;
  words[5] = b1;
  emulation::sync_warp();
  return machine.current / 32 * 32;
}

template <bool kAccFp16, bool kBf16>
struct MmaAccumulator;

template <bool kBf16>
struct MmaAccumulator<false, kBf16> {
  float d[4] = {0.f, 0.f, 0.f, 0.f};

  void multiply_add(const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const int first = post_operands(a, b0, b1), lane = machine.current % 32;
    for (int i = 0; i < 4; ++i) d[i] += mma_element<kBf16>(first, lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
    emulation::sync_warp();
  }
  uint32_t word(int half) const { return pack_elements<kBf16>(d[half * 2], d[half * 2 + 1]); }
};

template <>
struct MmaAccumulator<true, false> {
  uint32_t d[2] = {0, 0};

  void multiply_add(const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const int first = post_operands(a, b0, b1), lane = machine.current % 32;
    for (int i = 0; i < 2; ++i) {
      const float left = mma_element<false>(first, lane / 4 + i * 8, lane % 4 * 2);
      const float right = mma_element<false>(first, lane / 4 + i * 8, lane % 4 * 2 + 1);
      d[i] = pack_elements<false>(emulation::low<false>(d[i]) + left, emulation::high<false>(d[i]) + right);
    }
    emulation::sync_warp();
  }
  uint32_t word(int half) const { return d[half]; }
};

inline void follow_previous_grid() {}

}  // namespace cudal2
