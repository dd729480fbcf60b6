// Runs a rendered sm90_ws kernel, some of its clusters at a time; see tests/test_sm90_ws_emulated.py.
#include <tuple>

#include "kernel.cu"

namespace cudal2 {
alignas(1024) unsigned char smem_raw[emulation::kSharedBytes];
}

namespace {

using emulation::machine;

const void* params;

// The kernel takes the struct of its kind by value.
template <class Params>
void call(void (*kernel)(Params)) {
  kernel(*static_cast<const Params*>(params));
}

void thread_main() {
  call(cudal2_gemm);
  for (auto& store : emulation::self().stores) emulation::fail("a thread ends before its TMA store has read"), (void)store;
  emulation::self().done = true;
  --emulation::here().running;
  machine.progress = true;
  while (true) emulation::yield();
}

void enter(int cta) {
  if (cta == machine.cta) return;
  std::memcpy(emulation::here().memory.data(), cudal2::smem_raw, machine.smem_bytes);
  machine.cta = cta;
  std::memcpy(cudal2::smem_raw, emulation::here().memory.data(), machine.smem_bytes);
}

void start(int ctas) {
  machine.clusters.assign(ctas, {});
  machine.transfers.clear();
  machine.ctas.resize(ctas);
  for (auto& cta : machine.ctas) {
    cta.fibers.resize(Config::kThreads);
    cta.memory.assign(machine.smem_bytes, 0xFF);  // NaNs
    cta.named.clear();
    cta.barriers.clear();
    cta.running = Config::kThreads;
    for (auto& fiber : cta.fibers) {
      fiber.done = false;
      fiber.awaited = nullptr;
      fiber.products.assign(1, {});
      fiber.stores.clear();
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = emulation::kStack;
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, thread_main, 0);
    }
  }
  machine.cta = 0;
  std::memset(cudal2::smem_raw, 0xFF, machine.smem_bytes);
}

// Threads run in no order that a kernel may rely on: the last first where loads land late.
int in_turn(int i, int count) { return machine.loads_early ? i : count - 1 - i; }

void run_ctas() {
  for (bool running = true; running && machine.error.empty();) {
    running = machine.progress = false;
    for (int i = 0; i < int(machine.ctas.size()); ++i) {
      enter(in_turn(i, int(machine.ctas.size())));
      for (int j = 0; j < Config::kThreads; ++j) {
        machine.thread = in_turn(j, Config::kThreads);
        auto& fiber = emulation::self();
        if (fiber.done) continue;
        running = true;
        if (fiber.awaited && !fiber.awaited()) continue;
        fiber.awaited = nullptr;
        swapcontext(&machine.scheduler, &fiber.context);
      }
    }
    if (!running || machine.progress) continue;
    if (machine.transfers.empty()) return emulation::fail("every thread waits for ever");
    const auto land = std::move(machine.transfers.back());  // loads keep no order either
    machine.transfers.pop_back();
    land();
  }
  if (machine.error.empty() && !machine.transfers.empty()) emulation::fail("loads are under way when the cluster has ended");
}

}  // namespace

// `together` CTAs run at the same time: a cluster, or with a workspace several.
extern "C" const char* run(const void* given, int blocks, int cluster, int smem_bytes, int loads_early, int together) {
  params = given;
  machine.cluster = cluster;
  machine.error.clear();
  machine.polls = 0;
  machine.loads_early = loads_early;
  machine.products_early = !loads_early;
  machine.smem_bytes = smem_bytes;
  machine.blocks = blocks;
  machine.loaded.clear();
  machine.fetched.clear();
  machine.stored.clear();
  machine.stored_chunks = 0;
  for (machine.first_block = 0; machine.first_block < blocks && machine.error.empty(); machine.first_block += together) {
    start(std::min(together, blocks - machine.first_block));
    run_ctas();
  }
  for (const void* chunk : machine.fetched) {
    if (!machine.loaded.count(chunk)) emulation::fail("fetched into L2 and never loaded");
  }
  return machine.error.c_str();
}

// An operand that plain loads of the next runs may read.
extern "C" void may_read(const void* begin, const void* end) { machine.operands.emplace_back(begin, end); }

// C of the next runs, for stores that say what they store.
extern "C" void may_store(const uint16_t* begin, const uint16_t* end) { machine.result = {begin, end}; }

// Of all operands, in the last run.
extern "C" long fetched_bytes() { return long(machine.fetched.size()) * 16; }

// In the last run, by such stores.
extern "C" long stored_elements() { return long(machine.stored.size()); }
extern "C" long stored_chunks() { return machine.stored_chunks; }
