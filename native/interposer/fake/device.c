/* See device.h.
 *
 * Model, the same as the simulator's (virtual_gpu.c; reasons in docs/explanation/sharing.md): a kernel's blocks come as SM-sized
 * portions that hold whole SMs and are not taken off; free SMs go to the stream of the highest priority, then to the
 * kernel that was ready first; where kernels ask for more than all of compute or bandwidth, each is slowed. A kernel can
 * start SUBMIT_NS after its launch and GAP_NS after the one before it in its stream.
 *
 * clock.c keeps the virtual clock. */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CALL_NS 100u
#define SUBMIT_NS 2000u
#define GAP_NS 1000u
#define WAVES 32u
#define BOUND 0.6     /* utilisation from which on a kernel suffers fully from a resource that is oversubscribed */
#define CACHE 0.05    /* slowdown per unit of the others' use of bandwidth */
#define UNKNOWN 0.5

struct shared *fake_all;
#define all fake_all
#define me fake_me
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int priority;

static void leave_at_exit(void) { fake_leave(NULL); }

static double number(const char *name, double otherwise) {
    const char *text = getenv(name);
    return text && *text ? atof(text) : otherwise;
}

static void create(void) {
    pthread_mutexattr_t mutex;
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&mutex, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&all->lock, &mutex);
    pthread_condattr_t condition;
    pthread_condattr_init(&condition);
    pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED);
    pthread_condattr_setclock(&condition, CLOCK_MONOTONIC);
    for (int i = 0; i < THREADS; i++) pthread_cond_init(&all->threads[i].turn, &condition);
    all->expected = (uint32_t)number("FAKE_VIRTUAL", 0);
    all->is_virtual = all->expected > 0;
    all->sms = (uint32_t)number("FAKE_SMS", 80);
    all->jitter = number("FAKE_JITTER", 0);
    for (int i = 0; i < FAKE_DEVICES; i++) all->devices[i].free_sms = all->sms;
    all->next_stream = 1;
    all->ready = 1;
}

static void set_up(void) {
    const char *path = getenv("FAKE_STATE");
    int fd = path && *path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd >= 0) {
        flock(fd, LOCK_EX);
        if (ftruncate(fd, sizeof *all) != 0) abort();
    }
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    if (all == MAP_FAILED) abort();
    if (!all->ready) create();
    if (fd >= 0) {
        flock(fd, LOCK_UN); /* the mapping would keep it beyond close */
        close(fd);
    }
    priority = (int)number("CUDA_MPS_CLIENT_PRIORITY", 0); /* NVIDIA: 0 normal, 1 below normal */
    pthread_key_create(&fake_leaving, fake_leave);
    atexit(leave_at_exit);
}

void fake_begin(void) { pthread_once(&once, set_up); }

bool fake_virtual(void) {
    fake_begin();
    return all->is_virtual;
}

int fake_sms(void) {
    fake_begin();
    return (int)all->sms;
}

static uint64_t real_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double util(float value) { return value < 0 ? UNKNOWN : value > 1 ? 1.0 : (double)value; }

static struct fake_work *head_of(struct stream *s) { return &s->ring[s->head % DEPTH]; }

/* The head of a stream has come up: it may start when it was submitted and the one before it is done. */
static void next_head(struct stream *s, uint64_t earliest) {
    if (s->count && head_of(s)->event < 0 && !head_of(s)->gate && head_of(s)->ready < earliest) head_of(s)->ready = earliest;
}

/* Whether a thread waits for no work any more; it goes on now. */
static bool release(int device, uint64_t now) {
    bool any = false;
    for (int i = 0; i < THREADS; i++) {
        struct participant *t = &all->threads[i];
        if (!t->process || t->now != NEVER || t->device != device) continue;
        bool open = false;
        for (uint32_t k = 0; k < all->devices[device].used && !open; k++) {
            const struct stream *s = &all->devices[device].streams[k];
            open = s->count && ((uint32_t)t->awaits ? s->name == t->awaits : s->name >> 32 == t->awaits >> 32);
        }
        if (!open) t->now = now, any = true;
    }
    return any;
}

static void pop(struct stream *s) {
    s->head++;
    if (--s->count == 0) s->name = 0;
}

/* Whether the head of a stream is an event that is reached now, or a wait for one that has been. */
static bool passes(struct stream *s, uint64_t now) {
    if (!s->count) return false;
    struct fake_work *w = head_of(s);
    if (w->gate) return all->events[w->gate - 1].time != 0;
    return w->event >= 0 && w->ready <= now;
}

/* Take off reached events; give free SMs to kernels that can start. Returns whether a stream has run empty. */
static bool start(struct device *d) {
    bool emptied = false;
    for (uint32_t i = 0; i < d->used;) {
        struct stream *s = &d->streams[i];
        if (!passes(s, d->now)) {
            i++;
            continue;
        }
        bool reached = head_of(s)->event >= 0;
        if (reached) all->events[head_of(s)->event].time = d->now ? d->now : 1;
        pop(s);
        if (!s->count) emptied = true;
        next_head(s, d->now);
        if (reached) i = 0; /* another stream may have waited for it */
    }
    while (d->free_sms && d->count < BATCHES) {
        struct stream *best = NULL;
        for (uint32_t i = 0; i < d->used; i++) {
            struct stream *s = &d->streams[i];
            if (!s->count || head_of(s)->event >= 0 || !head_of(s)->pending || head_of(s)->ready > d->now) continue;
            if (!best || s->priority < best->priority ||
                (s->priority == best->priority && head_of(s)->ready < head_of(best)->ready))
                best = s;
        }
        if (!best) break;
        struct fake_work *w = head_of(best);
        uint32_t sms = w->pending < d->free_sms ? w->pending : d->free_sms;
        uint32_t width = w->sm < all->sms ? w->sm : all->sms;
        float part = (float)sms / (float)width;
        d->batches[d->count++] = (struct batch){w->block_ns, 1, sms, (uint32_t)(best - d->streams),
                                                (float)util(w->compute) * part, (float)util(w->dram)};
        d->batches[d->count - 1].dram *= part;
        w->pending -= sms;
        w->running++;
        d->free_sms -= sms;
    }
    return emptied;
}

static void rates(struct device *d) {
    if (!d->count) return;
    double compute = 0, dram = 0, own[STREAMS] = {0};
    for (uint32_t i = 0; i < d->count; i++) {
        compute += (double)d->batches[i].compute;
        dram += (double)d->batches[i].dram;
        own[d->batches[i].stream] += (double)d->batches[i].dram;
    }
    for (uint32_t i = 0; i < d->count; i++) {
        struct batch *b = &d->batches[i];
        const struct fake_work *w = head_of(&d->streams[b->stream]);
        double c = util(w->compute) / BOUND, m = util(w->dram) / BOUND, slow = 1, other = dram - own[b->stream], s;
        if (compute > 1 && (s = 1 + (c > 1 ? 1 : c) * (compute - 1)) > slow) slow = s;
        if (dram > 1 && (s = 1 + (m > 1 ? 1 : m) * (dram - 1)) > slow) slow = s;
        b->rate = 1 / (slow + CACHE * (other > 1 ? 1 : other));
    }
}

/* When something happens next, after `now`; NEVER: nothing will. */
static uint64_t next_event(const struct device *d) {
    uint64_t next = NEVER;
    for (uint32_t i = 0; i < d->count; i++) {
        uint64_t at = d->now + (uint64_t)(d->batches[i].left_ns / d->batches[i].rate + 0.999);
        if (at <= d->now) at = d->now + 1;
        if (at < next) next = at;
    }
    for (uint32_t i = 0; i < d->used; i++) {
        const struct stream *s = &d->streams[i];
        if (!s->count) continue;
        const struct fake_work *w = &s->ring[s->head % DEPTH];
        if (w->ready > d->now && w->ready < next) next = w->ready;
    }
    return next;
}

/* Move the device on to `until`, at which something may happen. Returns whether a stream has run empty. */
static bool step(struct device *d, uint64_t until) {
    double passed = (double)(until - d->now);
    bool emptied = false;
    uint32_t kept = 0;
    d->now = until;
    if (!d->used) return false;
    for (uint32_t i = 0; i < d->count; i++) {
        struct batch *b = &d->batches[i];
        b->left_ns -= passed * b->rate;
        if (b->left_ns > 0.5) {
            d->batches[kept++] = *b;
            continue;
        }
        d->free_sms += b->sms;
        struct stream *s = &d->streams[b->stream];
        struct fake_work *w = head_of(s);
        if (--w->running || w->pending) continue;
        pop(s);
        if (!s->count) emptied = true;
        next_head(s, d->now + GAP_NS);
    }
    d->count = kept;
    if (start(d)) emptied = true;
    rates(d);
    return emptied;
}

/* With the lock held: what happens on all devices until `to`, or until a thread that waited for it can go on. */
void fake_advance(uint64_t to) {
    for (;;) {
        uint64_t next = to;
        for (int i = 0; i < FAKE_DEVICES; i++) {
            uint64_t at = next_event(&all->devices[i]);
            if (at < next) next = at;
        }
        if (next == NEVER) return;
        bool released = false;
        for (int i = 0; i < FAKE_DEVICES; i++) {
            struct device *d = &all->devices[i];
            if (next > d->now && step(d, next)) released |= release(i, next);
        }
        if (released || next >= to) return;
    }
}

/* Take the lock with the devices brought up to date. */
static void enter(uint64_t call_ns) {
    fake_begin();
    if (all->is_virtual) {
        fake_turn(call_ns);
        return;
    }
    fake_take();
    fake_advance(real_now());
}

static uint64_t time_of(int device) {
    return all->is_virtual ? all->threads[me].now : all->devices[device].now;
}

static struct stream *stream_of(int device, uint64_t name) {
    struct stream *free = NULL;
    for (uint32_t i = 0; i < STREAMS && !(free && i >= all->devices[device].used); i++) {
        struct stream *s = &all->devices[device].streams[i];
        if (s->count && s->name == name) return s;
        if (!s->count && (!free || s->name == name)) free = s;
    }
    return free;
}

/* The n-th kernel of a program lasts equally long in every run. */
static double factor(void) { /* splitmix64's finaliser */
    static uint64_t launched;
    uint64_t x = ++launched * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return 1 + all->jitter * (2 * ((double)((x ^ (x >> 31)) >> 11) * 0x1p-53) - 1);
}

void fake_queue(int device, uint64_t stream, const struct fake_work *work, uint64_t call_ns) {
    struct stream *s;
    enter(call_ns);
    while (!(s = stream_of(device, stream)) || s->count >= DEPTH) {
        fake_give();
        fake_pass(20000);
        enter(0);
    }
    uint64_t now = time_of(device);
    struct fake_work *w = &s->ring[(s->head + s->count) % DEPTH];
    *w = *work;
    w->running = 0;
    w->pending = 0;
    w->ready = now + (work->event < 0 && !work->gate ? SUBMIT_NS : 0);
    if (work->event < 0 && !work->gate) { /* blocks that follow each other on one SM are lumped, to at most WAVES waves */
        uint64_t slots = w->sm ? w->sm : 1, waves = (slots + all->sms - 1) / all->sms;
        uint64_t group = (waves + WAVES - 1) / WAVES;
        w->pending = (uint32_t)((slots + group - 1) / group);
        if (group > 1) waves = (w->pending + all->sms - 1) / all->sms;
        w->block_ns = w->ns / (double)waves * factor();
    }
    uint32_t place = (uint32_t)(s - all->devices[device].streams);
    if (place >= all->devices[device].used) all->devices[device].used = place + 1;
    s->name = stream;
    s->priority = priority;
    s->count++;
    if (start(&all->devices[device])) release(device, now);
    rates(&all->devices[device]);
    fake_give();
}

static bool open_work(int device, uint64_t stream) {
    for (uint32_t i = 0; i < all->devices[device].used; i++) {
        const struct stream *s = &all->devices[device].streams[i];
        if (s->count && (stream ? s->name == stream : s->name >> 32 == (uint64_t)getpid())) return true;
    }
    return false;
}

bool fake_done(int device, uint64_t stream, bool wait) {
    enter(CALL_NS);
    bool open = open_work(device, stream);
    if (all->is_virtual && open && wait) {
        struct participant *t = &all->threads[me];
        t->now = NEVER;
        t->device = device;
        t->awaits = stream ? stream : (uint64_t)getpid() << 32;
        fake_take_turn();
        t->now += WAKE_NS; /* a waiting thread notices the end a little later */
        fake_give();
        return true;
    }
    uint64_t next = next_event(&all->devices[device]), now = all->devices[device].now;
    fake_give();
    while (!all->is_virtual && open && wait) {
        uint64_t rest = next == NEVER || next <= now ? 1000 : next - now;
        fake_pass(rest < 50000 ? rest : 50000);
        enter(CALL_NS);
        open = open_work(device, stream);
        next = next_event(&all->devices[device]), now = all->devices[device].now;
        fake_give();
    }
    return !open;
}

uint64_t fake_stream(void) {
    fake_begin();
    fake_take();
    uint64_t name = all->next_stream++ | (uint64_t)getpid() << 32;
    fake_give();
    return name;
}

int fake_event_new(void) {
    fake_begin();
    fake_take();
    int found = -1;
    for (int i = 0; i < EVENTS && found < 0; i++)
        if (!all->events[i].process) found = i;
    if (found >= 0) all->events[found].process = getpid(), all->events[found].time = 0;
    fake_give();
    return found;
}

void fake_event_free(int event) {
    fake_take();
    all->events[event].process = 0;
    fake_give();
}

void fake_event_reset(int event) {
    fake_take();
    all->events[event].time = 0;
    fake_give();
}

uint64_t fake_event_time(int device, int event) {
    (void)device;
    enter(CALL_NS);
    uint64_t time = all->events[event].time;
    fake_give();
    return time;
}
