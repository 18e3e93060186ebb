/* What the processes share, and what device.c (the GPUs) and clock.c (whose turn it is) need of each other. */
#ifndef FAKE_STATE_H
#define FAKE_STATE_H

#include "device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#define DEPTH 1024u /* launches of a stream that may be ahead of the GPU */
#define STREAMS 64u /* that have work at a time */
#define BATCHES 512u
#define EVENTS 8192
#define THREADS 32
#define NEVER UINT64_MAX
#define WAKE_NS 3000u   /* until a thread that is woken goes on */
#define SLACK_NS 50000u /* by which Linux lets a timed wait run over by default (prctl(2), PR_SET_TIMERSLACK) */

struct participant {
    pid_t process; /* 0: free */
    uint64_t now;  /* NEVER: waits for the GPU */
    int device;
    uint64_t awaits;
    bool sleeps; /* may be woken */
    pthread_cond_t turn;
};

struct stream {
    uint64_t name; /* 0: no work */
    int priority;  /* smaller goes first, as cuStreamCreateWithPriority has it */
    uint32_t head, count;
    struct fake_work ring[DEPTH];
};

struct batch { /* blocks of one kernel that started together */
    double left_ns, rate;
    uint32_t sms, stream;
    float compute, dram;
};

struct device {
    uint64_t now;
    uint32_t count, free_sms;
    uint32_t used; /* streams from here on have never had work */
    struct batch batches[BATCHES];
    struct stream streams[STREAMS];
};

struct shared {
    uint32_t ready;
    uint32_t expected, seen; /* virtual clock: nobody moves before so many threads have come */
    bool is_virtual;
    uint32_t sms;
    double jitter;
    pthread_mutex_t lock;
    uint64_t now, next_stream;
    struct participant threads[THREADS];
    struct {
        pid_t process;
        uint64_t time;
    } events[EVENTS];
    struct device devices[FAKE_DEVICES];
};

extern struct shared *fake_all;
extern _Thread_local int fake_me; /* this thread's participant, -1: none yet */

/* device.c. Both want the lock held. */
void fake_begin(void);         /* the state is there from then on */
void fake_advance(uint64_t to); /* what happens on all devices until then, or until a thread that waited can go on */
/* clock.c */
void fake_take(void);
void fake_give(void);
void fake_turn(uint64_t ns); /* takes the lock: so much time has passed for this thread, and it is the earliest */
void fake_take_turn(void);   /* with the lock held: waits until this thread is the earliest */
void fake_leave(void *unused);
extern pthread_key_t fake_leaving;

#endif
