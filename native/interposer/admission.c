/* See admission.h. Every sum saturates, every division is by a number that has been checked. */
#include "admission.h"

#include <stddef.h>


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
        p->lone = 0;
        p->budget = 0.2;
        p->price = 1.2;
        p->steepness = 1.5;
        p->target = 0.02;
        p->confidence = 1.64;
        p->overrun = 0.05;
        p->cache = 0.05;
        p->begin = 0.6;
        p->least = 0.1;
        p->step = 0.03;
        p->fall = 4.0;
        p->launch_ns = 6000u;
        p->absorb = 0.8;
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
static void idle(const struct gl_params *p, const struct gl_state *s, struct gl_verdict *v) {
    uint64_t left = s->outstanding_ns, most = window(p, s);
    if (most && s->outstanding && left > most) {
        hold(v, GL_HOLD_WINDOW);
        v->recheck_ns = left - most;
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

/* By how much `hp` is slowed while `k` runs on `on` SMs: what both ask of compute and of memory bandwidth beyond all of
 * it, and the caches, by the bandwidth that `k` uses. */
static double contention(const struct gl_params *p, const struct gl_kernel *k, const struct gl_kernel *hp, double on,
                         uint32_t all) {
    double part = on / (double)sms(k, all), dram;
    if (part > 1.0) part = 1.0;
    dram = known(p, k->dram) * part;
    return positive(known(p, k->compute) * part + known(p, hp->compute) - 1.0) +
           positive(dram + known(p, hp->dram) - 1.0) + p->cache * dram;
}

#define PARTS 24u   /* groups of blocks told apart */
#define WAVES 16u   /* of a kernel, told apart */
#define EVENTS 192u /* steps of a projection at most; what is left then is taken to be in the way for all its time */
#define NEVER 1e300

/* The request's next kernels (0) and the best-effort kernel (1) side by side, on a clock that begins now. */
struct course {
    double now, block[2];
    uint32_t pending[2], running[2], free, count; /* SM-sized portions not started; SMs held */
    struct part {
        double end;
        uint32_t sms, who;
    } part[PARTS]; /* blocks that started together */
};

/* Take free SMs. At most one group too many is lumped with another of its program, so one of each has always room. */
static void start(struct course *c, uint32_t who) {
    uint32_t take = c->pending[who] < c->free ? c->pending[who] : c->free;
    double end = c->now + c->block[who];
    if (!take) return;
    c->pending[who] -= take;
    c->running[who] += take;
    c->free -= take;
    for (uint32_t i = 0; i < c->count; i++)
        if (c->part[i].who == who && (c->count >= PARTS - 1 || c->part[i].end == end)) {
            if (c->part[i].end < end) c->part[i].end = end;
            c->part[i].sms += take;
            return;
        }
    c->part[c->count++] = (struct part){end, take, who};
}

/* The kernel's portions and block time; blocks that follow each other on an SM are lumped to at most WAVES. */
static void put(const struct gl_params *p, const struct gl_kernel *k, uint32_t all, struct course *c, uint32_t who) {
    uint64_t n = k->sm ? k->sm : 1, waves = (n + all - 1) / all, group = (waves + WAVES - 1) / WAVES;
    n = (n + group - 1) / group;
    c->pending[who] = (uint32_t)n;
    c->block[who] = (double)duration(p, k) / (double)((n + all - 1) / all);
}

/* On to the next end of blocks, or `until`. */
static void step(struct course *c, double until) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->count; i++)
        if (c->part[i].end < until) until = c->part[i].end;
    if (until > c->now) c->now = until;
    for (uint32_t i = 0; i < c->count; i++) {
        struct part *b = &c->part[i];
        if (b->end > c->now) {
            c->part[kept++] = *b;
            continue;
        }
        c->free += b->sms;
        c->running[b->who] -= b->sms;
    }
    c->count = kept;
}

/* The kernel that runs has done this much of its time: its waves until then have passed. */
static void under_way(struct course *c, double gone, uint32_t all) {
    double block = c->block[0], past;
    uint64_t waves = (uint64_t)(gone / block), portions = waves * all;
    past = gone - (double)waves * block;
    c->pending[0] -= portions < c->pending[0] ? (uint32_t)portions : c->pending[0] - 1;
    c->block[0] = block - past;
    start(c, 0);
    c->block[0] = block;
}

/* What is left of `k` after the last kernel known, if others will follow: it is in the way for all its time. */
static double rest(const struct course *c, uint32_t all) {
    double left = 0.0;
    for (uint32_t i = 0; i < c->count; i++)
        if (c->part[i].who == 1 && c->part[i].end - c->now > left) left = c->part[i].end - c->now;
    return left + c->block[1] * (double)(((uint64_t)c->pending[1] + all - 1) / all);
}

/* Expected delay of the request if `k` is launched now: its next kernels and `k` side by side, wave by wave.
 *
 * The hardware gives a freed SM to the stream of higher priority first, and takes no block off an SM. So `k` takes the SMs
 * that a running kernel of the request leaves over, in its last wave above all; and where one ends and the next has not
 * begun, all that are free. The next then makes do with the others until blocks of `k` end. */
static uint64_t delay(const struct gl_params *p, const struct gl_state *s, const struct gl_kernel *k) {
    uint32_t all = s->sm_count, steps = 0, i;
    struct course c = {.free = all};
    double begin = (double)(s->outstanding_ns > p->launch_ns ? s->outstanding_ns : p->launch_ns), alone = 0.0, slowed = 0.0, known_ns = 0.0, lost;
    int begun = 0;
    for (i = 0; i < s->hp_count; i++) {
        const struct gl_kernel *hp = &s->hp[i];
        double lasts = (double)duration(p, hp), gone = i == 0 ? (double)s->hp_elapsed_ns : 0.0;
        if (begun && !c.pending[1] && !c.running[1]) break;
        if (gone >= lasts) continue; /* about to end */
        if (!(gone > 0.0)) { /* a boundary */
            if (!begun && begin <= c.now) begun = 1, put(p, k, all, &c, 1);
            start(&c, 1);
        }
        put(p, hp, all, &c, 0);
        if (gone > 0.0) under_way(&c, gone, all);
        else start(&c, 0);
        alone += lasts - gone;
        while ((c.pending[0] || c.running[0]) && steps < EVENTS) {
            double before = c.now;
            uint32_t on, of;
            if (!begun && begin <= c.now) begun = 1, put(p, k, all, &c, 1);
            start(&c, 1);
            on = c.running[1];
            of = c.running[0];
            step(&c, begun ? NEVER : begin);
            if (on && of) slowed += contention(p, k, hp, (double)on, all) * (c.now - before);
            start(&c, 0);
            steps++;
        }
        if (steps >= EVENTS) break;
    }
    for (uint32_t j = 0; j < s->hp_count; j++) known_ns += (double)duration(p, &s->hp[j]);
    known_ns -= (double)s->hp_elapsed_ns;
    lost = positive(c.now - alone) + slowed;
    if (!begun) put(p, k, all, &c, 1);
    if (steps >= EVENTS || !s->backlog_ns || (double)s->backlog_ns > known_ns) lost += rest(&c, all);
    return lost < 9e18 ? (uint64_t)lost : INT64_MAX;
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
 * the odds that the queue grows to where the tail is rise exponentially with what is in it already. Below half load it
 * falls with the load's square: the gaps bring nearly all then, and the time beside requests little but delay. */
static double price(const struct gl_params *p, const struct gl_state *s) {
    double worth = p->price * (s->load > 0.0 && s->load < 0.5 ? 4.0 * s->load * s->load : 1.0);
    double x = s->request_ns ? p->steepness * theta(s->load) * ((double)s->backlog_ns / (double)s->request_ns) : 0.0;
    double power;
    double scale = s->price_scale > 0.0 ? s->price_scale : p->begin;
    if (!(x > 0.0)) return worth * scale;
    power = 1.0 + x / 64.0; /* e^x as (1 + x/64)^64: monotonous, without libm */
    for (int i = 0; i < 6; i++) power *= power;
    return worth * scale / power;
}

/* A request is in progress. */
static void beside(const struct gl_params *p, const struct gl_state *s, const struct gl_kernel *k,
                   struct gl_verdict *v) {
    enum gl_reason reason;
    int budgeted = p->budget > 0.0 && s->slack_ns != GL_UNKNOWN_SLACK;
    uint64_t spare = share(p->absorb * clip(s->price_scale > 0.0 ? s->price_scale : p->begin), s->spare_ns);
    if (s->kind == GL_KIND_GRAPH) {
        hold(v, GL_HOLD_GRAPH);
        return;
    }
    if (p->budget > 0.0 && !k->duration_ns) {
        hold(v, GL_HOLD_UNKNOWN);
        return;
    }
    reason = unnoticed(p, s, k, v);
    if (!budgeted) {
        if (reason == GL_ADMIT_BESIDE) admit(v, reason);
        else hold(v, reason);
        return;
    }
    if (s->slack_ns < 0) {
        hold(v, GL_HOLD_BUDGET);
        return;
    }
    if (reason != GL_ADMIT_BESIDE) {
        /* Noticed, but perhaps worth it: only while nobody waits behind the request, and little is queued. */
        if (!(p->price > 0.0) || (p->lone && s->requests > p->lone)) {
            hold(v, reason);
            return;
        }
        if (!s->hp_count && !spare) {
            hold(v, GL_HOLD_PRICE);
            return;
        }
        if (s->outstanding && s->outstanding_ns > window(p, s)) {
            hold(v, GL_HOLD_WINDOW);
            v->recheck_ns = s->outstanding_ns - window(p, s);
            return;
        }
    }
    v->charge_ns = delay(p, s, k);
    if (spare) { /* its program is slower than the GPU: what its kernels are behind by its end counts */
        uint64_t before = s->lag_ns > spare ? s->lag_ns - spare : 0, lag = add(s->lag_ns, v->charge_ns);
        v->lag_ns = v->charge_ns;
        v->charge_ns = (lag > spare ? lag - spare : 0) - before;
    }
    if (v->charge_ns > (uint64_t)s->slack_ns) hold(v, GL_HOLD_BUDGET);
    else if (reason == GL_ADMIT_BESIDE) admit(v, reason);
    else if (v->charge_ns > share(price(p, s), duration(p, k))) hold(v, GL_HOLD_PRICE);
    else admit(v, GL_ADMIT_PRICED);
}

void gl_admit(const struct gl_params *p, const struct gl_state *s, const struct gl_kernel *k, struct gl_verdict *v) {
    *v = (struct gl_verdict){0};
    if (p->version != GL_ADMISSION_VERSION || s->version != GL_ADMISSION_VERSION || !s->sm_count ||
        (s->hp_count && !s->hp) || p->rule > GL_RULE_LITERAL) {
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
    else if (!s->hp_busy) idle(p, s, v);
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
        [GL_HOLD_BAD_INPUT] = "bad_input",  [GL_HOLD_TURNS] = "turns",           [GL_HOLD_UNKNOWN] = "unknown",
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

static uint32_t bucket_of(uint64_t latency) {
    uint32_t low = 0, high = GL_TAIL_BUCKETS - 1;
    while (low < high) { /* the last bucket whose lower edge is not above the latency */
        uint32_t middle = (low + high + 1) / 2;
        if (edge(middle) <= (double)latency) low = middle;
        else high = middle - 1;
    }
    return low;
}

uint64_t gl_tail_add(struct gl_tail *tail, uint64_t arrival_ns, uint64_t alone_ns) {
    uint64_t start = tail->finish_ns > arrival_ns ? tail->finish_ns : arrival_ns;
    if (!tail->count) tail->first_ns = arrival_ns;
    tail->last_ns = arrival_ns;
    tail->alone_ns = add(tail->alone_ns, alone_ns);
    tail->finish_ns = add(start, alone_ns);
    if (tail->count < UINT32_MAX) {
        tail->count++;
        tail->bucket[bucket_of(tail->finish_ns - arrival_ns)]++;
    }
    return tail->finish_ns;
}

static double quantile_of(const uint32_t *bucket, double count, double quantile) {
    double need = clip(quantile) * count, seen = 0.0;
    for (uint32_t i = 0; i < GL_TAIL_BUCKETS; i++) {
        double here = (double)bucket[i];
        if (here > 0.0 && seen + here >= need) { /* evenly spread within the bucket */
            double low = edge(i), high = i + 1 < GL_TAIL_BUCKETS ? edge(i + 1) : low;
            return low + (high - low) * (need > seen ? (need - seen) / here : 0.0);
        }
        seen += here;
    }
    return 0.0;
}

uint64_t gl_tail_quantile(const struct gl_tail *tail, double quantile) {
    double value = quantile_of(tail->bucket, (double)tail->count, quantile);
    return value < 18e18 ? (uint64_t)value : UINT64_MAX;
}

/* Newton's square root of 0 to 1: no libm. */
static double square_root(double x) {
    double y = 1.0;
    for (int i = 0; i < 40; i++) y = 0.5 * (y + x / y);
    return y;
}

int64_t gl_tail_budget(const struct gl_params *p, const struct gl_tail *tail, uint64_t virtual_latency_ns) {
    /* The p99 is uncertain: of n requests, the share that lies above it has the standard error sqrt(0.01 0.99 / n). */
    double error = square_root(0.0099 / (tail->count ? (double)tail->count : 1.0));
    double p99 = (double)gl_tail_quantile(tail, 0.99 - p->confidence * error), most = p->budget * p99, room;
    room = positive(p99 - (double)virtual_latency_ns) + p->overrun * p99;
    if (most > room) most = room;
    return most < 9e18 ? (int64_t)most : INT64_MAX;
}

double gl_tail_load(const struct gl_tail *tail) {
    if (tail->count < 3 || tail->last_ns <= tail->first_ns) return 0.0;
    return clip((double)tail->alone_ns * ((double)(tail->count - 1) / (double)tail->count) /
                (double)(tail->last_ns - tail->first_ns));
}

double gl_tail_done(const struct gl_params *p, struct gl_tail *tail, uint64_t virtual_latency_ns, uint64_t latency_ns) {
    double alone, late;
    if (!(tail->scale > 0.0)) tail->scale = p->begin;
    if (!(p->target > 0.0) || tail->done == UINT32_MAX) return tail->scale;
    tail->done++;
    tail->seen[0][bucket_of(virtual_latency_ns)]++;
    tail->seen[1][bucket_of(latency_ns)]++;
    alone = quantile_of(tail->seen[0], (double)tail->done, 0.99);
    late = alone > 0.0 ? quantile_of(tail->seen[1], (double)tail->done, 0.99) / alone - 1.0 : 0.0;
    late = late / p->target - 1.0; /* -1: p99 as alone; 0: as aimed at */
    tail->scale *= 1.0 - p->step * (late > p->fall ? p->fall : late < -1.0 ? -1.0 : late);
    if (tail->scale > 1.0) tail->scale = 1.0;
    if (tail->scale < p->least) tail->scale = p->least;
    return tail->scale;
}
