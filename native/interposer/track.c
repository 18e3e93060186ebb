/* What runs: which streams have work that nobody has waited for yet, and with it whether a request is in progress.
 *
 * A high-priority request begins with a launch while nothing is outstanding and ends when the program has waited (by
 * stream, event or context, or by a query that found it done) for every stream it launched on. */
#include "process.h"

#define SUBMIT_NS 6000u   /* from before a launch call until the GPU can start (docs/explanation/sharing.md) */
#define MOST_GAP_NS 20000u
#define LEAST_SPARE 10u /* of the request's time, one part in so many: less is not told from what is predicted wrong */
#define LEARNT 20u /* requests from which on a p99 is more than a guess */

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

static double unpack(uint64_t byte) { return byte == 255 ? -1.0 : (double)byte / 200.0; }

uint32_t gls_ring_read(const struct gls_client *c, uint64_t now, struct gl_kernel *out, uint32_t room,
                       uint64_t *elapsed, uint64_t *next_ns) {
    uint64_t number = atomic_load_explicit(&c->launches, memory_order_acquire), first = number;
    uint64_t back = number < GLS_QUEUE ? number : GLS_QUEUE, delay = atomic_load_explicit(&c->delay_ns, memory_order_relaxed);
    while (back-- > 0) {
        const struct gls_launch *e = &c->ring[(first - 1) % GLS_RING];
        if (atomic_load_explicit(&e->end_ns, memory_order_relaxed) + delay <= now && first != number) break;
        first--;
    }
    uint32_t found = 0;
    for (; first < number && found < room; first++) {
        const struct gls_launch *e = &c->ring[first % GLS_RING];
        if (atomic_load_explicit(&e->seq, memory_order_acquire) != first + 1) continue;
        uint64_t shape = atomic_load_explicit(&e->shape, memory_order_relaxed);
        uint64_t duration = atomic_load_explicit(&e->duration_ns, memory_order_relaxed);
        uint64_t end = atomic_load_explicit(&e->end_ns, memory_order_relaxed) + delay;
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&e->seq, memory_order_relaxed) != first + 1) continue; /* overwritten meanwhile */
        if (found == 0 && end > now && duration > end - now) *elapsed = duration - (end - now);
        if (end > now && end - now < *next_ns) *next_ns = end - now;
        out[found++] = (struct gl_kernel){.sm = (uint32_t)shape,
                                          .klass = (uint32_t)(shape >> 32 & 255),
                                          .compute = unpack(shape >> 40 & 255),
                                          .dram = unpack(shape >> 48 & 255),
                                          .duration_ns = duration};
    }
    return found;
}

/* A pause shorter than this lies within a row: the next request was there already. */
static uint64_t pause_ns(uint64_t request_ns) { return request_ns / 50 > 20000 ? request_ns / 50 : 20000; }

static double chance(struct gls_row *row) { /* uniform, 0..1 (xorshift64*) */
    uint64_t x = row->random ? row->random : 0x9e3779b97f4a7c15ull;
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    row->random = x;
    return (double)((x * 0x2545f4914f6cdd1dull) >> 11) * 0x1p-53;
}

/* A row is over: tell the virtual queue of it. When a waiting request came is not to be seen; where arrivals are random
 * they are spread evenly over the time in which the row would not have broken off, so that is drawn. */
static void close_row(void) {
    struct gls_process *p = &gls_process;
    struct gls_row *row = &p->row;
    double at[ROW];
    uint64_t before = 0;
    double scale = 0;
    if (row->count == 0) return;
    uint64_t span = row->alone_ns - row->each_ns[row->count - 1];
    at[0] = 0;
    for (uint32_t i = 1; i < row->count; i++) { /* insertion keeps them in order */
        double x = chance(row) * (double)span;
        uint32_t k = i;
        for (; k > 1 && at[k - 1] > x; k--) at[k] = at[k - 1];
        at[k] = x;
    }
    for (uint32_t i = 0; i < row->count; i++) {
        uint64_t arrival = (uint64_t)at[i] < before ? (uint64_t)at[i] : before;
        uint64_t came = row->began_ns + arrival, finish = gl_tail_add(&p->tail, came, row->each_ns[i]);
        scale = gl_tail_done(&p->params, &p->tail, finish - came, row->end_ns[i] > came ? row->end_ns[i] - came : 0);
        before += row->each_ns[i];
    }
    row->count = 0;
    row->alone_ns = 0;
    atomic_store_explicit(&p->client->price_scale, (uint64_t)(scale * 1e6), memory_order_relaxed);
    atomic_store_explicit(&p->client->load, (uint64_t)(gl_tail_load(&p->tail) * 1e6), memory_order_relaxed);
}

static void request_begins(uint64_t now_ns) {
    struct gls_process *p = &gls_process;
    struct gls_client *c = p->client;
    struct gls_row *row = &p->row;
    uint64_t alone = atomic_load_explicit(&c->request_ns, memory_order_relaxed), queued, lag = 0;
    uint64_t last = row->count ? row->end_ns[row->count - 1] : 0;
    uint32_t sm, kernels;
    if (row->count == ROW || (row->count && now_ns - last > pause_ns(alone))) close_row();
    if (row->count == 0) row->began_ns = now_ns;
    else if (last - row->began_ns > row->alone_ns) lag = last - row->began_ns - row->alone_ns;
    gls_outstanding(&p->map, now_ns, &queued, &sm, &kernels);
    row->clean = queued == 0;
    row->usual = row->kernels;
    row->work_ns = row->kernels = row->late_ns = row->bare_end_ns = 0;
    row->touched = atomic_load_explicit(&c->touched, memory_order_relaxed);
    int64_t slack = GL_UNKNOWN_SLACK;
    if (p->params.budget > 0 && alone) {
        /* As if it had come with the first of its row: nobody sees when, nor who waits behind it. */
        int64_t most = p->tail.count >= LEARNT ? gl_tail_budget(&p->params, &p->tail, row->alone_ns + alone)
                                               : (int64_t)(p->params.budget * (double)alone);
        slack = most - (int64_t)lag - (int64_t)queued;
        if (slack == GL_UNKNOWN_SLACK) slack++;
    }
    atomic_store_explicit(&c->delay_ns, queued, memory_order_relaxed);
    atomic_store_explicit(&c->caught_up_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&c->row, row->count + 1, memory_order_relaxed);
    atomic_store_explicit(&c->slack_ns, slack, memory_order_relaxed);
    atomic_store_explicit(&c->busy_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&c->busy, 1, memory_order_release);
    gls_fault("high-busy");
}

/* A request's time alone, learnt. One that nothing was admitted beside tells it; others only bound it from above. */
static uint64_t alone_of(uint64_t known, uint64_t took, bool undisturbed) {
    if (known == 0) return took;
    if (undisturbed) return took < known ? known - (known - took) / 2 : known + (took - known) / 8;
    return took < known ? known - (known - took) / 2 : known + (took - known) / 256;
}

static void request_ends(uint64_t now_ns) {
    struct gls_process *p = &gls_process;
    struct gls_client *c = p->client;
    struct gls_row *row = &p->row;
    uint64_t began = atomic_load_explicit(&c->busy_ns, memory_order_relaxed);
    uint64_t took = now_ns > began ? now_ns - began : 1;
    uint64_t known = atomic_load_explicit(&c->request_ns, memory_order_relaxed);
    bool undisturbed = row->clean && row->touched == atomic_load_explicit(&c->touched, memory_order_relaxed);
    uint64_t alone = alone_of(known, took, undisturbed);
    atomic_store_explicit(&c->request_ns, alone ? alone : 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->requests, 1, memory_order_relaxed);
    if (undisturbed && row->usual) { /* only the second half: what the GPU waits for at the begin, makes up for nothing */
        uint64_t before = atomic_load_explicit(&c->spare_ns, memory_order_relaxed), found = 2 * row->late_ns;
        if (found > alone || found < alone / LEAST_SPARE) found = found > alone ? alone : 0;
        atomic_store_explicit(&c->spare_ns, before ? before - before / 4 + found / 4 : found, memory_order_relaxed);
    }
    p->gap_ns = alone > row->work_ns ? (alone - row->work_ns) / row->kernels : 0;
    if (p->gap_ns > MOST_GAP_NS) p->gap_ns = MOST_GAP_NS;
    row->end_ns[row->count] = now_ns;
    row->each_ns[row->count] = alone < took ? alone : took;
    row->alone_ns += row->each_ns[row->count++];
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
    uint64_t end = atomic_load_explicit(&c->end_ns, memory_order_relaxed), start = now_ns + SUBMIT_NS;
    uint64_t delay = atomic_load_explicit(&c->delay_ns, memory_order_relaxed);
    uint64_t duration = kernel->duration_ns ? kernel->duration_ns : p->params.unknown_duration_ns;
    p->row.work_ns += duration;
    p->row.kernels++;
    /* Ends are kept without the delay, which grows while they wait. */
    start = start > delay ? start - delay : 0;
    if (start > p->row.bare_end_ns) {
        if (p->row.bare_end_ns && p->row.kernels > p->row.usual / 2) p->row.late_ns += start - p->row.bare_end_ns;
        p->row.bare_end_ns = start;
    }
    p->row.bare_end_ns += duration;
    end = (end + p->gap_ns > start ? end + p->gap_ns : start) + duration;
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

/* A stream's launches up to a number are done, and with them those that it waited for. */
static void is_done(uintptr_t stream, uint64_t before, unsigned depth) {
    struct gls_process *p = &gls_process;
    struct gls_stream_state *s = stream_state(stream, false);
    if (s && s->stream == stream && s->dirty && s->last <= before) s->dirty = false, p->dirty--;
    for (unsigned i = 0; i < JOINS && depth < JOINS; i++) {
        struct gls_join *join = &p->joins[i];
        if (join->stream != stream || join->since > before) continue;
        join->stream = 0;
        is_done(join->other, join->launches, depth + 1);
    }
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
        for (unsigned i = 0; i < JOINS; i++)
            if (p->joins[i].since <= before) p->joins[i].stream = 0;
        if (p->launches == before) p->overflow = false;
    } else {
        is_done(stream, before, 0);
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

void gls_event_recorded(CUevent event, uintptr_t stream, uint64_t before) {
    struct gls_process *p = &gls_process;
    gls_lock();
    unsigned at = event_place(event); /* one place per event: a clash forgets the older, another wait then counts */
    p->events[at].event = event;
    p->events[at].stream = stream;
    p->events[at].launches = before;
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

void gls_stream_joins(uintptr_t stream, CUevent event) {
    struct gls_process *p = &gls_process;
    gls_lock();
    unsigned at = event_place(event);
    uintptr_t other = p->events[at].event == event ? p->events[at].stream : 0;
    if (other && other != stream) /* of too many the oldest is forgotten: its stream is waited for by itself then */
        p->joins[p->next_join++ % JOINS] = (struct gls_join){stream, other, ++p->launches, p->events[at].launches};
    gls_unlock();
}
