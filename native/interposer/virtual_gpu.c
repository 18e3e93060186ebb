/* See virtual_gpu.h. Events in time order; between two events every running batch of blocks advances at its rate.
 *
 * Times are nanoseconds as double: exact to far below 1 ns over hours. */
#include "virtual_gpu.h"

#include <stdlib.h>

#define NEVER 1e300
#define AHEAD 64u    /* high-priority kernels in the queue that the gate looks at */
#define WAVES 32u
#define BOUND 0.6    /* utilisation from which on a kernel suffers fully from a resource that is oversubscribed */

struct batch { /* blocks of one kernel that started together on `sms` SMs */
    double left_ns, start_ns, rate;
    const struct gl_kernel *kernel;
    uint32_t sms, client;
};

struct stream { /* the kernel at the head of a program's stream */
    const struct gl_kernel *kernel;
    double ready_ns, block_ns;
    uint32_t pending, running; /* SM-sized portions not started; batches running */
    int active;
    double since_ns;
};

struct run {
    const struct gl_sim *in;
    struct gl_sim_result *out;
    struct batch *batches;
    uint32_t count, free_sms, sm_count;
    struct stream stream[2];
    double now;
    /* high priority */
    uint32_t request, next;
    int serving;
    double started_ns, launched_ns, last_end_ns[2];
    uint64_t served;
    /* best effort */
    double *ready; /* ring: when each launched kernel can start */
    uint64_t launched, finished;
    double cpu_ns, held_since_ns, asked_ns, recheck_ns, outstanding_ns, accumulated_ns;
    uint32_t held_reason;
    int held;
    /* the delay budget */
    struct gl_tail tail;
    uint32_t seen;
    double lag_ns, charges_ns, room_ns, *virtual_ns;
};

static uint64_t mix(uint64_t x) { /* splitmix64's finaliser */
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The same kernel of the same request or iteration lasts equally long under every rule. */
static double factor(const struct run *r, uint32_t client, uint64_t number) {
    double unit = (double)(mix(mix(r->in->seed ^ client) ^ number) >> 11) * 0x1p-53;
    return 1.0 + r->in->jitter * (2.0 * unit - 1.0);
}

static double util(const struct run *r, double value) {
    double unknown = r->in->params->unknown_utilisation;
    return value >= 0.0 ? (value > 1.0 ? 1.0 : value) : unknown;
}

static uint32_t width(const struct run *r, const struct gl_kernel *k) {
    return k->sm == 0 ? 1 : k->sm < r->sm_count ? k->sm : r->sm_count;
}

static void span(struct run *r, uint32_t kind, double start, double end, uint32_t value) {
    const struct gl_sim *in = r->in;
    if (!in->trace || end <= in->trace_from_ns || start >= in->trace_to_ns || end <= start) return;
    if (r->out->spans < in->trace_capacity) {
        struct gl_span *to = &in->trace[r->out->spans];
        to->start_ns = start;
        to->end_ns = end;
        to->kind = kind;
        to->value = value;
    }
    r->out->spans++;
}

/* Contention: how fast each batch advances, from what all of them ask of compute and of memory bandwidth. */
static void rates(struct run *r) {
    double compute = 0.0, dram[2] = {0.0, 0.0}, all;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct batch *b = &r->batches[i];
        double part = (double)b->sms / (double)width(r, b->kernel);
        compute += util(r, b->kernel->compute) * part;
        dram[b->client] += util(r, b->kernel->dram) * part;
    }
    all = dram[0] + dram[1];
    for (uint32_t i = 0; i < r->count; i++) {
        struct batch *b = &r->batches[i];
        double c = util(r, b->kernel->compute) / BOUND, d = util(r, b->kernel->dram) / BOUND, slow = 1.0, s;
        if (compute > 1.0 && (s = 1.0 + (c > 1.0 ? 1.0 : c) * (compute - 1.0)) > slow) slow = s;
        if (all > 1.0 && (s = 1.0 + (d > 1.0 ? 1.0 : d) * (all - 1.0)) > slow) slow = s;
        b->rate = 1.0 / (slow + r->in->cache_interference * (dram[!b->client] > 1.0 ? 1.0 : dram[!b->client]));
    }
}

static void give(struct run *r, uint32_t client) {
    struct stream *s = &r->stream[client];
    uint32_t take;
    struct batch *b;
    if (!s->active || !s->pending || s->ready_ns > r->now || !r->free_sms) return;
    take = s->pending < r->free_sms ? s->pending : r->free_sms;
    b = &r->batches[r->count++];
    *b = (struct batch){s->block_ns, r->now, 1.0, s->kernel, take, client};
    if (s->since_ns > r->now) s->since_ns = r->now;
    s->pending -= take;
    s->running++;
    r->free_sms -= take;
}

/* Free SMs go to the higher priority first; with equal priorities to the kernel that was there first. */
static void dispatch(struct run *r) {
    uint32_t first = 0;
    if (r->in->params->rule == GL_RULE_NONE && r->stream[1].active && r->stream[0].active &&
        r->stream[1].ready_ns < r->stream[0].ready_ns)
        first = 1;
    give(r, first);
    give(r, !first);
}

static void head(struct run *r, uint32_t client, const struct gl_kernel *k, double ready, uint64_t number) {
    struct stream *s = &r->stream[client];
    double lasts = (double)(k->duration_ns ? k->duration_ns : r->in->params->unknown_duration_ns);
    uint64_t waves = k->sm > r->sm_count ? ((uint64_t)k->sm + r->sm_count - 1) / r->sm_count : 1, group;
    s->kernel = k;
    s->active = 1;
    s->ready_ns = ready > r->now ? ready : r->now;
    /* Blocks that follow each other on one SM are lumped, so that a kernel has at most WAVES waves. */
    group = (waves + WAVES - 1) / WAVES;
    s->pending = (uint32_t)(((k->sm ? k->sm : 1) + group - 1) / group);
    if (group > 1) waves = ((uint64_t)s->pending + r->sm_count - 1) / r->sm_count;
    s->block_ns = lasts / (double)waves * factor(r, client, number);
    if (s->block_ns < 1.0) s->block_ns = 1.0;
    s->running = 0;
    s->since_ns = NEVER;
}

static double later(double a, double b) { return a > b ? a : b; }

static double lesser(double a, double b) { return a < b ? a : b; }

static void next_high(struct run *r) {
    const struct gl_sim *in = r->in;
    double launched = r->started_ns + (r->next + 1) * in->launch_ns + in->submit_ns;
    double ready = r->next ? later(launched, r->last_end_ns[0] + in->gap_ns) : launched;
    head(r, 0, &in->high[r->next], ready, (uint64_t)r->request * in->high_count + r->next);
}

static void start_request(struct run *r) {
    const struct gl_sim *in = r->in;
    double arrival = (double)in->arrival_ns[r->request];
    r->serving = 1;
    r->next = 0;
    r->started_ns = later(arrival, r->now);
    in->start_ns[r->request] = r->started_ns;
    r->lag_ns = r->started_ns + (double)in->request_ns - r->virtual_ns[r->request];
    r->charges_ns = 0.0;
    if (r->launched > r->finished && r->stream[1].active) { /* what runs now is in the way for a block's time */
        double done = r->stream[1].running ? r->now - r->stream[1].since_ns : 0.0;
        r->charges_ns = later(r->outstanding_ns - done, 0.0);
    }
    next_high(r);
}

static void next_best_effort(struct run *r) {
    const struct gl_sim *in = r->in;
    if (r->stream[1].active || r->finished >= r->launched) return;
    head(r, 1, &in->best_effort[r->finished % in->best_effort_count],
         later(r->ready[r->finished % in->queue_depth], r->last_end_ns[1] + in->gap_ns), r->finished);
}

static double nominal(const struct run *r, const struct gl_kernel *k) {
    return (double)(k->duration_ns ? k->duration_ns : r->in->params->unknown_duration_ns);
}

static void end_kernel(struct run *r, uint32_t client) {
    struct stream *s = &r->stream[client];
    s->active = 0;
    r->last_end_ns[client] = r->now;
    r->out->kernels[client]++;
    if (client) {
        double lasts = nominal(r, s->kernel);
        r->out->best_effort_ns += lasts;
        r->outstanding_ns -= lasts;
        r->finished++;
        if (r->finished == r->launched) r->outstanding_ns = r->accumulated_ns = 0.0;
        next_best_effort(r);
        return;
    }
    if (++r->next < r->in->high_count) {
        next_high(r);
        return;
    }
    r->in->finish_ns[r->request] = r->now;
    gl_tail_done(r->in->params, &r->tail, (uint64_t)(r->virtual_ns[r->request] - (double)r->in->arrival_ns[r->request]),
                 (uint64_t)(r->now - (double)r->in->arrival_ns[r->request]));
    r->serving = 0;
    r->request++;
    if (r->request < r->in->requests && (double)r->in->arrival_ns[r->request] <= r->now) start_request(r);
}

static int64_t slack(const struct run *r) {
    double left;
    if (!(r->in->params->budget > 0.0) || !r->in->request_ns) return GL_UNKNOWN_SLACK;
    left = r->room_ns - later(r->lag_ns, 0.0) - r->charges_ns;
    return left < -9e18 ? INT64_MIN + 1 : (int64_t)left;
}

/* How far the requests in the system may lie behind what they would be alone. */
static void room(struct run *r) {
    r->room_ns = NEVER;
    for (uint32_t i = r->request; i < r->seen; i++) {
        double latency = r->virtual_ns[i] - (double)r->in->arrival_ns[i];
        r->room_ns = lesser(r->room_ns, (double)gl_tail_budget(r->in->params, &r->tail, (uint64_t)latency));
    }
}

/* The gate: the best-effort program calls launch, or waits in it. */
static void gate(struct run *r) {
    const struct gl_sim *in = r->in;
    const struct gl_kernel *k;
    struct gl_kernel queue[AHEAD];
    struct gl_state state = {0};
    struct gl_verdict verdict;
    double done;
    if (!in->best_effort_count || r->cpu_ns > r->now || r->launched - r->finished >= in->queue_depth) return;
    k = &in->best_effort[r->launched % in->best_effort_count];
    state.version = GL_ADMISSION_VERSION;
    state.sm_count = r->sm_count;
    state.hp_busy = (uint32_t)r->serving;
    state.requests = r->seen - r->request;
    if (r->serving) {
        double launched = (r->now - r->started_ns) / in->launch_ns;
        for (uint32_t i = r->next; i < in->high_count && state.hp_count < AHEAD && (double)i <= launched; i++)
            queue[state.hp_count++] = in->high[i];
        state.hp = queue;
        if (r->stream[0].active && r->stream[0].running)
            state.hp_elapsed_ns = (uint64_t)(r->now - r->stream[0].since_ns);
    }
    state.request_ns = in->request_ns;
    state.price_scale = r->tail.scale;
    state.load = gl_tail_load(&r->tail);
    if (r->serving) {
        double left = (double)in->request_ns - (r->now - r->started_ns - r->charges_ns);
        state.backlog_ns = (uint64_t)(later(left, 0.0) + (double)(state.requests - 1) * (double)in->request_ns);
    }
    done = r->stream[1].active && r->stream[1].running ? r->now - r->stream[1].since_ns : 0.0;
    if (r->stream[1].active && done > nominal(r, r->stream[1].kernel)) done = nominal(r, r->stream[1].kernel);
    state.outstanding_ns = (uint64_t)later(r->outstanding_ns - done, 0.0);
    state.outstanding = (uint32_t)(r->launched - r->finished);
    state.accumulated_ns = (uint64_t)r->accumulated_ns;
    state.held_ns = r->held ? (uint64_t)(r->now - r->held_since_ns + 0.5) : 0;
    state.slack_ns = slack(r);
    gl_admit(in->params, &state, k, &verdict);
    r->out->calls++;
    if (r->held) {
        r->out->reason_ns[r->held_reason] += r->now - r->asked_ns;
        span(r, GL_SPAN_HOLD, r->asked_ns, r->now, r->held_reason);
    }
    if (!verdict.admit) {
        if (!r->held) {
            r->held = 1;
            r->held_since_ns = r->now;
            r->out->held++;
            r->out->reason_count[verdict.reason]++;
        }
        r->held_reason = verdict.reason;
        r->asked_ns = r->now;
        r->recheck_ns = r->now + (double)verdict.recheck_ns + 1.0;
        return;
    }
    r->out->reason_count[verdict.reason]++;
    r->charges_ns += r->serving ? (double)verdict.charge_ns : 0.0;
    r->cpu_ns = r->now + in->launch_ns;
    if (r->held) {
        double held = r->now - r->held_since_ns;
        r->out->held_ns += held;
        if (held > r->out->max_held_ns) r->out->max_held_ns = held;
        r->cpu_ns += in->wake_ns;
        r->held = 0;
    }
    r->ready[r->launched % in->queue_depth] = r->cpu_ns + in->submit_ns;
    r->launched++;
    r->outstanding_ns += nominal(r, k);
    r->accumulated_ns += nominal(r, k);
    next_best_effort(r);
}

/* Move the clock to `until`: batches advance, those at their end are taken off. */
static void advance(struct run *r, double until) {
    double passed = until - r->now;
    uint32_t kept = 0;
    r->now = until;
    for (uint32_t i = 0; i < r->count; i++) {
        struct batch *b = &r->batches[i];
        b->left_ns -= passed * b->rate;
        r->out->sm_ns[b->client] += passed * b->sms;
        if (b->left_ns > 1e-3) {
            r->batches[kept++] = *b;
            continue;
        }
        span(r, b->client, b->start_ns, until, b->sms);
        r->free_sms += b->sms;
        r->stream[b->client].running--;
    }
    r->count = kept;
}

static double next_event(const struct run *r) {
    const struct gl_sim *in = r->in;
    double next = NEVER;
    for (uint32_t i = 0; i < r->count; i++) {
        double at = r->now + r->batches[i].left_ns / r->batches[i].rate;
        if (at < next) next = at;
    }
    for (uint32_t c = 0; c < 2; c++)
        if (r->stream[c].active && r->stream[c].ready_ns > r->now && r->stream[c].ready_ns < next)
            next = r->stream[c].ready_ns;
    if (r->seen < in->requests && (double)in->arrival_ns[r->seen] < next) next = (double)in->arrival_ns[r->seen];
    if (in->best_effort_count) {
        if (r->cpu_ns > r->now && r->cpu_ns < next) next = r->cpu_ns;
        if (r->held && r->recheck_ns < next) next = r->recheck_ns;
    }
    return next < r->now ? r->now : next;
}

static void loop(struct run *r) {
    const struct gl_sim *in = r->in;
    gate(r);
    for (;;) {
        double next = next_event(r);
        int came = 0;
        if (in->requests ? r->request >= in->requests : next >= in->end_ns) break;
        if (next >= NEVER) {
            r->out->error = 2;
            break;
        }
        advance(r, next);
        while (r->seen < in->requests && (double)in->arrival_ns[r->seen] <= r->now) {
            r->virtual_ns[r->seen] = (double)gl_tail_add(&r->tail, in->arrival_ns[r->seen], in->request_ns);
            r->seen++;
            came = 1;
        }
        if (!r->serving && r->request < r->seen) start_request(r);
        for (uint32_t c = 0; c < 2; c++)
            if (r->stream[c].active && !r->stream[c].pending && !r->stream[c].running) {
                uint32_t was = r->request;
                end_kernel(r, c);
                if (r->request != was) came = 1;
            }
        if (came) room(r);
        gate(r);
        dispatch(r);
        rates(r);
    }
}

void gl_simulate(const struct gl_sim *in, struct gl_sim_result *out) {
    struct run r = {0};
    *out = (struct gl_sim_result){0};
    if (in->version != GL_SIM_VERSION || !in->sm_count || !in->params || !in->queue_depth || !(in->launch_ns > 0.0) ||
        (in->requests && (!in->high_count || !in->arrival_ns || !in->start_ns || !in->finish_ns)) ||
        (!in->requests && !in->best_effort_count) || in->params->rule > GL_RULE_LITERAL) {
        out->error = 1;
        return;
    }
    r.in = in;
    r.out = out;
    r.sm_count = r.free_sms = in->sm_count;
    /* Every running batch holds at least one SM. */
    r.batches = malloc((in->sm_count + 1) * sizeof *r.batches);
    r.ready = malloc(in->queue_depth * sizeof *r.ready);
    r.virtual_ns = malloc((in->requests + 1) * sizeof *r.virtual_ns);
    if (r.batches && r.ready && r.virtual_ns) loop(&r);
    else out->error = 3;
    out->end_ns = r.now;
    free(r.batches);
    free(r.ready);
    free(r.virtual_ns);
}

uint32_t gl_sim_size(uint32_t which) {
    switch (which) {
    case 0: return (uint32_t)sizeof(struct gl_sim);
    case 1: return (uint32_t)sizeof(struct gl_sim_result);
    case 2: return (uint32_t)sizeof(struct gl_span);
    default: return 0;
    }
}
