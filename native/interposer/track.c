/* What runs: which streams have work that nobody has waited for yet, and with it whether a request is in progress.
 *
 * A high-priority request begins with a launch while nothing is outstanding and ends when the program has waited (by
 * stream, event or context, or by a query that found it done) for every stream it launched on. */
#include "process.h"

static _Thread_local char thread_mark __attribute__((tls_model("initial-exec")));

uintptr_t gls_stream(CUstream stream, bool per_thread) {
    if (stream == CU_STREAM_PER_THREAD || (stream == NULL && per_thread)) return (uintptr_t)&thread_mark;
    if (stream == NULL) return (uintptr_t)CU_STREAM_LEGACY;
    return (uintptr_t)stream;
}

static struct gls_stream_state *stream_state(uintptr_t stream, bool add) {
    struct gls_process *p = &gls_process;
    struct gls_stream_state *clean = NULL;
    for (unsigned i = 0, at = (unsigned)((stream >> 4) % STREAMS); i < STREAMS; i++, at = (at + 1) % STREAMS) {
        struct gls_stream_state *s = &p->streams[at];
        if (s->stream == stream) return s;
        if (s->stream == 0) return add ? (clean ? clean : s) : NULL;
        if (!s->dirty && !clean) clean = s;
    }
    return add ? clean : NULL;
}

static uint64_t pack(const struct gl_kernel *k) {
    uint64_t compute = k->compute >= 0 ? (uint64_t)(k->compute * 200.0) : 255, dram;
    dram = k->dram >= 0 ? (uint64_t)(k->dram * 200.0) : 255;
    return (uint64_t)k->sm | (uint64_t)(k->klass & 255) << 32 | (compute & 255) << 40 | (dram & 255) << 48;
}

void gls_ring_put(const struct gl_kernel *kernel, uint64_t id, uint64_t end_ns) {
    struct gls_client *c = gls_process.client;
    uint64_t number = atomic_load_explicit(&c->launches, memory_order_relaxed);
    struct gls_launch *entry = &c->ring[number % GLS_RING];
    atomic_store_explicit(&entry->seq, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    gls_fault("ring-torn");
    atomic_store_explicit(&entry->shape, pack(kernel), memory_order_relaxed);
    atomic_store_explicit(&entry->duration_ns, kernel->duration_ns, memory_order_relaxed);
    atomic_store_explicit(&entry->end_ns, end_ns, memory_order_relaxed);
    atomic_store_explicit(&entry->kernel, id, memory_order_relaxed);
    atomic_store_explicit(&entry->seq, number + 1, memory_order_release);
    atomic_store_explicit(&c->launches, number + 1, memory_order_release);
}

static void request_begins(uint64_t now_ns) {
    struct gls_process *p = &gls_process;
    struct gls_client *c = p->client;
    int64_t slack = GL_UNKNOWN_SLACK;
    if (p->tail.count >= 20 && p->params.budget > 0)
        slack = (int64_t)(p->params.budget * (double)gl_tail_quantile(&p->tail, 0.99));
    atomic_store_explicit(&c->slack_ns, slack, memory_order_relaxed);
    atomic_store_explicit(&c->busy_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&c->busy, 1, memory_order_release);
    gls_fault("high-busy");
}

static void request_ends(uint64_t now_ns) {
    struct gls_process *p = &gls_process;
    struct gls_client *c = p->client;
    uint64_t began = atomic_load_explicit(&c->busy_ns, memory_order_relaxed);
    uint64_t took = now_ns > began ? now_ns - began : 1;
    uint64_t alone = atomic_load_explicit(&c->request_ns, memory_order_relaxed);
    /* Leans to short requests, as gls_learn does: what neighbours cost is no part of the time alone. */
    alone = alone == 0 ? took : took < alone ? alone - (alone - took) / 4 : alone + (took - alone) / 32;
    atomic_store_explicit(&c->request_ns, alone ? alone : 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->requests, 1, memory_order_relaxed);
    uint64_t alone_at = gl_tail_add(&p->tail, began, alone); /* when it would have ended without neighbours */
    double scale = gl_tail_done(&p->params, &p->tail, alone_at > began ? alone_at - began : 0, took);
    atomic_store_explicit(&c->price_scale, (uint64_t)(scale * 1e6), memory_order_relaxed);
    atomic_store_explicit(&c->load, (uint64_t)(gl_tail_load(&p->tail) * 1e6), memory_order_relaxed);
    atomic_store_explicit(&c->end_ns, now_ns, memory_order_relaxed);
    gls_fault("high-before-idle");
    atomic_store_explicit(&c->busy, 0, memory_order_release);
    gls_fault("high-idle");
    gls_wake(&p->map);
}

void gls_track_stream(uintptr_t stream) {
    struct gls_process *p = &gls_process;
    struct gls_stream_state *s = stream_state(stream, true);
    p->launches++;
    if (s) {
        if (!s->dirty) p->dirty++;
        s->stream = stream;
        s->last = p->launches;
        s->dirty = true;
    } else {
        p->overflow = true;
    }
}

void gls_track_launch(uintptr_t stream, uint64_t now_ns, const struct gl_kernel *kernel, uint64_t id) {
    struct gls_process *p = &gls_process;
    struct gls_client *c = p->client;
    gls_track_stream(stream);
    if (!atomic_load_explicit(&c->busy, memory_order_relaxed)) request_begins(now_ns);
    uint64_t end = atomic_load_explicit(&c->end_ns, memory_order_relaxed);
    uint64_t duration = kernel->duration_ns ? kernel->duration_ns : p->params.unknown_duration_ns;
    end = (end > now_ns ? end : now_ns) + duration;
    atomic_store_explicit(&c->end_ns, end, memory_order_relaxed);
    gls_ring_put(kernel, id, end);
    gls_fault("high-announced");
}

uint64_t gls_wait_begins(void) {
    gls_lock();
    uint64_t launches = gls_process.launches;
    gls_unlock();
    return launches;
}

void gls_waited(uintptr_t stream, uint64_t before) {
    struct gls_process *p = &gls_process;
    gls_lock();
    if (!p->attached) {
        gls_unlock();
        return;
    }
    if (stream == 0) {
        for (unsigned i = 0; i < STREAMS; i++)
            if (p->streams[i].dirty && p->streams[i].last <= before) p->streams[i].dirty = false, p->dirty--;
        if (p->launches == before) p->overflow = false;
    } else {
        struct gls_stream_state *s = stream_state(stream, false);
        if (s && s->stream == stream && s->dirty && s->last <= before) s->dirty = false, p->dirty--;
    }
    bool done = p->dirty == 0 && !p->overflow;
    bool best_effort = p->klass == GLS_CLASS_BEST_EFFORT;
    if (done && p->klass == GLS_CLASS_HIGH && atomic_load_explicit(&p->client->busy, memory_order_relaxed))
        request_ends(gls_now());
    gls_unlock();
    if (done && best_effort) gls_all_done();
}

static unsigned event_place(CUevent event) {
    uint64_t h = (uint64_t)(uintptr_t)event * 0x9e3779b97f4a7c15ull;
    return (unsigned)(h >> 56) % EVENTS;
}

void gls_event_recorded(CUevent event, uintptr_t stream) {
    struct gls_process *p = &gls_process;
    gls_lock();
    unsigned at = event_place(event); /* one place per event: a clash forgets the older, another wait then counts */
    p->events[at].event = event;
    p->events[at].stream = stream;
    p->events[at].launches = p->launches;
    gls_unlock();
}

void gls_event_waited(CUevent event) {
    struct gls_process *p = &gls_process;
    gls_lock();
    unsigned at = event_place(event);
    bool known = p->events[at].event == event && p->events[at].stream != 0;
    uintptr_t stream = p->events[at].stream;
    uint64_t launches = p->events[at].launches;
    gls_unlock();
    if (known) gls_waited(stream, launches);
}
