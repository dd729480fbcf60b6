// Clusters of CTAs on a CPU: every thread a fiber, shared memory and barriers of each CTA, and transfers that land as
// early or as late as they may.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

namespace cudal2 {
alignas(1024) extern unsigned char smem_raw[];  // what the kernel declares: that of the CTA whose fiber runs
}

namespace emulation {

constexpr int kSharedBytes = 232448;
constexpr uint32_t kSharedBase = 1024 + 16;  // as aligned as dynamic shared memory is bound to be, and no more
constexpr size_t kStack = 96 * 1024;

struct Dim {
  int x;
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<unsigned char[]> stack{new unsigned char[kStack]};
  bool done = false;
  std::function<bool()> awaited;  // it goes on when this holds, if it is anything
  std::vector<std::vector<std::function<void()>>> products{1};  // of wgmma: committed groups, then the open one
  std::vector<std::function<void()>> stores;                    // TMA stores that have not read shared memory yet
  int cluster_phase = 0;
};

struct NamedBarrier {
  int arrived = 0;
  int generation = 0;
};

struct TransactionBarrier {
  bool made = false;
  int expected = 0;
  int pending = 0;
  long bytes = 0;  // still to come
  int phase = 0;
};

struct ClusterBarrier {
  int arrived = 0;
  int phase = 0;
};

struct Cta {
  std::vector<Fiber> fibers;
  std::vector<unsigned char> memory;
  std::map<int, NamedBarrier> named;
  std::map<uint32_t, TransactionBarrier> barriers;
  int running = 0;
  uint32_t posted[512][2];  // by thread: a word, an address
};

struct Machine {
  std::vector<Cta> ctas;
  ucontext_t scheduler;
  int cta = 0, thread = 0, first_block = 0, blocks = 0, smem_bytes = 0;
  bool loads_early = false;     // else a load lands when nothing else can happen, the last issued first,
  bool products_early = false;  // and a product or a store reads when something waits for it
  bool progress = false;
  std::vector<std::function<void()>> transfers;  // TMA loads under way
  int cluster = 1;                        // CTAs in one
  std::vector<ClusterBarrier> clusters;   // by the first of its CTAs
  std::set<const void*> loaded, fetched;  // 16 bytes of an operand each: by loads, and into L2
  std::pair<const uint16_t*, const uint16_t*> result;       // C
  std::unordered_set<const void*> stored;  // elements of C, by stores that say what they store
  long stored_chunks = 0;                   // of 16 bytes, among them
  std::vector<std::pair<const void*, const void*>> operands;  // that plain loads may read
  int polls = 0;  // of global memory, in this run
  std::string error;
};

inline Machine machine;

inline void fail(const std::string& what) {
  if (machine.error.empty()) machine.error = what;
}
inline int first_of_cluster() { return machine.cta / machine.cluster * machine.cluster; }
inline ClusterBarrier& cluster() { return machine.clusters[first_of_cluster()]; }
inline Cta& here() { return machine.ctas[machine.cta]; }
inline Fiber& self() { return here().fibers[machine.thread]; }

inline void yield() { swapcontext(&self().context, &machine.scheduler); }
template <class Condition>
void wait_until(Condition met) {
  if (!met()) {
    self().awaited = met;  // asked by the scheduler: to switch to a thread that only asks again is most of the time
    yield();
  }
  machine.progress = true;
}

// Shared memory of any CTA of the cluster; nobody may touch that of one that has ended.
inline unsigned char* shared_at(int cta, uint32_t address, uint32_t bytes) {
  const uint32_t at = address - kSharedBase;
  if (at + bytes > uint32_t(machine.smem_bytes)) fail("shared address " + std::to_string(address) + " is outside what the launch gives");
  if (machine.ctas[cta].running == 0) fail("a CTA touches shared memory of one that has ended");
  return (cta == machine.cta ? cudal2::smem_raw : machine.ctas[cta].memory.data()) + (at + bytes > uint32_t(machine.smem_bytes) ? 0 : at);
}
inline uint32_t address_of(const void* pointer) {
  return uint32_t(static_cast<const unsigned char*>(pointer) - cudal2::smem_raw) + kSharedBase;
}

// The 16-byte chunks of a row of `span` bytes are permuted by the row: a function of the address alone (PTX ISA).
inline uint32_t swizzled(uint32_t address, int span) {
  const uint32_t rows = span == 128 ? 7 : span == 64 ? 3 : 1;
  return address ^ ((address >> 7 & rows) << 4);
}

inline void named_sync(int id, int threads, bool wait) {
  NamedBarrier& barrier = here().named[id];
  const int generation = barrier.generation;
  machine.progress = true;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.generation;
  } else if (wait) {
    wait_until([&barrier, generation] { return barrier.generation != generation; });
  }
}
inline void sync_warp() { named_sync(1000 + machine.thread / 32, 32, true); }

inline TransactionBarrier& barrier_at(int cta, uint32_t address) {
  TransactionBarrier& barrier = machine.ctas[cta].barriers[address];
  if (!barrier.made) fail("a barrier is used before it is made");
  if (machine.ctas[cta].running == 0) fail("an arrival at a CTA that has ended");
  return barrier;
}
inline void update(TransactionBarrier& barrier, int arrivals, long bytes) {
  barrier.pending -= arrivals;
  barrier.bytes += bytes;
  machine.progress = true;
  if (barrier.pending < 0) fail("more arrivals at a barrier than it counts");
  if (barrier.pending == 0 && barrier.bytes == 0) {
    barrier.phase ^= 1;
    barrier.pending = barrier.expected;
  }
}

// What is under way lands now, or when nothing else can happen.
inline void under_way(std::function<void()> transfer) {
  if (machine.loads_early) return transfer();
  machine.transfers.push_back(std::move(transfer));
}

}  // namespace emulation
