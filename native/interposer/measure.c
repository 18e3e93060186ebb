/* Durations learnt by events around a few launches, and how far a best-effort program has run ahead of the GPU.
 *
 * Launches return at once, so a program can queue seconds of work; the rule's account of outstanding work is a
 * prediction. Every so much predicted work an event (a marker) is recorded, and a launch waits while markers say that
 * more is queued than allowed. Nothing here is done while any stream of the process is being captured: an event
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
#define SPIN_NS 20000u

struct sample {
    CUevent start, end;
    struct gls_key key;
    unsigned generation;
    enum { FREE, OPEN, PENDING } state;
};
static struct sample samples[SAMPLES];

struct marker {
    CUevent event;
    uint64_t launched_ns;
};
static struct marker markers[MARKERS];
static unsigned first_marker, marker_count;
static uint64_t last_marker_ns;
static _Atomic uint64_t launched_ns, completed_ns, newest_ns; /* newest: the latest launch's own time */
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
    if (atomic_load(&gls_captures) > 0) { /* read with the lock held: see gls_measure_pauses */
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
        if (samples[i].state == FREE) found = i;
    if (found >= 0) {
        struct sample *s = &samples[found];
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
    bool wanted = launched && atomic_load(&gls_captures) == 0;
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

/* Take off the markers that the GPU has passed. */
static void pass_markers(void) {
    while (marker_count > 0 && query_event()(markers[first_marker].event) == CUDA_SUCCESS) {
        atomic_store_explicit(&completed_ns, markers[first_marker].launched_ns, memory_order_relaxed);
        first_marker = (first_marker + 1) % MARKERS;
        marker_count--;
    }
}

uint64_t gls_keep_close(uint64_t ahead_ns, uint64_t limit_ns) {
    uint64_t began = 0, now = 0;
    for (;;) {
        uint64_t launched = atomic_load_explicit(&launched_ns, memory_order_relaxed);
        uint64_t completed = atomic_load_explicit(&completed_ns, memory_order_relaxed);
        uint64_t newest = atomic_load_explicit(&newest_ns, memory_order_relaxed);
        /* A kernel longer than the limit may run, but nothing else may wait before the next one. */
        if (launched - newest <= completed + ahead_ns || !able() || atomic_load(&gls_captures) > 0) break;
        bool any = true;
        if (begin()) {
            pass_markers();
            any = marker_count > 0;
            end();
            if (atomic_load_explicit(&completed_ns, memory_order_relaxed) != completed) continue;
        }
        if (!any) break; /* nothing recorded to wait for */
        now = gls_now();
        if (began == 0) began = now;
        if (now - began >= limit_ns) break;
        if (gls_sleep || now - began > SPIN_NS) nap(10000);
    }
    return began ? now - began : 0;
}

void gls_launched(CUstream stream, uint64_t duration_ns, uint64_t marker_ns) {
    uint64_t launched = atomic_fetch_add_explicit(&launched_ns, duration_ns, memory_order_relaxed) + duration_ns;
    atomic_store_explicit(&newest_ns, duration_ns, memory_order_relaxed);
    if (!begin()) return;
    if (launched - last_marker_ns >= marker_ns) {
        if (marker_count == MARKERS) pass_markers();
        if (marker_count < MARKERS) {
            struct marker *m = &markers[(first_marker + marker_count) % MARKERS];
            if ((m->event || good(gls_own.event_create(&m->event, CU_EVENT_DISABLE_TIMING), "cuEventCreate")) &&
                good(record_event()(m->event, stream), "cuEventRecord")) {
                m->launched_ns = launched;
                last_marker_ns = launched;
                marker_count++;
            }
        }
    }
    end();
}

void gls_all_done(void) {
    uint64_t launched = atomic_load_explicit(&launched_ns, memory_order_relaxed);
    if (pthread_mutex_trylock(&measuring) != 0) return;
    if (launched == atomic_load_explicit(&launched_ns, memory_order_relaxed)) {
        atomic_store_explicit(&completed_ns, launched, memory_order_relaxed);
        marker_count = 0;
    }
    pthread_mutex_unlock(&measuring);
}

void gls_measure_pauses(void) {
    pthread_mutex_lock(&measuring);
    pthread_mutex_unlock(&measuring);
}

void gls_measure_reset(void) {
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memcpy(&measuring, &fresh, sizeof fresh);
    memset(samples, 0, sizeof samples);
    memset(markers, 0, sizeof markers);
    marker_count = first_marker = 0;
    last_marker_ns = 0;
    atomic_store(&launched_ns, 0);
    atomic_store(&newest_ns, 0);
    atomic_store(&completed_ns, 0);
    atomic_store(&off, false);
}
