/* See admission.h. Every sum saturates, every division is by a number that has been checked. */
#include "admission.h"

#include <stddef.h>

/* The price's scale before the first of the slowest requests has been seen. */
#define BEGIN 1.0
/* What it falls to where sharing has pushed a request into the tail: as much as three steps up. */
#define OVERRUN 0.85

static double clip(double value) { return value < 0.0 ? 0.0 : value > 1.0 ? 1.0 : value; }

static double positive(double value) { return value > 0.0 ? value : 0.0; }

static uint64_t add(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

/* A share of a time, rounded down; NaN and negative shares give 0. */
static uint64_t share(double part, uint64_t of) {
    double value = part * (double)of;
    if (!(value > 0.0)) return 0;
    return value >= 18446744073709549568.0 ? UINT64_MAX : (uint64_t)value;
}

static uint32_t sms(const struct gl_kernel *k, uint32_t sm_count) {
    return k->sm == 0 ? 1 : k->sm < sm_count ? k->sm : sm_count;
}

static double known(const struct gl_params *p, double utilisation) {
    return utilisation >= 0.0 ? clip(utilisation) : clip(p->unknown_utilisation); /* NaN >= 0 is false */
}

static uint64_t duration(const struct gl_params *p, const struct gl_kernel *k) {
    return k->duration_ns ? k->duration_ns : p->unknown_duration_ns;
}

void gl_params_default(struct gl_params *p, uint32_t rule) {
    *p = (struct gl_params){0};
    p->version = GL_ADMISSION_VERSION;
    p->rule = rule;
    p->interference_threshold = 0.5;
    p->same_class_penalty = 0.25;
    p->unknown_utilisation = 0.5;
    p->duration_threshold = 0.025;
    p->max_hold_ns = 100000000u;
    p->unknown_duration_ns = 100000u;
    if (rule == GL_RULE_GPULOOM) {
        p->idle_window_ns = 40000u;
        p->look_ahead = 1;
        p->idle_window = 0.005;
        p->lone = 1;
        p->budget = 0.2;
        p->price = 2.0;
        p->steepness = 1.0;
        p->target = 0.12;
        p->overrun = 0.05;
        p->tail_from = 0.95;
        p->gap_margin = 0.0;
    }
}

double gl_interference(const struct gl_params *p, const struct gl_kernel *k, const struct gl_kernel *hp,
                       uint32_t sm_count) {
    double score = positive(known(p, k->compute) + known(p, hp->compute) - 1.0) +
                   positive(known(p, k->dram) + known(p, hp->dram) - 1.0);
    if (sm_count)
        score += positive(((double)sms(k, sm_count) + (double)sms(hp, sm_count)) / (double)sm_count - 1.0);
    if (k->klass == hp->klass && k->klass != GL_CLASS_UNKNOWN) score += positive(p->same_class_penalty);
    return clip(score);
}

uint64_t gl_block_ns(const struct gl_params *p, const struct gl_kernel *k, uint32_t sm_count) {
    uint64_t waves = sm_count && k->sm > sm_count ? ((uint64_t)k->sm + sm_count - 1) / sm_count : 1;
    return (duration(p, k) + waves - 1) / waves;
}

static void hold(struct gl_verdict *v, enum gl_reason reason) {
    v->admit = 0;
    v->reason = reason;
}

static void admit(struct gl_verdict *v, enum gl_reason reason) {
    v->admit = 1;
    v->reason = reason;
}

/* Orion (EuroSys 2024), as far as its scheduling rule is known to us: the paper itself was not read for this. */
static void orion(const struct gl_params *p, const struct gl_state *s, const struct gl_kernel *k,
                  struct gl_verdict *v) {
    uint64_t threshold = share(p->duration_threshold, s->request_ns);
    /* 1. Once the time admitted passes the threshold, nothing goes until all of it has finished. */
    if (s->outstanding && s->request_ns && s->accumulated_ns > threshold) {
        hold(v, GL_HOLD_DURATION);
        return;
    }
    /* 2. With no high-priority work, all may go. */
    if (!s->hp_busy) {
        admit(v, GL_ADMIT_IDLE);
        return;
    }
    /* 3. Beside it: small kernels (the sizes of a pass add up), and of another class. */
    if ((uint64_t)s->pass_sm + (k->sm ? k->sm : 1) >= s->sm_count) {
        hold(v, GL_HOLD_SM);
        return;
    }
    if (s->hp_count && (k->klass == s->hp[0].klass || k->klass == GL_CLASS_UNKNOWN)) {
        hold(v, GL_HOLD_CLASS);
        return;
    }
    admit(v, GL_ADMIT_BESIDE);
}

/* Best-effort time that may be queued on the GPU when another kernel is launched; 0: any. */
static uint64_t window(const struct gl_params *p, const struct gl_state *s) {
    uint64_t part = share(p->idle_window, s->request_ns);
    return part > p->idle_window_ns ? part : p->idle_window_ns;
}

/* Idle GPU: the only question is how much the next request would find queued before it. */
static void idle(const struct gl_params *p, const struct gl_state *s, const struct gl_kernel *k,
                 struct gl_verdict *v) {
    uint64_t left = s->outstanding_ns, most = window(p, s);
    if (most && s->outstanding && left > most) {
        hold(v, GL_HOLD_WINDOW);
        v->recheck_ns = left - most;
        return;
    }
    if (p->gap_margin > 0.0 && s->gap_ns && add(left, duration(p, k)) > share(p->gap_margin, s->gap_ns)) {
        hold(v, GL_HOLD_GAP);
        return;
    }
    admit(v, GL_ADMIT_IDLE);
}

/* The specification's conditions: fits beside every high-priority kernel it would meet, without being noticed.
 * Returns the reason to hold, or GL_ADMIT_BESIDE. */
static enum gl_reason unnoticed(const struct gl_params *p, const struct gl_state *s, const struct gl_kernel *k,
                                struct gl_verdict *v) {
    uint32_t all = s->sm_count, own = sms(k, all);
    uint64_t start = 0, end = add(s->outstanding_ns, duration(p, k));
    double worst = 0.0;
    int fits = (uint64_t)own + s->outstanding_sm <= all;
    for (uint32_t i = 0; i < s->hp_count; i++) {
        const struct gl_kernel *hp = &s->hp[i];
        uint64_t lasts = duration(p, hp);
        double score;
        if (i > 0 && (!p->look_ahead || start >= end)) break;
        if (i == 0) lasts = lasts > s->hp_elapsed_ns ? lasts - s->hp_elapsed_ns : 0;
        score = gl_interference(p, k, hp, all);
        if (score > worst) worst = score;
        if ((uint64_t)own + sms(hp, all) + s->outstanding_sm > all) fits = 0;
        start = add(start, lasts);
    }
    v->interference = worst;
    if (worst > p->interference_threshold) return GL_HOLD_INTERFERENCE;
    if (!fits) return GL_HOLD_SM;
    if (end > share(p->duration_threshold, s->request_ns)) return GL_HOLD_DURATION;
    return GL_ADMIT_BESIDE;
}

/* By how much oversubscribed compute and memory bandwidth slow `hp` while `k` runs on `on` of its SMs. */
static double contention(const struct gl_params *p, const struct gl_kernel *k, const struct gl_kernel *hp, uint32_t on,
                         uint32_t all) {
    double part = (double)on / (double)sms(k, all);
    if (part > 1.0) part = 1.0;
    return positive(known(p, k->compute) * part + known(p, hp->compute) - 1.0) +
           positive(known(p, k->dram) * part + known(p, hp->dram) - 1.0);
}

/* Expected delay of the request if `k` runs in the SMs that its kernels leave over.
 *
 * The hardware gives a freed SM to the stream of higher priority first, and takes no block off an SM. So `k` costs
 * nothing but contention while a high-priority kernel runs; but where one ends and the next has not begun, blocks of
 * `k` take the free SMs, and the next kernel waits for them: up to a block's time at each such boundary. */
static uint64_t delay(const struct gl_params *p, const struct gl_state *s, const struct gl_kernel *k) {
    uint32_t all = s->sm_count;
    uint64_t block = gl_block_ns(p, k, all), charge = 0;
    double pending = k->sm ? (double)k->sm : 1.0, busy = 0.0; /* SM-sized portions to start; those that overrun */
    for (uint32_t i = 0; i < s->hp_count; i++) {
        const struct gl_kernel *hp = &s->hp[i];
        uint32_t need = sms(hp, all), over = all - need, on;
        uint64_t lasts = duration(p, hp);
        double waves;
        if (i == 0) {
            lasts = lasts > s->hp_elapsed_ns ? lasts - s->hp_elapsed_ns : 0;
            if (!s->hp_elapsed_ns) over = all; /* not running yet: all SMs are free */
        }
        if (i > 0 || !s->hp_elapsed_ns) {
            double taken = pending + busy < (double)all ? pending + busy : (double)all;
            double missing = taken + (double)need - (double)all;
            if (missing > 0.0) { /* one wave waits for the last of the missing SMs, several only for a part */
                uint64_t several = hp->sm > all;
                charge = add(charge, several ? share(missing / (double)all, block) : block);
            }
            pending -= taken - busy;
            over = all - need;
        }
        if (pending <= 0.0) break;
        on = pending < (double)over ? (uint32_t)pending : over;
        charge = add(charge, share(contention(p, k, hp, on, all), lasts));
        waves = block ? (double)(lasts / block) : 0.0;
        busy = pending - waves * over > 0.0 ? (double)on : 0.0;
        pending -= (waves + (busy > 0.0)) * over;
        if (pending < 0.0) pending = 0.0;
        if (pending <= 0.0 && busy <= 0.0) break;
    }
    return charge;
}

/* The exponent at which the odds of a backlog of x requests' time fall off, e^(-theta x), in a queue with random arrivals
 * and equal service times: the positive root of load (e^theta - 1) = theta, by load from 0 (there: of 0.02) to 1. */
static double theta(double load) {
    static const double root[] = {5.65, 3.61, 2.66, 2.06, 1.62, 1.26, 0.95, 0.68, 0.43, 0.21, 0.00};
    double at = clip(load > 0.0 ? load : 0.5) * 10.0;
    int i = at >= 10.0 ? 9 : (int)at;
    return root[i] + (root[i + 1] - root[i]) * (at - i);
}

/* What a nanosecond of best-effort work may cost now. A delay is carried on by all requests until the queue is empty, and
 * the odds that the queue grows to where the tail is rise exponentially with what is in it already. */
static double price(const struct gl_params *p, const struct gl_state *s) {
    double x = s->request_ns ? p->steepness * theta(s->load) * ((double)s->backlog_ns / (double)s->request_ns) : 0.0;
    double power;
    double scale = s->price_scale > 0.0 ? s->price_scale : BEGIN;
    if (!(x > 0.0)) return p->price * scale;
    power = 1.0 + x / 64.0; /* e^x as (1 + x/64)^64: monotonous, without libm */
    for (int i = 0; i < 6; i++) power *= power;
    return p->price * scale / power;
}

/* A request is in progress. */
static void beside(const struct gl_params *p, const struct gl_state *s, const struct gl_kernel *k,
                   struct gl_verdict *v) {
    enum gl_reason reason;
    int budgeted = p->budget > 0.0 && s->slack_ns != GL_UNKNOWN_SLACK;
    if (s->kind == GL_KIND_GRAPH) {
        hold(v, GL_HOLD_GRAPH);
        return;
    }
    reason = unnoticed(p, s, k, v);
    if (!budgeted) {
        if (reason == GL_ADMIT_BESIDE) admit(v, reason);
        else hold(v, reason);
        return;
    }
    v->charge_ns = delay(p, s, k);
    if (s->slack_ns < 0 || v->charge_ns > (uint64_t)s->slack_ns) {
        hold(v, GL_HOLD_BUDGET);
        return;
    }
    if (reason == GL_ADMIT_BESIDE) {
        admit(v, reason);
        return;
    }
    /* Noticed, but worth it: only while nobody waits behind the request, and little is queued. */
    if (!(p->price > 0.0) || (p->lone && s->requests > p->lone)) {
        hold(v, reason);
        return;
    }
    if (!s->hp_count || v->charge_ns > share(price(p, s), duration(p, k))) {
        hold(v, GL_HOLD_PRICE);
        return;
    }
    if (s->outstanding && s->outstanding_ns > window(p, s)) {
        hold(v, GL_HOLD_WINDOW);
        v->recheck_ns = s->outstanding_ns - window(p, s);
        return;
    }
    admit(v, GL_ADMIT_PRICED);
}

void gl_admit(const struct gl_params *p, const struct gl_state *s, const struct gl_kernel *k, struct gl_verdict *v) {
    *v = (struct gl_verdict){0};
    if (p->version != GL_ADMISSION_VERSION || s->version != GL_ADMISSION_VERSION || !s->sm_count ||
        (s->hp_count && !s->hp) || p->rule > GL_RULE_GPULOOM) {
        hold(v, GL_HOLD_BAD_INPUT);
        return;
    }
    if (p->rule == GL_RULE_NONE || p->rule == GL_RULE_PRIORITY) {
        admit(v, GL_ADMIT_FREE);
        return;
    }
    if (s->kind == GL_KIND_MEMORY || s->kind == GL_KIND_WARM_UP) {
        admit(v, GL_ADMIT_EXEMPT);
        return;
    }
    if (s->held_ns >= p->max_hold_ns) {
        admit(v, GL_ADMIT_MAX_HOLD);
        return;
    }
    if (p->rule == GL_RULE_ORION) orion(p, s, k, v);
    else if (!s->hp_busy) idle(p, s, k, v);
    else beside(p, s, k, v);
    if (!v->admit) {
        uint64_t left = p->max_hold_ns - s->held_ns;
        if (!v->recheck_ns || v->recheck_ns > left) v->recheck_ns = left;
    }
}

const char *gl_reason_name(uint32_t reason) {
    static const char *const names[GL_REASONS] = {
        [GL_ADMIT_FREE] = "free",           [GL_ADMIT_IDLE] = "idle",
        [GL_ADMIT_BESIDE] = "beside",       [GL_ADMIT_EXEMPT] = "exempt",
        [GL_ADMIT_MAX_HOLD] = "max_hold",   [GL_HOLD_INTERFERENCE] = "interference",
        [GL_HOLD_SM] = "sm",                [GL_HOLD_DURATION] = "duration",
        [GL_HOLD_WINDOW] = "window",        [GL_HOLD_BUDGET] = "budget",
        [GL_HOLD_GRAPH] = "graph",          [GL_HOLD_CLASS] = "class",
        [GL_ADMIT_PRICED] = "priced",       [GL_HOLD_PRICE] = "price",
        [GL_HOLD_GAP] = "gap",              [GL_HOLD_BAD_INPUT] = "bad_input",
    };
    return reason < GL_REASONS && names[reason] ? names[reason] : "?";
}

uint32_t gl_struct_size(uint32_t which) {
    switch (which) {
    case 0: return (uint32_t)sizeof(struct gl_kernel);
    case 1: return (uint32_t)sizeof(struct gl_params);
    case 2: return (uint32_t)sizeof(struct gl_state);
    case 3: return (uint32_t)sizeof(struct gl_verdict);
    default: return 0;
    }
}

/* Lower edge of bucket i: 0, then 1000 ns * 2^(i / 32), without libm. */
static double edge(uint32_t i) {
    const double step = 1.0218971486541166; /* 2^(1/32) */
    double value = 1000.0;
    if (i == 0) return 0.0;
    for (uint32_t octave = i / 32; octave; octave--) value *= 2.0;
    for (uint32_t rest = i % 32; rest; rest--) value *= step;
    return value;
}

uint64_t gl_tail_add(struct gl_tail *tail, uint64_t arrival_ns, uint64_t alone_ns) {
    uint64_t start = tail->finish_ns > arrival_ns ? tail->finish_ns : arrival_ns;
    uint64_t latency;
    uint32_t low = 0, high = GL_TAIL_BUCKETS - 1;
    if (!tail->count) tail->first_ns = arrival_ns;
    tail->last_ns = arrival_ns;
    tail->alone_ns = add(tail->alone_ns, alone_ns);
    tail->finish_ns = add(start, alone_ns);
    latency = tail->finish_ns - arrival_ns;
    while (low < high) { /* the last bucket whose lower edge is not above the latency */
        uint32_t middle = (low + high + 1) / 2;
        if (edge(middle) <= (double)latency) low = middle;
        else high = middle - 1;
    }
    if (tail->count < UINT32_MAX) {
        tail->count++;
        tail->bucket[low]++;
    }
    return tail->finish_ns;
}

uint64_t gl_tail_quantile(const struct gl_tail *tail, double quantile) {
    double need = clip(quantile) * (double)tail->count, seen = 0.0;
    for (uint32_t i = 0; i < GL_TAIL_BUCKETS; i++) {
        double here = (double)tail->bucket[i];
        if (here > 0.0 && seen + here >= need) { /* evenly spread within the bucket */
            double low = edge(i), high = i + 1 < GL_TAIL_BUCKETS ? edge(i + 1) : low;
            double value = low + (high - low) * (need > seen ? (need - seen) / here : 0.0);
            return value < 18e18 ? (uint64_t)value : UINT64_MAX;
        }
        seen += here;
    }
    return 0;
}

double gl_tail_load(const struct gl_tail *tail) {
    if (tail->count < 3 || tail->last_ns <= tail->first_ns) return 0.0;
    return clip((double)tail->alone_ns * ((double)(tail->count - 1) / (double)tail->count) /
                (double)(tail->last_ns - tail->first_ns));
}

double gl_tail_done(const struct gl_params *p, struct gl_tail *tail, uint64_t virtual_latency_ns, uint64_t latency_ns) {
    double p99 = (double)gl_tail_quantile(tail, 0.99), aim = p->target * p99, late;
    if (!(tail->scale > 0.0)) tail->scale = BEGIN;
    if (!(aim > 0.0)) return tail->scale;
    if ((double)virtual_latency_ns <= p99 && (double)latency_ns > (1.0 + p->overrun) * p99) {
        tail->scale *= OVERRUN; /* sharing has pushed it into the tail */
    } else if (virtual_latency_ns >= gl_tail_quantile(tail, p->tail_from)) {
        late = latency_ns > virtual_latency_ns ? (double)(latency_ns - virtual_latency_ns) / aim - 1.0 : -1.0;
        tail->scale *= 1.0 - 0.05 * (late > 4.0 ? 4.0 : late); /* -1: not delayed; 0: as aimed at; 1: twice that */
    }
    if (tail->scale > 8.0) tail->scale = 8.0;
    if (tail->scale < 0.01) tail->scale = 0.01;
    return tail->scale;
}
