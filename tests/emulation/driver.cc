// Runs a rendered sm80_mma kernel block after block, every thread a fiber; see tests/test_sm80_mma_emulated.py.
#include "kernel.cu"

namespace {

const cudal2::MmaParams* params;

template <class Params>
void launch(void (*kernel)(Params)) {
  kernel(*static_cast<const Params*>(params));
}

void thread_main() {
  launch(cudal2_gemm);
  emulation::self().done = true;
  while (true) emulation::yield();
}

void run_block(int block, int smem_bytes) {
  auto& machine = emulation::machine;
  machine.block_index = block;
  std::memset(cudal2::smem, 0xFF, smem_bytes);  // NaNs
  machine.block = {};
  machine.warps.assign(Config::kThreads / 32, {});
  for (auto& fiber : machine.fibers) {
    fiber.done = false;
    fiber.groups.assign(1, {});
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = emulation::kStack;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, thread_main, 0);
  }
  for (bool running = true; running && machine.error.empty();) {
    running = false;
    for (int thread = 0; thread < Config::kThreads; ++thread) {
      if (machine.fibers[thread].done) continue;
      machine.current = thread;
      swapcontext(&machine.scheduler, &machine.fibers[thread].context);
      running = true;
    }
  }
}

}  // namespace

extern "C" const char* run(const cudal2::MmaParams* given, int blocks, int smem_bytes, int early, long* conflicts) {
  auto& machine = emulation::machine;
  params = given;
  machine.error.clear();
  machine.stored.clear();
  const auto extent = [](const void* first, long rows, long columns, const unsigned char*(&range)[2]) {
    range[0] = static_cast<const unsigned char*>(first);
    range[1] = range[0] + rows * columns * 2;
  };
  extent(given->a_ptr, given->m, given->k, machine.operands[0]);
  extent(given->b_ptr, given->n, given->k, machine.operands[1]);
  machine.early = early;
  machine.conflicts = 0;
  machine.smem_bytes = smem_bytes;
  machine.fibers = std::vector<emulation::Fiber>(Config::kThreads);
  for (int block = 0; block < blocks && machine.error.empty(); ++block) run_block(block, smem_bytes);
  *conflicts = machine.conflicts;
  return machine.error.c_str();
}
