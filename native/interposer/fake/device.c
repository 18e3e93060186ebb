/* See device.h.
 *
 * Model: a kernel starts when the work before it in its stream is done and enough SMs are free (or none is in use);
 * running kernels all slow down by max(1, sum of compute, sum of bandwidth). Virtual clock: each thread has a time of its
 * own and goes on only while it is the earliest of all, so the order of everything is the same in every run. */
#define _GNU_SOURCE
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define QUEUE 256
#define EVENTS 8192
#define THREADS 32
#define CALL_NS 100u

struct participant {
    pid_t process; /* 0: free */
    uint64_t now;
};

struct shared {
    uint32_t ready;
    uint32_t expected, seen; /* virtual clock: nobody moves before so many threads have come */
    bool is_virtual;
    uint32_t sms;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    uint64_t now;
    uint64_t next_stream;
    struct participant threads[THREADS];
    struct {
        uint64_t now;
        uint32_t count;
        struct fake_work work[QUEUE];
    } devices[FAKE_DEVICES];
    struct {
        pid_t process;
        uint64_t time;
    } events[EVENTS];
};

static struct shared *all;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t leaving;
static _Thread_local int me = -1;
static _Thread_local pid_t me_in;

static void leave(void *unused);

static void take(void) {
    if (pthread_mutex_lock(&all->lock) == EOWNERDEAD) pthread_mutex_consistent(&all->lock);
}
static void give(void) { pthread_mutex_unlock(&all->lock); }

static void leave_at_exit(void) { leave(NULL); }

static void set_up(void) {
    const char *path = getenv("FAKE_STATE");
    int fd = path && *path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd >= 0) {
        flock(fd, LOCK_EX);
        (void)!ftruncate(fd, sizeof *all);
    }
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    if (all == MAP_FAILED) abort();
    if (!all->ready) {
        pthread_mutexattr_t mutex;
        pthread_mutexattr_init(&mutex);
        pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&mutex, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&all->lock, &mutex);
        pthread_condattr_t condition;
        pthread_condattr_init(&condition);
        pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED);
        pthread_condattr_setclock(&condition, CLOCK_MONOTONIC);
        pthread_cond_init(&all->turn, &condition);
        const char *wanted = getenv("FAKE_VIRTUAL"), *sms = getenv("FAKE_SMS");
        all->expected = wanted ? (uint32_t)atoi(wanted) : 0;
        all->is_virtual = all->expected > 0;
        all->sms = sms ? (uint32_t)atoi(sms) : 80;
        all->next_stream = 1;
        all->ready = 1;
    }
    if (fd >= 0) {
        flock(fd, LOCK_UN); /* the mapping would keep it beyond close */
        close(fd);
    }
    pthread_key_create(&leaving, leave);
    atexit(leave_at_exit);
}

static void begin(void) { pthread_once(&once, set_up); }

bool fake_virtual(void) {
    begin();
    return all->is_virtual;
}

int fake_sms(void) {
    begin();
    return (int)all->sms;
}

static uint64_t real_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool blocked(int device, uint32_t index) {
    for (uint32_t i = 0; i < index; i++)
        if (all->devices[device].work[i].stream == all->devices[device].work[index].stream) return true;
    return false;
}

static void take_off(int device, uint32_t index) {
    uint32_t count = --all->devices[device].count;
    memmove(&all->devices[device].work[index], &all->devices[device].work[index + 1],
            (count - index) * sizeof(struct fake_work));
}

/* Start what can start; reached events are noted. Returns the slowdown of what runs. */
static double start(int device) {
    uint32_t used = 0;
    double compute = 0, dram = 0;
    for (uint32_t i = 0; i < all->devices[device].count; i++)
        if (all->devices[device].work[i].running) used += all->devices[device].work[i].sm;
    for (uint32_t i = 0; i < all->devices[device].count; i++) {
        struct fake_work *w = &all->devices[device].work[i];
        if (!w->running && !blocked(device, i)) {
            if (w->event >= 0) {
                all->events[w->event].time = all->devices[device].now ? all->devices[device].now : 1;
                take_off(device, i);
                i--;
                continue;
            }
            if (used == 0 || used + w->sm <= all->sms) w->running = true, used += w->sm;
        }
        if (w->running) compute += (double)w->compute, dram += (double)w->dram;
    }
    double slow = compute > dram ? compute : dram;
    return slow > 1 ? slow : 1;
}

/* With the lock held: what happens on the device until `to`. Returns when something happens next (0: never). */
static uint64_t advance(int device, uint64_t to) {
    for (;;) {
        double slow = start(device), least = -1;
        for (uint32_t i = 0; i < all->devices[device].count; i++) {
            struct fake_work *w = &all->devices[device].work[i];
            if (w->running && (least < 0 || w->left_ns < least)) least = w->left_ns;
        }
        uint64_t now = all->devices[device].now, next = least < 0 ? 0 : now + (uint64_t)(least * slow + 0.999);
        if (next && next <= now) next = now + 1;
        uint64_t until = next && next < to ? next : to;
        if (until > now) {
            double done = (double)(until - now) / slow;
            all->devices[device].now = until;
            for (uint32_t i = all->devices[device].count; i-- > 0;) {
                struct fake_work *w = &all->devices[device].work[i];
                if (!w->running) continue;
                w->left_ns -= done;
                if (w->left_ns < 0.5) take_off(device, i);
            }
        }
        if (!next || until < next || until >= to) {
            start(device);
            return next;
        }
    }
}

/* Forget the dead: their work goes with them, their threads wait for nothing. */
static void bury(void) {
    for (int i = 0; i < THREADS; i++) {
        pid_t process = all->threads[i].process;
        if (process && kill(process, 0) != 0 && errno == ESRCH) all->threads[i].process = 0;
    }
}

static void leave(void *unused) {
    (void)unused;
    if (me < 0 || me_in != getpid() || !all) return;
    take();
    all->threads[me].process = 0;
    me = -1;
    pthread_cond_broadcast(&all->turn);
    give();
}

static void join(void) {
    if (me >= 0 && me_in == getpid()) return;
    take();
    bury();
    for (int i = 0; i < THREADS; i++) {
        if (all->threads[i].process) continue;
        all->threads[i].process = me_in = getpid();
        all->threads[i].now = all->now;
        me = i;
        break;
    }
    if (me < 0) abort();
    all->seen++;
    pthread_cond_broadcast(&all->turn);
    give();
    pthread_setspecific(leaving, all);
}

/* Virtual clock: move this thread's time on and wait until it is the earliest. Leaves with the lock held. */
static void turn(uint64_t ns) {
    join();
    take();
    all->threads[me].now += ns;
    pthread_cond_broadcast(&all->turn);
    for (;;) {
        int first = -1;
        for (int i = 0; i < THREADS; i++)
            if (all->threads[i].process && (first < 0 || all->threads[i].now < all->threads[first].now)) first = i;
        if (first == me && all->seen >= all->expected) break;
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 50000000;
        if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
        int result = pthread_cond_timedwait(&all->turn, &all->lock, &until);
        if (result == EOWNERDEAD) pthread_mutex_consistent(&all->lock);
        if (result == ETIMEDOUT) bury();
    }
    if (all->threads[me].now > all->now) all->now = all->threads[me].now;
}

uint64_t fake_now(void) {
    begin();
    if (!all->is_virtual) return real_now();
    turn(0);
    uint64_t now = all->threads[me].now;
    give();
    return now + 1000000000u; /* no 0 */
}

void fake_pass(uint64_t ns) {
    begin();
    if (all->is_virtual) {
        turn(ns);
        give();
    } else {
        struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
        nanosleep(&t, NULL);
    }
}

/* Take the lock with the device brought up to date. */
static uint64_t enter(int device) {
    begin();
    if (all->is_virtual)
        turn(CALL_NS);
    else
        take();
    return advance(device, all->is_virtual ? all->threads[me].now : real_now());
}

void fake_queue(int device, const struct fake_work *work) {
    for (;;) {
        enter(device);
        if (all->devices[device].count < QUEUE) break;
        give();
        fake_pass(20000);
    }
    struct fake_work *w = &all->devices[device].work[all->devices[device].count++];
    *w = *work;
    if (w->sm > all->sms) w->sm = all->sms;
    start(device);
    give();
}

bool fake_done(int device, uint64_t stream, bool wait) {
    uint64_t process = (uint64_t)getpid() << 32;
    for (;;) {
        uint64_t next = enter(device);
        bool open = false;
        for (uint32_t i = 0; i < all->devices[device].count && !open; i++) {
            uint64_t name = all->devices[device].work[i].stream;
            open = stream ? name == stream : (name & ~0xffffffffull) == process;
        }
        uint64_t now = all->devices[device].now;
        give();
        if (!open || !wait) return !open;
        uint64_t rest = next > now ? next - now : 1000;
        fake_pass(all->is_virtual || rest < 50000 ? rest : 50000);
    }
}

uint64_t fake_stream(void) {
    begin();
    take();
    uint64_t name = all->next_stream++ | (uint64_t)getpid() << 32;
    give();
    return name;
}

int fake_event_new(void) {
    begin();
    take();
    int found = -1;
    for (int i = 0; i < EVENTS && found < 0; i++)
        if (!all->events[i].process) found = i;
    if (found >= 0) all->events[found].process = getpid(), all->events[found].time = 0;
    give();
    return found;
}

void fake_event_free(int event) {
    take();
    all->events[event].process = 0;
    give();
}

void fake_event_reset(int event) {
    take();
    all->events[event].time = 0;
    give();
}

uint64_t fake_event_time(int device, int event) {
    enter(device);
    uint64_t time = all->events[event].time;
    give();
    return time;
}
