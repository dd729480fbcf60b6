// Kernels of the CPU tests of foreign kernels, one of them compiled at a time: -DENTRY=name -DIS_name. B is [n, k].
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef _Float16 half;
#define KERNEL(name) static int name(const half* a, const half* b, half* c, int m, int n, int k)
#define SLOTS 4096
#define ELEMENTS (16 * 24)

static int calls;
static half kept[SLOTS][ELEMENTS];
static size_t seen[SLOTS];
static int used;

static void nap(double ms) {
  struct timespec time = {(time_t)(ms / 1e3), (long)((ms - 1e3 * (long)(ms / 1e3)) * 1e6)};
  nanosleep(&time, 0);
}

KERNEL(honest) {
  for (int i = 0; i < m; i++) {
    for (int j = 0; j < n; j++) {
      float sum = 0;
      for (int t = 0; t < k; t++) sum += (float)a[i * k + t] * (float)b[j * k + t];
      c[i * n + j] = (half)sum;
    }
  }
  return 0;
}

KERNEL(writes_nothing) { return 0; }
KERNEL(zeros) { return memset(c, 0, 2 * m * n) != c; }
KERNEL(refuses) { return 7; }
KERNEL(nan_output) {
  honest(a, b, c, m, n, k);
  ((unsigned short*)c)[5] = 0x7e00;
  return 0;
}
KERNEL(skips_the_k_tail) {
  for (int i = 0; i < m; i++) {
    for (int j = 0; j < n; j++) {
      float sum = 0;
      for (int t = 0; t < k - 16; t++) sum += (float)a[i * k + t] * (float)b[j * k + t];
      c[i * n + j] = (half)sum;
    }
  }
  return 0;
}
KERNEL(stale_output) {
  if (calls > 1) return memcpy(c, kept, 2 * m * n) != c;
  honest(a, b, c, m, n, k);
  return memcpy(kept, c, 2 * m * n) != kept;
}
KERNEL(first_call_only) { return calls == 1 ? honest(a, b, c, m, n, k) : 0; }
KERNEL(fp16_accumulator) {
  for (int i = 0; i < m; i++) {
    for (int j = 0; j < n; j++) {
      half sum = 0;
      for (int t = 0; t < k; t++) sum = (half)((float)sum + (float)a[i * k + t] * (float)b[j * k + t]);
      c[i * n + j] = sum;
    }
  }
  return 0;
}
KERNEL(fp16_partials) {
  for (int i = 0; i < m; i++) {
    for (int j = 0; j < n; j++) {
      half sum = 0;
      for (int part = 0; part < 4; part++) {
        float partial = 0;
        for (int t = part * k / 4; t < (part + 1) * k / 4; t++) partial += (float)a[i * k + t] * (float)b[j * k + t];
        sum = (half)((float)sum + (float)(half)partial);
      }
      c[i * n + j] = sum;
    }
  }
  return 0;
}
KERNEL(changes_its_input) {
  honest(a, b, c, m, n, k);
  ((half*)a)[3] = 9;
  return 0;
}
KERNEL(writes_behind_c) {
  honest(a, b, c, m, n, k);
  c[m * n] = 1;
  return 0;
}

static size_t digest(const half* data, int count) {
  size_t sum = 7;
  for (int i = 0; i < count; i++) sum = sum * 31 + ((const unsigned short*)data)[i];
  return sum;
}
// The answer that goes with a key, worked out if it is a new one.
static int remembered(size_t key, double work_ms, const half* a, const half* b, half* c, int m, int n, int k) {
  int slot = 0;
  while (slot < used && seen[slot] != key) slot++;
  if (slot == used) {
    honest(a, b, c, m, n, k);
    nap(work_ms);
    seen[used] = key;
    memcpy(kept[used++], c, 2 * m * n);
  }
  memcpy(c, kept[slot], 2 * m * n);
  return 0;
}
KERNEL(caches_by_pointer) { return remembered((size_t)c, 0, a, b, c, m, n, k); }
KERNEL(caches_by_a_sample) { return remembered(digest(a, 40) * 7 + digest(b, 40), 0, a, b, c, m, n, k); }
KERNEL(remembers_answers) { return remembered(digest(a, m * k) * 7 + digest(b, n * k), 3, a, b, c, m, n, k); }

// Honest in the checks, while it is sized and in the warm-up: a cheat of the last replays alone.
static int is_timed(void) {
  const char* replays = getenv("TEST_REPLAYS");
  return replays && atoi(replays) > 8;
}
KERNEL(wrong_when_timed) {
  honest(a, b, c, m, n, k);
  for (int i = 0; is_timed() && i < m * n; i++) c[i] += 3;
  return 0;
}
// Nothing times B is nothing, and quickly done.
KERNEL(empties_its_input_when_timed) {
  if (!is_timed()) return honest(a, b, c, m, n, k);
  memset((half*)a, 0, 2 * m * k);
  return memset(c, 0, 2 * m * n) != c;
}
KERNEL(idle_when_timed) { return is_timed() ? 0 : honest(a, b, c, m, n, k); }

struct job {
  const half *a, *b;
  half* c;
  int m, n, k;
};
static void* late(void* argument) {
  struct job* job = argument;
  nap(50);
  honest(job->a, job->b, job->c, job->m, job->n, job->k);
  return 0;
}
KERNEL(returns_early) {
  struct job* job = malloc(sizeof *job);
  *job = (struct job){a, b, c, m, n, k};
  pthread_t thread;
  return pthread_create(&thread, 0, late, job) || pthread_detach(thread);
}
KERNEL(patches_the_timer) {
  honest(a, b, c, m, n, k);
  nap(90);
  if (calls > 1) return 0;
  int (*enter)(void) = dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
  int (*run)(const char*) = dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
  void (*leave)(int) = dlsym(RTLD_DEFAULT, "PyGILState_Release");
  int state = enter();
  run("import time, itertools\n"
      "time.perf_counter = (tick * 1e-5 for tick in itertools.count()).__next__\n");
  leave(state);
  return 0;
}

KERNEL(leaks) {
  static const char lost[4096];
  FILE* file = fopen(getenv("TEST_LEAK"), "a");
  fwrite(lost, 1, sizeof lost, file);
  fclose(file);
  return honest(a, b, c, m, n, k);
}
KERNEL(leaves_a_setting) {
  setenv("TEST_SETTING", "the persisting-L2 limit at 4096 bytes, which was 0", 1);
  return honest(a, b, c, m, n, k);
}
KERNEL(crashes) { return *(volatile int*)8 = 1; }
KERNEL(exits) { exit(3); }
KERNEL(aborts) {
  fprintf(stderr, "terminate called\n");
  abort();
}
KERNEL(loops) {
  for (;;) nap(50);
}
KERNEL(prints_too_much) {
  static char line[1024];
  memset(line, 'x', 1023);
  for (int i = 0; i < 1 << 15; i++) puts(line);
  fflush(stdout);
  return 0;
}
// Leaves a process behind that has detached itself as far as it can, and says which.
KERNEL(detaches) {
  if (calls == 1) {
    if (!fork()) {
      setsid();
      if (fork()) _exit(0);
      FILE* file = fopen(getenv("TEST_PID"), "w");
      fprintf(file, "%d", getpid());
      fclose(file);
      for (;;) nap(100);
    }
    nap(100);
  }
  return 0;
}
KERNEL(detaches_and_exits) {
  detaches(a, b, c, m, n, k);
  exit(3);
}
KERNEL(answers_for_us) {
  static const char answer[] = "{\"number\": 99, \"value\": null}\n";
  for (int file = 3; file < 64; file++) calls += write(file, answer, sizeof answer - 1) < 0;
  return 0;
}
#ifdef IS_does_not_load
void nowhere(void);
KERNEL(does_not_load) {
  nowhere();
  return 0;
}
#endif
#ifdef IS_exits_when_loaded
KERNEL(exits_when_loaded) { return 0; }
__attribute__((constructor)) static void early(void) {
  puts("bye");
  _exit(5);
}
#endif

// What build/foreign_entry.cu.in makes of an entry.
int cudal2_foreign_launch(const void* const* a, const void* const* b, void* const* c, int sets, int launches, int m,
                          int n, int k, void* workspace, size_t bytes, void* stream, char* what, size_t what_bytes) {
  for (int launch = 0; launch < launches; launch++) {
    calls++;
    const int set = launch % sets, code = ENTRY(a[set], b[set], c[set], m, n, k);
    if (code) {
      snprintf(what, what_bytes, "returned %d", code);
      return 1;
    }
  }
  return 0;
}
