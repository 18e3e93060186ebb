/* Durations learnt by events around a few launches, and how far a best-effort program has run ahead of the GPU.
 *
 * Launches return at once, so a program can queue seconds of work; the rule's account of outstanding work is a
 * prediction. Every so much predicted work of a stream an event (a marker) is recorded, and a launch waits while markers
 * say that more is queued on its stream than allowed: a stream that is blocked holds up no other. Nothing here is done while any stream of the process is being captured: an event
 * recorded or queried then would become part of the graph or spoil it. */
#define _GNU_SOURCE
#include "process.h"

#include "driver.h"
#include "log.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#define SAMPLES 16
#define MARKERS 64
#define LANES 64u
#define PLACES 8u /* of a stream among the lanes */
#define SPIN_NS 20000u

struct sample { /* an event is of one context, and is destroyed with it */
    CUevent start, end;
    CUcontext context;
    struct gls_key key;
    unsigned generation;
    enum { FREE, OPEN, PENDING } state;
};
static struct sample samples[SAMPLES];

struct lane { /* a stream, or more than one where there are many: predicted work, as sums over its launches */
    _Atomic uintptr_t stream; /* 0: free */
    _Atomic uint64_t launched_ns, completed_ns, marked_ns;
    _Atomic uint64_t newest_ns; /* the latest launch's own time */
};
static struct lane lanes[LANES];

struct marker {
    CUevent event;
    CUcontext context;
    struct lane *lane; /* NULL: not recorded, or passed */
    uint64_t launched_ns;
};
static struct marker markers[MARKERS];

#define ORIGINS 64 /* captures under way of which it is known where they began */
static struct origin {
    CUstream stream;
    CUcontext context;
} origins[ORIGINS];
static unsigned noted;
static pthread_mutex_t measuring = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool off; /* the driver refused an event: never again */

typedef CUresult (*record_function)(CUevent, CUstream);
typedef CUresult (*query_function)(CUevent);

static record_function record_event(void) {
    void *found = atomic_load_explicit(&gls_real[HOOK_cuEventRecord], memory_order_relaxed);
    record_function function;
    memcpy(&function, &found, sizeof found);
    return function;
}

static query_function query_event(void) {
    void *found = atomic_load_explicit(&gls_real[HOOK_cuEventQuery], memory_order_relaxed);
    query_function function;
    memcpy(&function, &found, sizeof found);
    return function;
}

static bool able(void) {
    return !atomic_load_explicit(&off, memory_order_relaxed) && record_event() && query_event() &&
           gls_own.event_create && gls_own.event_elapsed;
}

static bool begin(void) {
    if (!able() || pthread_mutex_trylock(&measuring) != 0) return false;
    if (atomic_load(&gls_captures) > 0) { /* read with the lock held: see gls_capture_begins */
        pthread_mutex_unlock(&measuring);
        return false;
    }
    gls_self.inside++;
    return true;
}

static void end(void) {
    gls_self.inside--;
    pthread_mutex_unlock(&measuring);
}

static bool good(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS) return true;
    atomic_store(&off, true);
    gls_log("%s: error %d; durations are no longer measured", what, result);
    return false;
}

static void collect(void) {
    for (int i = 0; i < SAMPLES; i++) {
        struct sample *s = &samples[i];
        if (s->state != PENDING || query_event()(s->end) != CUDA_SUCCESS) continue;
        float ms = 0;
        s->state = FREE;
        if (gls_own.event_elapsed(&ms, s->start, s->end) != CUDA_SUCCESS || !(ms >= 0)) continue;
        gls_lock();
        struct gls_known *known = s->generation == gls_kernels_generation ? gls_find(&s->key) : NULL;
        if (known) gls_learn(known, (uint64_t)((double)ms * 1e6) + 1);
        gls_unlock();
    }
}

int gls_sample_begins(const struct gls_key *key, CUstream stream) {
    if (!begin()) return -1;
    collect();
    int found = -1;
    for (int i = 0; i < SAMPLES && found < 0; i++)
        if (samples[i].state == FREE && (!samples[i].start || samples[i].context == gls_self.context)) found = i;
    if (found >= 0) {
        struct sample *s = &samples[found];
        s->context = gls_self.context;
        if ((!s->start && !good(gls_own.event_create(&s->start, CU_EVENT_DEFAULT), "cuEventCreate")) ||
            (!s->end && !good(gls_own.event_create(&s->end, CU_EVENT_DEFAULT), "cuEventCreate")) ||
            !good(record_event()(s->start, stream), "cuEventRecord")) {
            found = -1;
        } else {
            s->key = *key;
            gls_lock();
            s->generation = gls_kernels_generation;
            gls_unlock();
            s->state = OPEN;
        }
    }
    end();
    return found;
}

void gls_sample_ends(int sample, CUstream stream, bool launched) {
    if (sample < 0) return;
    pthread_mutex_lock(&measuring);
    gls_self.inside++;
    struct sample *s = &samples[sample];
    bool wanted = launched && s->state == OPEN && atomic_load(&gls_captures) == 0;
    s->state = wanted && good(record_event()(s->end, stream), "cuEventRecord") ? PENDING : FREE;
    end();
}

static void nap(uint64_t ns) {
    if (gls_sleep) {
        gls_sleep(ns);
        return;
    }
    struct timespec t = {0, (long)ns};
    nanosleep(&t, NULL);
}

static struct lane *lane_of(uintptr_t stream) {
    unsigned from = (unsigned)((uint64_t)stream * 0x9e3779b97f4a7c15ull >> 58);
    for (unsigned i = 0; i < PLACES; i++) {
        struct lane *lane = &lanes[(from + i) % LANES];
        uintptr_t seen = atomic_load_explicit(&lane->stream, memory_order_relaxed);
        if (seen == stream || (!seen && atomic_compare_exchange_strong(&lane->stream, &seen, stream))) return lane;
        if (seen == stream) return lane;
    }
    for (unsigned i = 0; i < PLACES; i++) { /* one with nothing queued: its stream may be gone */
        struct lane *lane = &lanes[(from + i) % LANES];
        uintptr_t seen = atomic_load_explicit(&lane->stream, memory_order_relaxed);
        if (atomic_load(&lane->launched_ns) > atomic_load(&lane->completed_ns)) continue;
        if (atomic_compare_exchange_strong(&lane->stream, &seen, stream)) return lane;
    }
    return &lanes[from % LANES];
}

/* What was launched up to the marker counts as complete. */
static void take_off(struct marker *m) {
    if (m->launched_ns > atomic_load_explicit(&m->lane->completed_ns, memory_order_relaxed))
        atomic_store_explicit(&m->lane->completed_ns, m->launched_ns, memory_order_relaxed);
    m->lane = NULL;
}

/* Take off the markers of a lane that the GPU has passed; returns the oldest that it has not. */
static struct marker *pass_markers(const struct lane *lane) {
    for (;;) {
        struct marker *oldest = NULL;
        for (struct marker *m = markers; m < markers + MARKERS; m++)
            if (m->lane == lane && (!oldest || m->launched_ns < oldest->launched_ns)) oldest = m;
        if (!oldest || query_event()(oldest->event) == CUDA_ERROR_NOT_READY) return oldest;
        take_off(oldest);
    }
}

uint64_t gls_keep_close(uintptr_t stream, uint64_t ahead_ns, uint64_t limit_ns) {
    struct lane *lane = lane_of(stream);
    uint64_t began = 0, now = 0;
    for (;;) {
        uint64_t launched = atomic_load_explicit(&lane->launched_ns, memory_order_relaxed);
        uint64_t completed = atomic_load_explicit(&lane->completed_ns, memory_order_relaxed);
        uint64_t newest = atomic_load_explicit(&lane->newest_ns, memory_order_relaxed);
        /* A kernel longer than the limit may run, but nothing else may wait before the next one. */
        if (launched <= completed + ahead_ns + newest || !able() || atomic_load(&gls_captures) > 0) break;
        if (atomic_load(&gls_mode) != GLS_MODE_MANAGED) break;
        bool any = true, late = began && now - began >= limit_ns;
        if (begin()) {
            struct marker *oldest = pass_markers(lane);
            any = oldest != NULL;
            if (oldest && late) take_off(oldest); /* nobody is to wait for that one again */
            end();
            if (!late && atomic_load_explicit(&lane->completed_ns, memory_order_relaxed) != completed) continue;
        }
        if (late || !any) break; /* nothing recorded to wait for */
        now = gls_now();
        if (began == 0) began = now;
        if (now - began < limit_ns && (gls_sleep || now - began > SPIN_NS)) nap(10000);
    }
    return began ? now - began : 0;
}

/* A marker not in use, with an event of this context or none yet. */
static struct marker *free_marker(void) {
    for (struct marker *m = markers; m < markers + MARKERS; m++)
        if (!m->lane && (!m->event || m->context == gls_self.context)) return m;
    return NULL;
}

void gls_launched(uintptr_t stream, CUstream handle, uint64_t duration_ns, uint64_t marker_ns) {
    struct lane *lane = lane_of(stream);
    uint64_t launched = atomic_fetch_add_explicit(&lane->launched_ns, duration_ns, memory_order_relaxed) + duration_ns;
    atomic_store_explicit(&lane->newest_ns, duration_ns, memory_order_relaxed);
    if (launched - atomic_load_explicit(&lane->marked_ns, memory_order_relaxed) < marker_ns || !begin()) return;
    struct marker *m = free_marker();
    if (!m) {
        for (unsigned i = 0; i < LANES; i++) pass_markers(&lanes[i]);
        m = free_marker();
    }
    if (m && (m->event || good(gls_own.event_create(&m->event, CU_EVENT_DISABLE_TIMING), "cuEventCreate"))) {
        m->context = gls_self.context;
        if (good(record_event()(m->event, handle), "cuEventRecord")) {
            m->launched_ns = launched;
            m->lane = lane;
            atomic_store_explicit(&lane->marked_ns, launched, memory_order_relaxed);
        }
    }
    end();
}

void gls_all_done(void) {
    if (pthread_mutex_trylock(&measuring) != 0) return;
    for (struct marker *m = markers; m < markers + MARKERS; m++)
        if (m->lane) take_off(m);
    for (struct lane *lane = lanes; lane < lanes + LANES; lane++)
        atomic_store_explicit(&lane->completed_ns, atomic_load_explicit(&lane->launched_ns, memory_order_relaxed),
                              memory_order_relaxed);
    pthread_mutex_unlock(&measuring);
}

static void one_less(void) {
    int seen = atomic_load(&gls_captures);
    while (seen > 0 && !atomic_compare_exchange_weak(&gls_captures, &seen, seen - 1)) {}
}

void gls_measure_forget(CUcontext context) {
    pthread_mutex_lock(&measuring);
    for (struct marker *m = markers; m < markers + MARKERS; m++) {
        if (m->context != context) continue;
        if (m->lane) take_off(m);
        *m = (struct marker){0};
    }
    for (int i = 0; i < SAMPLES; i++)
        if (samples[i].context == context) samples[i] = (struct sample){0};
    unsigned gone = 0;
    for (unsigned i = noted; i-- > 0;)
        if (origins[i].context == context) {
            origins[i] = origins[--noted];
            gone++;
        }
    pthread_mutex_unlock(&measuring);
    while (gone--) one_less();
}

/* With the lock taken once nobody is amid a measurement, and whoever comes sees the capture. */
void gls_capture_begins(CUstream stream) {
    atomic_fetch_add(&gls_captures, 1);
    pthread_mutex_lock(&measuring);
    if (noted < ORIGINS) origins[noted++] = (struct origin){stream, gls_self.context};
    pthread_mutex_unlock(&measuring);
}

/* Whether a capture that is under way began on this stream; it is struck out. */
static bool strike(CUstream stream) {
    bool found = false;
    pthread_mutex_lock(&measuring);
    for (unsigned i = noted; i-- > 0 && !found;)
        if (origins[i].stream == stream) {
            origins[i] = origins[--noted];
            found = true;
        }
    pthread_mutex_unlock(&measuring);
    return found;
}

void gls_capture_ended(CUstream stream) {
    strike(stream);
    one_less();
}

void gls_capture_stream_gone(CUstream stream) {
    if (strike(stream)) one_less();
}

void gls_measure_reset(void) {
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memcpy(&measuring, &fresh, sizeof fresh);
    memset(samples, 0, sizeof samples);
    memset(markers, 0, sizeof markers);
    memset(lanes, 0, sizeof lanes);
    noted = 0;
    atomic_store(&off, false);
}
