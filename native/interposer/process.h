/* State of this process, shared by gate.c (launches), track.c (what runs) and measure.c (durations, run-ahead). */
#ifndef GPULOOM_PROCESS_H
#define GPULOOM_PROCESS_H

#include "gate.h"

#define STREAMS 64u
#define EVENTS 256u
#define JOINS 64u
#define GLS_QUEUE 28u /* high-priority kernels looked at */

struct gls_stream_state {
    uintptr_t stream; /* 0: free */
    uint64_t last;    /* number of its last launch */
    bool dirty;
};

/* Requests that followed each other without a pause: whoever came second had been waiting. */
#define ROW 64u
struct gls_row {
    uint32_t count;
    uint64_t began_ns, alone_ns; /* of the first; of all so far */
    uint64_t end_ns[ROW], each_ns[ROW];
    /* of the request in progress */
    uint64_t work_ns, kernels, touched;
    uint64_t late_ns, usual; /* as gls_client.spare_ns, in its second half: after so many kernels */
    uint64_t bare_end_ns;    /* predicted end of all that was launched, without the gaps between kernels */
    bool clean; /* nothing of best effort was on the GPU when it began */
    uint64_t random;
};

struct gls_process {
    enum gls_class klass;
    struct gl_params params;
    uint32_t warm_up; /* launches of each kernel that are never held */
    bool overlaps;    /* kernels of several programs run at the same time (MPS) */
    CUdevice device;
    unsigned sm_count;
    struct gls_map map;
    struct gls_client *client;
    _Atomic unsigned generation; /* changes when what a thread knows of its context no longer holds */
    _Atomic bool attached;       /* set and cleared under gls_lock; our slot is written to only while it is set */
    /* under gls_lock: */
    unsigned holding, waiters; /* threads that are held; that sleep */
    uint64_t launches;
    struct gls_stream_state streams[STREAMS];
    unsigned dirty;
    bool overflow; /* more streams than fit: only a wait for the whole context counts */
    struct {
        CUevent event;
        uintptr_t stream;
        uint64_t launches;
    } events[EVENTS];
    struct gls_join { /* a stream that waits, on the GPU, for another's launches up to a number */
        uintptr_t stream, other; /* 0: none */
        uint64_t since, launches; /* since: launches when it began to */
    } joins[JOINS];
    unsigned next_join;
    struct gl_tail tail;
    struct gls_row row; /* of high-priority requests */
    uint64_t gap_ns;    /* between kernels of a request, alone: its time beyond its kernels', by kernel */
    /* written and read by best-effort launches */
    _Atomic uint64_t stale[GLS_CLIENTS]; /* activity of a high-priority program that max_hold has overruled, + 1 */
};
extern struct gls_process gls_process;

/* track.c, with gls_lock held: a launch on a stream; a launch of the high-priority program. */
void gls_track_stream(uintptr_t stream);
void gls_track_launch(uintptr_t stream, uint64_t now_ns, const struct gl_kernel *kernel, uint64_t id);
void gls_ring_put(const struct gl_kernel *kernel, uint64_t id, uint64_t end_ns);
/* Without the lock: the kernels of a high-priority program that run or wait on the GPU, oldest first; for how long the
 * first has run, and when the next one ends. */
uint32_t gls_ring_read(const struct gls_client *c, uint64_t now, struct gl_kernel *out, uint32_t room,
                       uint64_t *elapsed, uint64_t *next_ns);

/* measure.c */
int gls_sample_begins(const struct gls_key *key, CUstream stream); /* -1: not this time */
void gls_sample_ends(int sample, CUstream stream, bool good);
/* Wait while more than `ahead_ns` of work is queued on this stream; at most `limit_ns`. Returns the wait. Streams are
 * named as by gls_stream; the handle is what the driver takes. */
uint64_t gls_keep_close(uintptr_t stream, uint64_t ahead_ns, uint64_t limit_ns);
void gls_launched(uintptr_t stream, CUstream handle, uint64_t duration_ns, uint64_t marker_ns);
void gls_all_done(void);
void gls_measure_forget(CUcontext context); /* it is gone, and its events with it */
void gls_measure_reset(void);

#endif
