/* Admission of best-effort kernels beside a high-priority program on one GPU: one pure function.
 *
 * The shim, the virtual-time simulator and the tests all call gl_admit. It allocates nothing, keeps no state, calls
 * nothing but the arithmetic below, and may be called from any thread. Times are nanoseconds, utilisations 0..1.
 * What is unknown is said as such: a negative (or NaN) utilisation, a duration of 0, a request time of 0.
 *
 * docs/explanation/sharing.md explains the rules; the numbers of gl_params are there with their reasons.
 */
#ifndef GPULOOM_ADMISSION_H
#define GPULOOM_ADMISSION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define GL_API __attribute__((visibility("default")))
#else
#define GL_API
#endif

#define GL_ADMISSION_VERSION 1u
#define GL_UNKNOWN_SLACK INT64_MIN /* gl_state.slack_ns: no budget is kept */

enum gl_rule {
    GL_RULE_NONE = 0,     /* admit all; streams of equal priority */
    GL_RULE_PRIORITY = 1, /* admit all; the high-priority program's stream has priority */
    GL_RULE_ORION = 2,    /* the rule of Orion (EuroSys '24) */
    GL_RULE_GPULOOM = 3,
    GL_RULE_LITERAL = 4 /* the rule as the patent application has it: gpuloom without window, look-ahead and price */
};

enum gl_class { GL_CLASS_UNKNOWN = 0, GL_CLASS_COMPUTE = 1, GL_CLASS_MEMORY = 2 };

enum gl_kind {
    GL_KIND_KERNEL = 0,
    GL_KIND_GRAPH = 1,  /* a graph launch: one unit, admitted only while no high-priority request is in progress */
    GL_KIND_MEMORY = 2, /* malloc, free, memcpy, memset: never held */
    GL_KIND_WARM_UP = 3 /* a kernel of a warm-up iteration, if its program asked for that: never held */
};

enum gl_reason {
    GL_ADMIT_FREE = 0,         /* the rule holds nothing (none, priority) */
    GL_ADMIT_IDLE = 1,         /* no high-priority request is in progress */
    GL_ADMIT_BESIDE = 2,       /* fits beside the high-priority request */
    GL_ADMIT_EXEMPT = 3,       /* memory operation or warm-up */
    GL_ADMIT_MAX_HOLD = 4,     /* held for max_hold_ns */
    GL_HOLD_INTERFERENCE = 8,  /* score above interference_threshold */
    GL_HOLD_SM = 9,            /* too few SMs left over */
    GL_HOLD_DURATION = 10,     /* outstanding best-effort time too long beside a request */
    GL_HOLD_WINDOW = 11,       /* enough best-effort work is queued on the GPU already */
    GL_HOLD_BUDGET = 12,       /* the delay budget of this busy period is spent */
    GL_HOLD_GRAPH = 13,        /* graph launches wait for the end of the request */
    GL_HOLD_CLASS = 14,        /* Orion: same class, or class unknown */
    GL_HOLD_TURNS = 15,        /* without MPS kernels of two programs don't run at the same time */
    GL_HOLD_BAD_INPUT = 16,    /* version or size of a struct does not match: the caller passes the launch through */
    GL_ADMIT_PRICED = 5,       /* delays the request, by less than its budget has left */
    GL_HOLD_PRICE = 17,        /* would delay the request by more than it is worth */
    GL_HOLD_UNKNOWN = 18,      /* nobody knows yet how long it takes: it waits for the end of the request */
    GL_REASONS = 19
};

struct gl_kernel {
    uint32_t sm;          /* ceil(blocks / blocks that fit on an SM), NOT capped at the device's SMs; 0 counts as 1 */
    uint32_t klass;       /* enum gl_class */
    double compute;       /* 0..1; negative or NaN: unknown */
    double dram;          /* 0..1; negative or NaN: unknown */
    uint64_t duration_ns; /* alone; 0: unknown */
};

struct gl_params {
    uint32_t version; /* GL_ADMISSION_VERSION */
    uint32_t rule;    /* enum gl_rule */
    double interference_threshold;
    double same_class_penalty;
    double unknown_utilisation;   /* what an unknown utilisation counts as */
    double duration_threshold;    /* share of the request's time alone */
    uint64_t max_hold_ns;
    uint64_t unknown_duration_ns; /* what an unknown duration counts as */
    /* Extensions. Each is switched off by 0; with all of them 0 the rule is the specification's as written. */
    uint64_t idle_window_ns;      /* best-effort time kept queued on the GPU while no request is in progress */
    uint32_t look_ahead;          /* 1: all queued high-priority kernels count that start while the kernel runs */
    uint32_t lone;                /* spend the budget only while at most so many requests are in the system; 0: any */
    double idle_window;           /* the same as a share of the request's time alone; the larger of the two counts */
    double budget;                /* share of the service's p99 alone by which a request may be delayed at most */
    double price;                 /* delay of the request that a nanosecond of best-effort work may cost, at most */
    double steepness;             /* the price falls by e^(-steepness x theta(load) x backlog / request's time);
                                   * theta is the decay of the tail of an M/D/1 queue; 0: the price stays */
    double target;                /* delay of p99 to aim at, as a share of p99 alone; 0: the price does not adapt */
    double confidence;            /* the p99 of the budget is so many standard errors below the one seen */
    double overrun;               /* by how much of p99 alone a request may be pushed past it */
    double cache;                 /* slowdown of the request's kernels per unit of memory bandwidth that others use */
    double begin;                 /* of the price, before the first request has ended */
    double least;                 /* of the price, however late the p99 is */
    double step;                  /* by which the price changes with each request; times the p99's distance from target */
    double fall;                  /* ... which counts as at most so many targets */
    uint64_t launch_ns;           /* from the verdict until the GPU can start the kernel */
    double absorb;                /* share of gl_state.spare_ns that may be counted on; 0: none */
    uint64_t reserved[2];
};

struct gl_state {
    uint32_t version;   /* GL_ADMISSION_VERSION */
    uint32_t sm_count;  /* SMs of the device; 0 is bad input */
    uint32_t hp_busy;   /* a high-priority request is in progress */
    uint32_t hp_count;  /* kernels in `hp` */
    const struct gl_kernel *hp; /* high-priority kernels launched and not finished, in order; [0] is in flight or next */
    uint64_t hp_elapsed_ns;     /* how long hp[0] has been running; 0: not yet */
    uint64_t request_ns;        /* a high-priority request's time alone; 0: unknown */
    uint64_t outstanding_ns;    /* best-effort time admitted and not finished, as it takes alone, elapsed time taken off */
    uint32_t outstanding;       /* best-effort kernels admitted and not finished */
    uint32_t outstanding_sm;    /* SMs that those in flight hold */
    uint64_t accumulated_ns;    /* Orion: best-effort time admitted since all of it had last finished */
    uint32_t pass_sm;           /* Orion: SM needs admitted in this poll pass */
    uint32_t kind;              /* enum gl_kind */
    uint64_t held_ns;           /* how long this launch has waited */
    int64_t slack_ns;           /* what is left of the busy period's delay budget; GL_UNKNOWN_SLACK: none is kept */
    uint32_t requests;          /* high-priority requests in the system, the one in progress among them */
    uint32_t pad;
    double price_scale;         /* gl_tail.scale; 0: not begun, counts as gl_params.begin */
    double load;                /* gl_tail_load; 0: unknown, counts as 0.5 */
    uint64_t backlog_ns;        /* time alone of what those requests still need */
    uint64_t spare_ns;          /* of the rest of the request: GPU time in which nothing of it is there to run, as its
                                 * program has yet to launch it. A delay of its kernels is made up for in it */
    uint64_t lag_ns;            /* by how much its kernels are behind now */
    uint64_t reserved[2];
};

struct gl_verdict {
    uint32_t admit;       /* 1: launch now */
    uint32_t reason;      /* enum gl_reason */
    double interference;  /* score against the high-priority kernel that suffers most; 0 where none is known */
    uint64_t charge_ns;   /* delay of the request to expect from it: the caller takes it off slack_ns */
    uint64_t recheck_ns;  /* held: ask again after so long at the latest, even if nothing happens */
    uint64_t lag_ns;      /* admitted: by how much more the request's kernels are behind; charge_ns is what of that is
                           * left at its end */
};

/* Fill in the documented defaults of a rule. */
GL_API void gl_params_default(struct gl_params *params, uint32_t rule);

/* 0..1: how much `k` and `hp` get into each other's way on a device of `sm_count` SMs. */
GL_API double gl_interference(const struct gl_params *params, const struct gl_kernel *k, const struct gl_kernel *hp,
                              uint32_t sm_count);

/* Decide whether best-effort kernel `k` may be launched now. Always fills in `verdict`. */
GL_API void gl_admit(const struct gl_params *params, const struct gl_state *state, const struct gl_kernel *k,
                     struct gl_verdict *verdict);

/* A short name of a reason, for counters and tables; "?" if unknown. Static. */
GL_API const char *gl_reason_name(uint32_t reason);

/* Sizes of gl_kernel, gl_params, gl_state, gl_verdict, for bindings to check: index 0 to 3, else 0. */
GL_API uint32_t gl_struct_size(uint32_t which);

/* The service's latency as it would be alone: a virtual queue fed with the real arrivals. The caller keeps the struct.
 *
 * Requests are served one at a time, in order. One that arrives at t with time alone s would finish, alone, at
 * max(t, finish of the one before) + s. What the real finish lies behind that is the delay that sharing has cost; the
 * 99th percentile of the virtual latencies is the p99 that the delay budget is a share of. */
#define GL_TAIL_BUCKETS 1024u
struct gl_tail {
    uint32_t count;
    uint32_t bucket[GL_TAIL_BUCKETS]; /* latency from 0, then from 1000 ns * 2^(i/32) */
    uint32_t done;
    uint64_t finish_ns;               /* of the last request, alone */
    double scale;                     /* of the price, by what sharing has cost the tail so far; 0: not begun */
    uint64_t first_ns, last_ns, alone_ns; /* first and last arrival; time alone of all requests */
    uint32_t seen[2][GL_TAIL_BUCKETS]; /* of those that have ended: latency alone, and real */
};
/* A request has arrived. Returns its virtual finish. */
GL_API uint64_t gl_tail_add(struct gl_tail *tail, uint64_t arrival_ns, uint64_t alone_ns);
/* The quantile 0..1 of the virtual latencies, within 2.2 % above 1000 ns; 0 before the first request. */
GL_API uint64_t gl_tail_quantile(const struct gl_tail *tail, double quantile);
/* Share of the time that the service is busy, alone; 0 before the third request. */
GL_API double gl_tail_load(const struct gl_tail *tail);
/* By how much the end of a request of this virtual latency may lie behind its virtual finish: `budget` of the p99, and no
 * more than keeps it below the p99, or `overrun` of it past that. The p99 is taken at the lower end of its confidence
 * interval. The caller takes the least over the requests in the system, less their delay so far: gl_state.slack_ns. */
GL_API int64_t gl_tail_budget(const struct gl_params *params, const struct gl_tail *tail, uint64_t virtual_latency_ns);
/* A request has finished: the distance of the real p99 from the virtual one moves `scale`, up while it is below `target`,
 * down, and faster, where it is above. Returns the new scale. */
GL_API double gl_tail_done(const struct gl_params *params, struct gl_tail *tail, uint64_t virtual_latency_ns,
                           uint64_t latency_ns);

#ifdef __cplusplus
}
#endif
#endif
