/* One GPU on a virtual clock: a high-priority program that serves requests, a best-effort program that loops, and the
 * admission rule at the gate of the latter's launch call. No CUDA. What is modelled, and what not: docs/explanation/sharing.md. */
#ifndef GPULOOM_VIRTUAL_GPU_H
#define GPULOOM_VIRTUAL_GPU_H

#include "admission.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GL_SIM_VERSION 1u

enum gl_span_kind { GL_SPAN_HIGH = 0, GL_SPAN_BEST_EFFORT = 1, GL_SPAN_HOLD = 2 };

struct gl_span {
    double start_ns, end_ns;
    uint32_t kind;  /* enum gl_span_kind */
    uint32_t value; /* SMs held; of a hold: enum gl_reason */
};

struct gl_sim {
    uint32_t version; /* GL_SIM_VERSION */
    uint32_t sm_count;
    const struct gl_params *params;
    const struct gl_kernel *high;        /* the kernels of a request, in order */
    const struct gl_kernel *best_effort; /* the kernels of an iteration, in order */
    const uint64_t *arrival_ns;          /* of the requests, ascending */
    uint32_t high_count, best_effort_count, requests;
    uint32_t queue_depth;      /* launches that may be ahead of the GPU */
    double launch_ns;          /* a launch call, on the CPU */
    double submit_ns;          /* from the call's return until the GPU can start */
    double gap_ns;             /* between dependent kernels of a stream */
    double wake_ns;            /* from the reason's end until a held caller goes on */
    double cache_interference; /* slowdown per unit of the other program's use of memory bandwidth */
    double jitter;             /* half width of the uniform relative error of kernel durations */
    uint64_t seed;
    uint64_t request_ns;       /* a request's time alone, as the gate knows it */
    double end_ns;             /* run until then if there are no requests */
    double trace_from_ns, trace_to_ns;
    uint32_t trace_capacity;
    struct gl_span *trace;
    double *start_ns;  /* out: by request */
    double *finish_ns; /* out: by request */
};

struct gl_sim_result {
    double end_ns;
    double best_effort_ns;      /* time alone of the best-effort kernels that finished */
    double sm_ns[2];            /* SM time: high priority, best effort */
    double held_ns;
    double max_held_ns;
    double reason_ns[GL_REASONS];      /* time held, by the reason that held at that time */
    uint64_t reason_count[GL_REASONS]; /* launches admitted for this reason; held at first sight for that one */
    uint64_t kernels[2];
    uint64_t held;              /* launches that had to wait */
    uint64_t calls;             /* of gl_admit */
    uint64_t spans;             /* that the trace would hold; above trace_capacity: the rest is missing */
    uint32_t error;             /* 1 bad input, 2 nothing left to happen (a fault of the model) */
    uint32_t pad;
};

GL_API uint32_t gl_sim_size(uint32_t which); /* of gl_sim, gl_sim_result, gl_span */
GL_API void gl_simulate(const struct gl_sim *sim, struct gl_sim_result *result);

#ifdef __cplusplus
}
#endif
#endif
