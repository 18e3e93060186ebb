/* The gate: what happens around a launch, a wait and a capture of a program that takes part. */
#ifndef GPULOOM_GATE_H
#define GPULOOM_GATE_H

#include "abi.h"
#include "kernels.h"
#include "shm.h"

enum gls_mode {
    GLS_MODE_NEW = 0,     /* nothing decided yet */
    GLS_MODE_PASS = 1,    /* everything passes through untouched, for good */
    GLS_MODE_MANAGED = 2
};
extern _Atomic int gls_mode;
extern _Atomic int gls_captures; /* stream captures in progress in this process */

struct gls_thread { /* 24 bytes of thread-local storage are all the shim takes */
    CUcontext context;      /* whose device has been looked at */
    unsigned generation;    /* of the process (it changes in the child of a fork) */
    unsigned inside;        /* > 0: a call of the shim itself is under way */
    uint64_t unused;
};
extern _Thread_local struct gls_thread gls_self __attribute__((visibility("hidden"), tls_model("initial-exec")));

/* A launch under way, between gls_before and gls_after. */
struct gls_ticket {
    bool managed;
    bool sampled;
    int sample;
    uintptr_t stream;
    struct gl_kernel kernel;
};

/* Decide the mode from the environment; returns it. */
int gls_decide(void);
/* Before the launch of a kernel (`key`) or of a graph (`key` NULL): may wait. `stream` as gls_stream gives it. */
void gls_before(struct gls_ticket *ticket, const struct gls_key *key, CUstream handle, uintptr_t stream);
void gls_after(struct gls_ticket *ticket, CUstream handle, CUresult result);
/* A name for a stream that tells the default streams of threads apart. */
uintptr_t gls_stream(CUstream stream, bool per_thread);
/* Launches so far, to be handed on once a wait or a record that began now has succeeded. stream 0: all streams. */
uint64_t gls_wait_begins(void);
void gls_waited(uintptr_t stream, uint64_t before);
void gls_event_recorded(CUevent event, uintptr_t stream, uint64_t before);
void gls_event_waited(CUevent event);
/* A stream goes on once an event is reached: who waits for it later has waited for what the event stands for. */
void gls_stream_joins(uintptr_t stream, CUevent event);
/* Around a capture: from `begins` on nothing is gated or measured, until it has ended or its stream is gone. */
void gls_capture_begins(CUstream stream);
void gls_capture_ended(CUstream stream);
void gls_capture_stream_gone(CUstream stream);

#endif
