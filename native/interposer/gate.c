/* See gate.h. A best-effort program waits inside its launch call until the admission rule lets it pass; a
 * high-priority program only writes down what it launches. On any doubt a launch passes through. */
#define _GNU_SOURCE
#include "process.h"

#include "driver.h"
#include "log.h"
#include "memory.h"

#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPIN_NS 20000u       /* a hold begins by spinning */
#define SOON_NS 60000u       /* so short a wait is spun through: sleeping takes some 50 us longer than asked for */
#define RECHECK_NS 1000000u  /* and asks again after so long at the latest */
#define REAP_NS 2000000u     /* and looks for the dead as often as that, */
#define CALM_REAP_NS 500000000u /* and who is not held, as often as that */
#define QUIET_NS 2000000u    /* a request that has run so long over its prediction has ended unnoticed */
#define MOST_HOLD_MS 3.6e6
#define MOST_MIB 1e9

_Atomic int gls_mode;
_Atomic int gls_captures;
_Thread_local struct gls_thread gls_self __attribute__((visibility("hidden"), tls_model("initial-exec")));
struct gls_process gls_process;
static pthread_mutex_t attaching = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t deciding = PTHREAD_MUTEX_INITIALIZER;

/* A number of the environment, from 0 to `most`. The program's locale has no part in how it is read. */
static double number(const char *name, double otherwise, double most) {
    const char *text = secure_getenv(name);
    char *end;
    if (!text || !*text) return otherwise;
    locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    if (!plain) return otherwise;
    double value = strtod_l(text, &end, plain);
    freelocale(plain);
    if (end == text || *end || !(value >= 0)) {
        gls_log("%s=%s is not a number from 0; %g is used", name, text, otherwise);
        return otherwise;
    }
    if (value > most) gls_log("%s=%s is too much; %g is used", name, text, most);
    return value > most ? most : value;
}

static bool several_processes(void) {
    static const char *const names[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = getenv(names[i]);
        if (text && atoi(text) > 1) return true;
    }
    return false;
}

static void fork_child(void) {
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memcpy(&attaching, &fresh, sizeof fresh);
    memcpy(&deciding, &fresh, sizeof fresh);
    atomic_flag_clear(&gls_lock_word);
    gls_measure_reset();
    gls_memory_forked();
    atomic_store(&gls_captures, 0);
    struct gls_process *p = &gls_process;
    p->map.slot = -1; /* the slot is the parent's: only our copy of the open file goes */
    gls_close(&p->map);
    p->client = NULL;
    p->attached = false;
    p->launches = 0;
    p->dirty = 0;
    p->overflow = false;
    p->gap_ns = 0;
    p->holding = p->waiters = 0;
    for (unsigned i = 0; i < GLS_CLIENTS; i++) atomic_store_explicit(&p->stale[i], 0, memory_order_relaxed);
    memset(&p->tail, 0, sizeof p->tail);
    memset(&p->row, 0, sizeof p->row);
    memset(p->streams, 0, sizeof p->streams);
    memset(p->events, 0, sizeof p->events);
    memset(p->joins, 0, sizeof p->joins);
    p->generation++;
    gls_self = (struct gls_thread){0};
}

__attribute__((destructor)) static void leave(void) {
    struct gls_process *p = &gls_process;
    if (atomic_exchange(&gls_mode, GLS_MODE_PASS) != GLS_MODE_MANAGED) return;
    gls_lock();
    if (p->attached) gls_detach(&p->map); /* the mapping stays: other threads may be on their way out through it */
    p->attached = false;
    gls_unlock();
}

static int mode_from_environment(void) {
    struct gls_process *p = &gls_process;
    const char *klass = secure_getenv("GPULOOM_SHARE_CLASS"), *share = secure_getenv("GPULOOM_SHARE");
    const char *rule = secure_getenv("GPULOOM_SHARE_RULE"), *dir = secure_getenv("GPULOOM_SHARE_DIR");
    if (!klass || !dir || !*dir || (share && strcmp(share, "off") == 0)) return GLS_MODE_PASS;
    p->klass = strcmp(klass, "high") == 0          ? GLS_CLASS_HIGH
               : strcmp(klass, "best-effort") == 0 ? GLS_CLASS_BEST_EFFORT
                                                   : GLS_CLASS_NONE;
    if (p->klass == GLS_CLASS_NONE) {
        gls_log("GPULOOM_SHARE_CLASS=%s: neither high nor best-effort; passing through", klass);
        return GLS_MODE_PASS;
    }
    if (several_processes()) {
        gls_log("one of several processes of a distributed job: exempt, passing through");
        return GLS_MODE_PASS;
    }
    uint32_t id = GL_RULE_GPULOOM;
    if (rule && *rule) {
        static const char *const names[] = {"none", "priority", "orion", "gpuloom", "literal"};
        uint32_t i = 0;
        while (i < 5 && strcmp(rule, names[i]) != 0) i++;
        if (i < 5) id = i;
        else gls_log("GPULOOM_SHARE_RULE=%s: unknown; gpuloom is used", rule);
    }
    gl_params_default(&p->params, id);
    p->params.max_hold_ns = (uint64_t)(number("GPULOOM_SHARE_MAX_HOLD_MS", 100, MOST_HOLD_MS) * 1e6);
    p->warm_up = (uint32_t)number("GPULOOM_SHARE_WARM_UP", 0, UINT32_MAX);
    gls_memory_bound(number("GPULOOM_SHARE_MEMORY_MIB", 0, MOST_MIB));
    p->map = (struct gls_map){.fd = -1, .slot = -1};
    static bool prepared; /* a fork while the profile is read leaves the child to decide anew */
    if (!prepared) pthread_atfork(NULL, NULL, fork_child);
    prepared = true;
    gls_profile_load();
    return GLS_MODE_MANAGED;
}

int gls_decide(void) {
    pthread_mutex_lock(&deciding);
    int mode = atomic_load(&gls_mode);
    if (mode == GLS_MODE_NEW) {
        mode = mode_from_environment();
        atomic_store(&gls_mode, mode);
    }
    pthread_mutex_unlock(&deciding);
    return mode;
}

/* This program is not to be managed (any more). Its slot stays, to be seen by `share top`. */
static void step_aside(const char *why) {
    struct gls_process *p = &gls_process;
    gls_log("%s; passing through", why);
    atomic_store(&gls_mode, GLS_MODE_PASS);
    gls_lock();
    if (p->attached) {
        uint64_t keep = ~(1ull << (unsigned)p->map.slot);
        atomic_store(&p->client->klass, GLS_CLASS_EXEMPT);
        atomic_store(&p->client->busy, 0);
        atomic_store(&p->client->held, 0);
        atomic_fetch_and(&p->map.header->high_mask, keep);
        atomic_fetch_and(&p->map.header->best_mask, keep);
        gls_wake(&p->map);
        p->attached = false;
    }
    gls_unlock();
}

static bool attach(CUdevice device) {
    struct gls_process *p = &gls_process;
    CUuuid uuid;
    int sms = 0;
    char path[4096], name[GLS_NAME] = "";
    if (!gls_own.uuid || gls_own.uuid(&uuid, device) != CUDA_SUCCESS || !gls_own.attribute ||
        gls_own.attribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS || sms <= 0) {
        step_aside("the driver does not tell the GPU's UUID and SMs");
        return false;
    }
    const unsigned char *u = (const unsigned char *)uuid.bytes;
    const char *dir = secure_getenv("GPULOOM_SHARE_DIR");
    int length = snprintf(path, sizeof path,
                          "%s/%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x.share", dir, u[0],
                          u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
                          u[15]);
    if (length < 0 || length >= (int)sizeof path) {
        step_aside("GPULOOM_SHARE_DIR is too long");
        return false;
    }
    const char *title = secure_getenv("GPULOOM_SHARE_NAME");
    snprintf(name, sizeof name, "%s", title && *title ? title : program_invocation_short_name);
    struct gls_map map;
    enum gls_error error = gls_open(&map, path, u, (uint32_t)sms);
    if (error == GLS_OK && (error = gls_attach(&map, p->klass, name, gls_now())) != GLS_OK) {
        gls_reap(&map, ~0ull);
        gls_close(&map);
    }
    if (error != GLS_OK) {
        gls_log("%s: %s (%s)", path, gls_error_text(error), error == GLS_NO_FILE ? strerror(errno) : "");
        step_aside("no shared memory");
        return false;
    }
    bool overlaps = gls_overlaps();
    if (!overlaps) gls_log("without MPS programs' contexts take turns: best-effort kernels run between requests only");
    gls_lock();
    p->overlaps = overlaps;
    p->device = device;
    p->sm_count = (unsigned)sms;
    p->map = map;
    p->client = &map.clients[map.slot];
    p->attached = true;
    gls_unlock();
    gls_log("%s: slot %d, %s, %d SMs", path, map.slot, p->klass == GLS_CLASS_HIGH ? "high" : "best-effort", sms);
    return true;
}

/* Whether this thread's current context is on the GPU that this program shares; attaches at the first launch. */
static bool ready(void) {
    struct gls_process *p = &gls_process;
    CUcontext context = NULL;
    if (!gls_own.context || gls_own.context(&context) != CUDA_SUCCESS || !context) return false;
    unsigned generation = atomic_load_explicit(&p->generation, memory_order_relaxed);
    if (__builtin_expect(context == gls_self.context && gls_self.generation == generation, 1)) return true;
    CUdevice device = -1;
    if (!gls_own.device || gls_own.device(&device) != CUDA_SUCCESS) return false;
    pthread_mutex_lock(&attaching);
    bool good = atomic_load(&gls_mode) == GLS_MODE_MANAGED;
    if (good && p->attached && p->device != device) {
        step_aside("the program uses several GPUs: exempt");
        good = false;
    }
    if (good && !p->attached) good = attach(device);
    pthread_mutex_unlock(&attaching);
    if (good) gls_self.context = context, gls_self.generation = generation;
    return good;
}

static void count(_Atomic uint64_t *counter, uint64_t by) { /* one writer at a time, or no matter if one is lost */
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + by, memory_order_relaxed);
}

/* What the rest of a request can make up for, and is behind now; of several the least, and the most. */
static void look_at_spare(struct gl_state *s, const struct gls_client *c, uint64_t request, uint64_t gone, uint64_t now,
                          bool first) {
    uint64_t spare = atomic_load_explicit(&c->spare_ns, memory_order_relaxed), lag = 0, left = 0;
    uint64_t caught_up = atomic_load_explicit(&c->caught_up_ns, memory_order_relaxed);
    if (spare && request) {
        double rate = (double)spare / (double)request;
        left = request > gone ? (uint64_t)(rate * (double)(request - gone)) : 0;
        lag = caught_up > now ? (uint64_t)(rate * (double)(caught_up - now)) : 0;
    }
    if (first || left < s->spare_ns) s->spare_ns = left;
    if (first || lag > s->lag_ns) s->lag_ns = lag;
}

/* A best-effort kernel was admitted beside a request: it catches up the later. */
static void fall_behind(struct gls_client *c, uint64_t lag_ns, uint64_t now) {
    uint64_t spare = atomic_load_explicit(&c->spare_ns, memory_order_relaxed);
    uint64_t request = atomic_load_explicit(&c->request_ns, memory_order_relaxed);
    uint64_t before = atomic_load_explicit(&c->caught_up_ns, memory_order_relaxed);
    if (!spare) return;
    double takes = (double)lag_ns * (double)request / (double)spare;
    atomic_store_explicit(&c->caught_up_ns, (before > now ? before : now) + (uint64_t)(takes < 1e12 ? takes : 1e12),
                          memory_order_relaxed);
}

/* Fill in what the high-priority programs do, and when their next kernel ends; returns the slots of those whose request
 * is in progress. */
static uint64_t look_at_high(struct gl_state *s, struct gl_kernel *queue, uint64_t now, uint64_t *next_ns) {
    struct gls_process *p = &gls_process;
    uint64_t busy = 0, mask = atomic_load_explicit(&p->map.header->high_mask, memory_order_acquire);
    s->hp = queue;
    s->hp_count = 0;
    s->request_ns = 0;
    s->slack_ns = GL_UNKNOWN_SLACK;
    for (; mask; mask &= mask - 1) {
        unsigned slot = (unsigned)__builtin_ctzll(mask);
        const struct gls_client *c = &p->map.clients[slot];
        uint64_t request = atomic_load_explicit(&c->request_ns, memory_order_relaxed);
        if (request && (!s->request_ns || request < s->request_ns)) s->request_ns = request;
        if (!atomic_load_explicit(&c->busy, memory_order_acquire)) continue;
        uint64_t delay = atomic_load_explicit(&c->delay_ns, memory_order_relaxed);
        uint64_t end = atomic_load_explicit(&c->end_ns, memory_order_relaxed) + delay; /* kept without it */
        if (now > end && now - end > QUIET_NS + request) continue;
        uint64_t launches = atomic_load_explicit(&c->launches, memory_order_relaxed);
        if (atomic_load_explicit(&p->stale[slot], memory_order_relaxed) == launches + 1) continue;
        int64_t slack = atomic_load_explicit(&c->slack_ns, memory_order_relaxed);
        if (slack != GL_UNKNOWN_SLACK && (s->slack_ns == GL_UNKNOWN_SLACK || slack < s->slack_ns))
            s->slack_ns = slack;
        uint64_t elapsed = 0;
        uint32_t more = gls_ring_read(c, now, queue + s->hp_count, GLS_QUEUE - s->hp_count, &elapsed, next_ns);
        if (s->hp_count == 0) s->hp_elapsed_ns = elapsed;
        s->hp_count += more;
        /* Behind one that waited more may wait. */
        s->requests += atomic_load_explicit(&c->row, memory_order_relaxed) > 1 ? 2 : 1;
        uint64_t since = atomic_load_explicit(&c->busy_ns, memory_order_relaxed);
        uint64_t gone = now > since ? now - since : 0;
        gone = gone > delay ? gone - delay : 0;
        look_at_spare(s, c, request, gone, now, busy == 0);
        double scale = (double)atomic_load_explicit(&c->price_scale, memory_order_relaxed) / 1e6;
        double load = (double)atomic_load_explicit(&c->load, memory_order_relaxed) / 1e6;
        if (scale > 0 && (s->price_scale <= 0 || scale < s->price_scale)) s->price_scale = scale;
        s->load += load;
        /* Who waits behind the request is not to be seen: what has come since it began is expected by the load. */
        s->backlog_ns += (request > gone ? request - gone : 0) + (uint64_t)(load * (double)gone);
        busy |= 1ull << slot;
    }
    s->hp_busy = busy != 0;
    return busy;
}

static void overrule(uint64_t busy) {
    struct gls_process *p = &gls_process;
    for (; busy; busy &= busy - 1) {
        unsigned slot = (unsigned)__builtin_ctzll(busy);
        uint64_t launches = atomic_load_explicit(&p->map.clients[slot].launches, memory_order_relaxed);
        atomic_store_explicit(&p->stale[slot], launches + 1, memory_order_relaxed);
    }
}

static void pause_briefly(void) {
    for (int i = 0; i < 32; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

/* Free the slots of high-priority programs that have died, unless that was done only just now. */
static void reap(uint64_t now, uint64_t period) {
    static _Atomic uint64_t last;
    uint64_t before = atomic_load_explicit(&last, memory_order_relaxed);
    if (now - before < period || !atomic_compare_exchange_strong(&last, &before, now)) return;
    gls_reap(&gls_process.map, atomic_load(&gls_process.map.header->high_mask));
}

/* A thread is held from now on. Our slot is written to under the lock, and only while it is ours. */
static void hold_begins(uint64_t now, uint32_t reason) {
    struct gls_process *p = &gls_process;
    gls_lock();
    p->holding++;
    if (p->attached) {
        if (p->holding == 1) atomic_store(&p->client->held_since_ns, now);
        atomic_store(&p->client->held, reason + 1);
        count(&p->client->holds, 1);
        count(&p->client->reasons[reason % GLS_REASONS], 1);
    }
    gls_unlock();
    gls_fault("held");
}

static void hold_ends(bool began, uint64_t waited, uint32_t reason) {
    struct gls_process *p = &gls_process;
    gls_lock();
    if (began) p->holding--;
    if (p->attached) {
        struct gls_client *c = p->client;
        if (began && p->holding == 0) atomic_store(&c->held, 0);
        if (waited) count(&c->held_ns, waited);
        if (waited > atomic_load_explicit(&c->max_held_ns, memory_order_relaxed)) atomic_store(&c->max_held_ns, waited);
        count(&c->reasons[reason % GLS_REASONS], 1);
    }
    gls_unlock();
}

/* Sleep until a request has ended, at most so long. */
static void sleep_held(uint32_t seen, uint64_t ns) {
    struct gls_process *p = &gls_process;
    gls_lock();
    if (p->waiters++ == 0 && p->attached) gls_announce(&p->map, true);
    gls_unlock();
    gls_wait(&p->map, seen, ns);
    gls_lock();
    if (--p->waiters == 0 && p->attached) gls_announce(&p->map, false);
    gls_unlock();
}

/* Wait until the rule admits the launch, or it has waited for max_hold in all, `waited` before this. */
static void hold(const struct gl_kernel *k, uint32_t kind, uint64_t waited) {
    struct gls_process *p = &gls_process;
    struct gl_kernel queue[GLS_QUEUE];
    struct gl_verdict verdict;
    uint64_t began = 0, now, busy;
    for (;;) {
        uint32_t seen = atomic_load(&p->map.header->idle);
        struct gl_state s = {.version = GL_ADMISSION_VERSION, .sm_count = p->sm_count, .kind = kind};
        now = gls_now();
        if (atomic_load(&gls_mode) != GLS_MODE_MANAGED) { /* the process ends, or steps aside */
            verdict = (struct gl_verdict){.reason = GL_ADMIT_EXEMPT};
            busy = 0;
            break;
        }
        uint64_t next = RECHECK_NS; /* what holds the launch may be another reason when a kernel has ended */
        busy = look_at_high(&s, queue, now, &next);
        gls_outstanding(&p->map, now, &s.outstanding_ns, &s.outstanding_sm, &s.outstanding);
        s.accumulated_ns = s.outstanding_ns;
        s.pass_sm = s.outstanding_sm;
        s.held_ns = waited + (began ? now - began : 0);
        gl_admit(&p->params, &s, k, &verdict);
        /* The rule takes it that both run at the same time. Where they don't, the request would wait for all of it. */
        if (!p->overlaps && (verdict.reason == GL_ADMIT_BESIDE || verdict.reason == GL_ADMIT_PRICED))
            verdict = (struct gl_verdict){.reason = GL_HOLD_TURNS, .interference = verdict.interference};
        if (verdict.admit || verdict.reason == GL_HOLD_BAD_INPUT) break;
        if (!began) {
            began = now;
            hold_begins(now, verdict.reason);
        }
        uint64_t held = now - began;
        if (waited + held >= p->params.max_hold_ns) {
            verdict.reason = GL_ADMIT_MAX_HOLD;
            break;
        }
        uint64_t rest = p->params.max_hold_ns - waited - held;
        if (verdict.recheck_ns && verdict.recheck_ns < next) next = verdict.recheck_ns;
        if (s.outstanding_ns && s.outstanding_ns < next) next = s.outstanding_ns;
        if (next > rest) next = rest;
        /* A wait for the GPU's own queue is met to the microsecond, as the GPU is idle from then on: a wait for the
         * service is not, as it could last and would burn a processor. */
        bool queue_only = verdict.reason == GL_HOLD_WINDOW || !busy;
        if (held < SPIN_NS || (queue_only && next < SOON_NS)) {
            if (gls_sleep) gls_sleep(next < 1000 ? 1000 : next < SPIN_NS ? next : SPIN_NS);
            else pause_briefly();
            continue;
        }
        if (queue_only) next -= SOON_NS;
        sleep_held(seen, next < SPIN_NS && rest > SPIN_NS ? SPIN_NS : next);
        if (held >= REAP_NS) reap(now, REAP_NS);
    }
    if (verdict.reason == GL_ADMIT_MAX_HOLD) overrule(busy);
    reap(now, CALM_REAP_NS);
    hold_ends(began != 0, waited + (began ? now - began : 0), verdict.reason);
    for (; busy; busy &= busy - 1) {
        struct gls_client *high = &p->map.clients[__builtin_ctzll(busy)];
        atomic_fetch_add_explicit(&high->touched, 1, memory_order_relaxed);
        if (verdict.lag_ns) fall_behind(high, verdict.lag_ns, now);
        if (!verdict.charge_ns) continue;
        atomic_fetch_add_explicit(&high->delay_ns, verdict.charge_ns, memory_order_relaxed);
        if (atomic_load(&high->slack_ns) != GL_UNKNOWN_SLACK)
            atomic_fetch_sub(&high->slack_ns, (int64_t)verdict.charge_ns);
    }
    uint64_t duration = k->duration_ns ? k->duration_ns : p->params.unknown_duration_ns;
    gls_account(&p->map, now, duration, k->sm < p->sm_count ? k->sm : p->sm_count);
    gls_fault("accounted");
}

static bool worth_sampling(const struct gls_known *known) {
    uint32_t n = known->launches;
    if (known->profiled || n < 3) return false; /* the first ones load modules and warm caches */
    return n < 8 || (n < 1024 ? n % 64 == 0 : n % 1024 == 0);
}

void gls_before(struct gls_ticket *t, const struct gls_key *key, CUstream handle, uintptr_t stream) {
    struct gls_process *p = &gls_process;
    t->managed = t->sampled = false;
    t->sample = -1;
    if (gls_self.inside) return;
    if (!ready()) return;
    if (atomic_load_explicit(&gls_captures, memory_order_relaxed) > 0) {
        gls_lock();
        if (p->attached) count(&p->client->captured, 1);
        gls_unlock();
        return;
    }
    bool graph = key->grid[0] == 0;
    gls_lock();
    struct gls_known *known = gls_find(key);
    if (__builtin_expect(!known, 0)) {
        gls_unlock();
        struct gls_known fresh = {.key = *key, .id = (uint64_t)(uintptr_t)key->f | 1,
                                  .kernel = {.sm = p->sm_count, .compute = -1.0, .dram = -1.0}};
        gls_self.inside++;
        if (!graph) fresh = gls_describe(key, p->sm_count);
        gls_self.inside--;
        if (fresh.collective) {
            step_aside("the program uses NCCL: exempt");
            return;
        }
        gls_lock();
        known = gls_add(&fresh);
    }
    if (!p->attached) { /* another thread has left meanwhile */
        gls_unlock();
        return;
    }
    struct gls_client *c = p->client;
    known->launches++;
    bool warm = known->launches <= p->warm_up && !known->profiled && !graph;
    t->sampled = worth_sampling(known);
    struct gl_kernel kernel = known->kernel;
    uint64_t id = known->id;
    count(graph ? &c->graphs : &c->kernels, 1);
    count(&c->gpu_ns, kernel.duration_ns);
    if (p->klass == GLS_CLASS_HIGH) {
        gls_track_launch(stream, gls_now(), &kernel, id);
    } else {
        gls_track_stream(stream);
        gls_ring_put(&kernel, id, 0);
    }
    gls_unlock();
    t->managed = true;
    t->stream = stream;
    t->kernel = kernel;
    if (p->klass == GLS_CLASS_BEST_EFFORT && atomic_load_explicit(&p->map.header->high_mask, memory_order_acquire)) {
        uint64_t ahead = 8 * p->params.idle_window_ns, waited = 0;
        if (ahead && !warm) waited = gls_keep_close(stream, ahead, p->params.max_hold_ns);
        hold(&kernel, warm ? GL_KIND_WARM_UP : graph ? GL_KIND_GRAPH : GL_KIND_KERNEL, waited);
    }
    if (t->sampled) t->sample = gls_sample_begins(key, handle);
    gls_fault("before-launch");
}

void gls_after(struct gls_ticket *t, CUstream handle, CUresult result) {
    struct gls_process *p = &gls_process;
    if (!t->managed) return;
    gls_fault("launched");
    if (t->sample >= 0) gls_sample_ends(t->sample, handle, result == CUDA_SUCCESS);
    if (p->klass == GLS_CLASS_BEST_EFFORT && p->params.idle_window_ns &&
        atomic_load_explicit(&p->map.header->high_mask, memory_order_relaxed)) {
        uint64_t duration = t->kernel.duration_ns ? t->kernel.duration_ns : p->params.unknown_duration_ns;
        gls_launched(t->stream, handle, duration, 2 * p->params.idle_window_ns);
    }
}
