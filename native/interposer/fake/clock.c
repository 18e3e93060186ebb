/* The virtual clock: each thread has a time of its own and goes on only while it is the earliest of all, so the order of
 * everything is the same in every run. FAKE_RANK tells threads apart that have the same time. */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

_Thread_local int fake_me = -1;
static _Thread_local pid_t me_in;
pthread_key_t fake_leaving;
#define all fake_all
#define me fake_me

void fake_take(void) {
    if (pthread_mutex_lock(&all->lock) == EOWNERDEAD) pthread_mutex_consistent(&all->lock);
}
void fake_give(void) { pthread_mutex_unlock(&all->lock); }

static uint64_t real_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Forget the dead: their threads wait for nothing; what they launched runs on, as it does on a GPU for a while. */
static void bury(void) {
    for (int i = 0; i < THREADS; i++) {
        pid_t process = all->threads[i].process;
        if (process && kill(process, 0) != 0 && errno == ESRCH) all->threads[i].process = 0;
    }
}

static int earliest(void) {
    int first = -1;
    for (int i = 0; i < THREADS; i++)
        if (all->threads[i].process && (first < 0 || all->threads[i].now < all->threads[first].now)) first = i;
    return first;
}

void fake_leave(void *unused) {
    (void)unused;
    if (me < 0 || me_in != getpid() || !all) return;
    fake_take();
    all->threads[me].process = 0;
    me = -1;
    for (int i = 0; i < THREADS; i++)
        if (all->threads[i].process) pthread_cond_signal(&all->threads[i].turn);
    fake_give();
}

static void join(void) {
    if (me >= 0 && me_in == getpid()) return;
    fake_take();
    bury();
    const char *rank = getenv("FAKE_RANK");
    int from = rank ? atoi(rank) : 0;
    for (int i = from; i < THREADS; i++) {
        if (all->threads[i].process) continue;
        all->threads[i].process = me_in = getpid();
        all->threads[i].now = all->now;
        me = i;
        break;
    }
    if (me < 0) abort();
    all->seen++;
    for (int i = 0; i < THREADS; i++)
        if (all->threads[i].process) pthread_cond_signal(&all->threads[i].turn);
    fake_give();
    pthread_setspecific(fake_leaving, all);
}

/* Virtual clock, with the lock held: wait until this thread is the earliest, the devices brought up to its time. */
void fake_take_turn(void) {
    for (;;) {
        int first = earliest();
        if (all->seen >= all->expected && first >= 0) {
            fake_advance(all->threads[first].now);
            if (earliest() != first) continue; /* one that waited for the GPU comes before it */
            if (first == me && all->threads[me].now != NEVER) break;
            pthread_cond_signal(&all->threads[first].turn);
        }
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 50000000;
        if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
        int result = pthread_cond_timedwait(&all->threads[me].turn, &all->lock, &until);
        if (result == EOWNERDEAD) pthread_mutex_consistent(&all->lock);
        if (result == ETIMEDOUT) bury();
    }
    if (all->threads[me].now > all->now) all->now = all->threads[me].now;
}

void fake_turn(uint64_t ns) {
    join();
    fake_take();
    all->threads[me].now += ns;
    fake_take_turn();
}

uint64_t fake_now(void) {
    fake_begin();
    if (!all->is_virtual) return real_now();
    fake_turn(0);
    uint64_t now = all->threads[me].now;
    fake_give();
    return now + 1000000000u; /* no 0 */
}

void fake_pass(uint64_t ns) {
    fake_begin();
    if (all->is_virtual) {
        fake_turn(ns);
        fake_give();
    } else {
        struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
        nanosleep(&t, NULL);
    }
}

void fake_wait(uint64_t ns) {
    fake_begin();
    join();
    fake_take();
    all->threads[me].now += ns + SLACK_NS;
    all->threads[me].sleeps = true;
    fake_take_turn();
    all->threads[me].sleeps = false;
    fake_give();
}

void fake_wake(void) {
    fake_begin();
    fake_turn(0);
    uint64_t at = all->threads[me].now + WAKE_NS;
    for (int i = 0; i < THREADS; i++) {
        struct participant *t = &all->threads[i];
        if (t->process && t->sleeps && t->now > at) t->now = at;
    }
    fake_give();
}

