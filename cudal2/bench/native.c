/* Submits launches with no Python in between: many in a row while a graph is captured, and in server mode one per
 * arrival, by a client that waits for the arrival, submits, and waits for the completion.
 *
 * Links to nothing of CUDA: functions of the driver and of the libraries come in as pointers, their objects as opaque
 * addresses, so that no header is needed and a test can stand in for all of them. native.py and server/client.py mirror
 * the structs.
 * A status is what the called function returned; 0 is success everywhere.
 */
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() ((void)0)
#endif

enum { FLUSHED, FLUSH_DUE, FLUSHING };
enum { GREATER_OR_EQUAL = 0, DEFAULT_WRITE = 0, NOT_READY = 600, RANK = 2, SPINS_BETWEEN_QUERIES = 1 << 21 };

/* ---- contestants ---------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t a, b, c; /* device addresses */
} Operands;

typedef int (*Submit)(void *state, uint32_t set, const Operands *operands, void *stream);

typedef struct {
    Submit submit;
    void *state;
    const Operands *sets; /* one per buffer set */
} Contestant;

/* cuTensorMapEncodeTiled and cuLaunchKernelEx. */
typedef int (*EncodeTiled)(void *map, int dtype, uint32_t rank, void *address, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                           int interleave, int swizzle, int l2_promotion, int fill);
typedef int (*LaunchKernel)(const void *config, void *function, void **params, void **extra);

/* Ours with all parameters made beforehand, one pointer to a struct per buffer set. */
typedef struct {
    LaunchKernel launch;
    const void *config; /* CUlaunchConfig; the stream is in it */
    void *function;
    void **params;
} Bound;

int cudal2_submit_bound(void *state, uint32_t set, const Operands *operands, void *stream)
{
    const Bound *bound = state;
    (void)operands, (void)stream;
    return bound->launch(bound->config, bound->function, bound->params + set, NULL);
}

typedef struct {
    void *map; /* where in the kernel's parameters, 64-byte aligned; NULL if this operand has none */
    uint64_t sizes[RANK];
    uint64_t row_bytes;
    uint32_t box[RANK];
    int32_t dtype, interleave, swizzle, l2_promotion, fill;
} TensorMap;

typedef struct {
    EncodeTiled encode;
    LaunchKernel launch;
    const void *config; /* CUlaunchConfig; the stream is in it */
    void *function;
    void **params;
    uint64_t *slots[3]; /* where in the parameters an operand's address goes; NULL if the kernel does not take it */
    TensorMap maps[3];
} Kernel;

/* Ours: tensor maps are encoded here, per request, since the addresses are new to the kernel. */
int cudal2_submit_kernel(void *state, uint32_t set, const Operands *operands, void *stream)
{
    static const uint32_t dense[RANK] = {1, 1};
    Kernel *kernel = state;
    const uint64_t addresses[3] = {operands->a, operands->b, operands->c};
    (void)set, (void)stream;
    for (int index = 0; index < 3; ++index) {
        TensorMap *map = &kernel->maps[index];
        if (kernel->slots[index])
            *kernel->slots[index] = addresses[index];
        if (!map->map)
            continue;
        int status = kernel->encode(map->map, map->dtype, RANK, (void *)(uintptr_t)addresses[index], map->sizes,
                                    &map->row_bytes, map->box, dense, map->interleave, map->swizzle,
                                    map->l2_promotion, map->fill);
        if (status)
            return status;
    }
    return kernel->launch(kernel->config, kernel->function, kernel->params, NULL);
}

/* cublasLtMatmul. The library is column-major: its first operand is our B, its second our A. */
typedef int (*LtMatmul)(void *handle, void *desc, const void *alpha, uint64_t first, void *first_layout,
                        uint64_t second, void *second_layout, const void *beta, uint64_t c, void *c_layout, uint64_t d,
                        void *d_layout, const void *algorithm, void *workspace, size_t workspace_bytes, void *stream);

typedef struct {
    LtMatmul matmul;
    void *handle, *desc;
    const void *alpha;
    void *first, *second;
    const void *beta;
    void *out;
    const void *algorithm;
    void *workspace;
    uint64_t workspace_bytes;
} Matmul;

int cudal2_submit_matmul(void *state, uint32_t set, const Operands *operands, void *stream)
{
    const Matmul *m = state;
    (void)set;
    return m->matmul(m->handle, m->desc, m->alpha, operands->b, m->first, operands->a, m->second, m->beta, operands->c,
                     m->out, operands->c, m->out, m->algorithm, m->workspace, m->workspace_bytes, stream);
}

/* cublasGemmEx; its stream belongs to the handle. */
typedef int (*GemmEx)(void *handle, int op_first, int op_second, int m, int n, int k, const void *alpha,
                      uint64_t first, int first_type, int ld_first, uint64_t second, int second_type, int ld_second,
                      const void *beta, uint64_t c, int c_type, int ld_c, int compute, int algorithm);

typedef struct {
    GemmEx gemm;
    void *handle;
    const void *alpha, *beta;
    int32_t op_first, m, n, k, ld_first, ld_second, ld_out, type, compute, algorithm;
} Gemm;

int cudal2_submit_gemm(void *state, uint32_t set, const Operands *operands, void *stream)
{
    const Gemm *g = state;
    (void)set, (void)stream;
    return g->gemm(g->handle, g->op_first, 0, g->m, g->n, g->k, g->alpha, operands->b, g->type, g->ld_first,
                   operands->a, g->type, g->ld_second, g->beta, operands->c, g->type, g->ld_out, g->compute,
                   g->algorithm);
}

/* `count` launches that rotate over the buffer sets, none of them waited for. */
int cudal2_enqueue(const Contestant *contestant, uint32_t count, uint32_t sets, void *stream)
{
    for (uint32_t index = 0; index < count; ++index) {
        const uint32_t set = index % sets;
        int status = contestant->submit(contestant->state, set, &contestant->sets[set], stream);
        if (status)
            return status;
    }
    return 0;
}

/* ---- the client ----------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t (*now)(void); /* nanoseconds */
    int (*write_value)(void *stream, uint64_t address, uint32_t value, uint32_t flags);
    int (*wait_value)(void *stream, uint64_t address, uint32_t value, uint32_t flags);
    int (*event_record)(void *event, void *stream);
    int (*event_elapsed)(float *ms, void *start, void *end);
    int (*graph_launch)(void *graph, void *stream);
    int (*stream_query)(void *stream);
    void *stream, *load_stream, *start, *end;
    uint32_t *done, *gate, *load_done; /* pinned host memory, mapped at the same device address */
    void *flush;                       /* graph that reads through the L2 after a request; NULL: none */
    uint64_t flush_ns;                 /* the time that must be left for it */
    void *load;                        /* graph that keeps the device busy; NULL: none */
    uint64_t load_guard_ns;            /* none is submitted this shortly before an arrival */
    uint32_t load_depth;               /* graphs kept in flight */
    uint32_t sequence, load_sequence;
    const char *failed;                /* what returned the status that is not 0 */
} Client;

/* For the mirrors in Python: a field that only one side has would move all behind it. */
const uint32_t cudal2_sizes[] = {sizeof(Client), sizeof(Contestant), sizeof(Kernel), sizeof(Matmul), sizeof(Gemm),
                                 sizeof(Bound)};

/* CLOCK_MONOTONIC: read without a system call everywhere, and slewed by less than 0.05 %. */
uint64_t cudal2_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int fail(Client *client, const char *what, int status)
{
    if (status)
        client->failed = what;
    return status;
}

static int signal_done(Client *client, uint32_t value)
{
    return fail(client, "cuStreamWriteValue32",
                client->write_value(client->stream, (uintptr_t)client->done, value, DEFAULT_WRITE));
}

/* What goes on between requests, as far as there is time for it before the next one. */
static int between_requests(Client *client, uint64_t left_ns, int *flush)
{
    int status = 0;
    if (*flush == FLUSHING && __atomic_load_n(client->done, __ATOMIC_ACQUIRE) == client->sequence)
        *flush = FLUSHED;
    if (*flush == FLUSH_DUE && left_ns > client->flush_ns) {
        *flush = FLUSHING;
        status = fail(client, "cuGraphLaunch", client->graph_launch(client->flush, client->stream));
        return status ? status : signal_done(client, ++client->sequence);
    }
    if (client->load && left_ns > client->load_guard_ns &&
        client->load_sequence - __atomic_load_n(client->load_done, __ATOMIC_ACQUIRE) < client->load_depth) {
        status = fail(client, "cuGraphLaunch", client->graph_launch(client->load, client->load_stream));
        if (!status)
            status = fail(client, "cuStreamWriteValue32",
                          client->write_value(client->load_stream, (uintptr_t)client->load_done,
                                              ++client->load_sequence, DEFAULT_WRITE));
    }
    return status;
}

/* Spins until `due`; `at` is the last reading of the clock, which is later if the request before took too long. */
static int await_arrival(Client *client, uint64_t due, int *flush, uint64_t *at)
{
    while ((*at = client->now()) < due) {
        int status = between_requests(client, due - *at, flush);
        if (status)
            return status;
        PAUSE();
    }
    return 0;
}

/* Spins until the stream has written the last value it was told to; a stream that failed never does. */
static int await_done(Client *client, uint64_t *at)
{
    for (uint32_t spins = 1; __atomic_load_n(client->done, __ATOMIC_ACQUIRE) != client->sequence; ++spins) {
        PAUSE();
        if (spins % SPINS_BETWEEN_QUERIES == 0) {
            int status = client->stream_query(client->stream);
            if (status && status != NOT_READY)
                return fail(client, "the stream", status);
        }
    }
    *at = client->now();
    return 0;
}

static int submit(Client *client, const Contestant *contestant, uint32_t set)
{
    return fail(client, "submission",
                contestant->submit(contestant->state, set, &contestant->sets[set], client->stream));
}

/* One launch, not waited for. */
int cudal2_submit(Client *client, const Contestant *contestant, uint32_t set)
{
    return submit(client, contestant, set);
}

/* Serves `count` arrivals, in nanoseconds from now, one after the other over `sets` buffer sets in turn.
 *
 * latency: submission to completion. queue: arrival to submission. host: time the submission took.
 * unflushed: requests that came before the flush was through, or could begin.
 */
int cudal2_serve(Client *client, const Contestant *contestant, const uint64_t *arrivals_ns, uint32_t count,
                 uint32_t sets, uint64_t *latency_ns, uint64_t *queue_ns, uint64_t *host_ns, uint32_t *unflushed)
{
    const uint64_t begin = client->now();
    int flush = client->flush ? FLUSH_DUE : FLUSHED;
    *unflushed = 0;
    for (uint32_t index = 0; index < count; ++index) {
        uint64_t due = begin + arrivals_ns[index], submitted, returned, completed;
        int status = await_arrival(client, due, &flush, &submitted);
        if (status)
            return status;
        *unflushed += flush != FLUSHED;
        if ((status = submit(client, contestant, index % sets)))
            return status;
        returned = client->now();
        if ((status = signal_done(client, ++client->sequence)) || (status = await_done(client, &completed)))
            return status;
        latency_ns[index] = completed - submitted;
        queue_ns[index] = submitted - due;
        host_ns[index] = returned - submitted;
        flush = client->flush ? FLUSH_DUE : FLUSHED;
    }
    return 0;
}

/* The same arrivals for the device's clock: the stream stands still until both events and the launch are on it. */
int cudal2_time(Client *client, const Contestant *contestant, const uint64_t *arrivals_ns, uint32_t count,
                uint32_t sets, float *device_ms)
{
    const uint64_t begin = client->now();
    int flush = client->flush ? FLUSH_DUE : FLUSHED;
    for (uint32_t index = 0; index < count; ++index) {
        uint64_t at;
        int status = await_arrival(client, begin + arrivals_ns[index], &flush, &at);
        if (status)
            return status;
        const uint32_t value = ++client->sequence;
        status = fail(client, "cuStreamWaitValue32",
                      client->wait_value(client->stream, (uintptr_t)client->gate, value, GREATER_OR_EQUAL));
        if (!status)
            status = fail(client, "cuEventRecord", client->event_record(client->start, client->stream));
        if (!status)
            status = submit(client, contestant, index % sets);
        if (!status)
            status = fail(client, "cuEventRecord", client->event_record(client->end, client->stream));
        if (!status)
            status = signal_done(client, value);
        __atomic_store_n(client->gate, value, __ATOMIC_RELEASE); /* on failure too: the stream must not stay shut */
        if (status || (status = await_done(client, &at)))
            return status;
        while ((status = client->event_elapsed(&device_ms[index], client->start, client->end)) == NOT_READY)
            PAUSE();
        if (status)
            return fail(client, "cuEventElapsedTime", status);
        flush = client->flush ? FLUSH_DUE : FLUSHED;
    }
    return 0;
}
