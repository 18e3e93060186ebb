/* The shared-memory protocol between programs that share a GPU: one file per GPU.
 *
 * Layout (version GLS_VERSION): a header of 4096 bytes, then GLS_CLIENTS slots of 4096 bytes. What a program writes at
 * every launch stands in a cache line of its own. Nothing in the file is ever locked by a word in memory, so no death
 * can leave a lock behind: a slot belongs to the open file that holds the lock on byte GLS_LOCK_BASE + slot (an OFD
 * lock, released by the kernel), masks are sets of bits that anyone may clear for a slot whose lock is free, and
 * accounts are times that expire. All times are nanoseconds of CLOCK_MONOTONIC.
 */
#ifndef GPULOOM_SHM_H
#define GPULOOM_SHM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GLS_MAGIC 0x31304d4f4f4c4750ull /* "PGLOOM01" */
#define GLS_VERSION 1u
#define GLS_CLIENTS 64u
#define GLS_RING 32u
#define GLS_REASONS 32u
#define GLS_LOCK_INIT 0x100000 /* byte of the lock of whoever creates or checks the file */
#define GLS_LOCK_BASE 0x100001 /* byte of slot 0 */
#define GLS_NAME 64u

enum gls_class { GLS_CLASS_NONE = 0, GLS_CLASS_HIGH = 1, GLS_CLASS_BEST_EFFORT = 2, GLS_CLASS_EXEMPT = 3 };
enum gls_slot_state { GLS_FREE = 0, GLS_CLAIMED = 1, GLS_LIVE = 2 };

/* A launch: what the rule needs to know of it. `seq` is 0 while the entry is being written, else launch number + 1. */
struct gls_launch {
    _Atomic uint64_t seq;
    _Atomic uint64_t shape;       /* sm 0..31 | class 32..39 | compute 40..47 | dram 48..55 (255: unknown) */
    _Atomic uint64_t duration_ns; /* 0: unknown */
    _Atomic uint64_t end_ns;      /* predicted end; of a held launch 0 */
    _Atomic uint64_t kernel;      /* hash of name, grid, block and shared memory */
    uint64_t unused[3];
};

struct gls_client {
    /* hot: one cache line, written by its owner at every launch, read by best-effort programs */
    _Atomic uint32_t state;     /* enum gls_slot_state */
    _Atomic uint32_t klass;     /* enum gls_class */
    _Atomic uint32_t busy;      /* high: a request is in progress */
    _Atomic uint32_t held;      /* best-effort: waits inside a launch; reason + 1 */
    _Atomic uint64_t launches;  /* entries written to the ring so far */
    _Atomic uint64_t busy_ns;   /* since when busy */
    _Atomic uint64_t end_ns;    /* predicted end of all that was launched */
    _Atomic uint64_t request_ns; /* a request's time alone, learnt; 0: unknown */
    _Atomic int64_t slack_ns;   /* what is left of the busy period's delay budget; best-effort programs take off it */
    _Atomic uint64_t held_since_ns;
    /* counters, and who it is: a second and third line */
    _Atomic uint64_t kernels, graphs, captured, holds;
    _Atomic uint64_t held_ns, gpu_ns, requests, max_held_ns;
    _Atomic uint64_t attached_ns, start_ticks;
    _Atomic uint64_t price_scale, load; /* high: of the rule's price, and share of time busy alone; in millionths */
    _Atomic uint32_t pid, generation;
    char name[GLS_NAME];
    _Atomic uint64_t reasons[GLS_REASONS]; /* admissions and first reasons to hold, by enum gl_reason */
    struct gls_launch ring[GLS_RING] __attribute__((aligned(64)));
    /* high: best-effort launches admitted beside its requests so far; requests in a row without a pause, the one in
     * progress among them; by how much best-effort work is expected to delay that one */
    _Atomic uint64_t touched, row, delay_ns;
    /* high: of a request alone, GPU time in which its program has launched nothing yet that could run; when its kernels
     * will have caught up with what has delayed them */
    _Atomic uint64_t spare_ns, caught_up_ns;
    char pad[1536 - 64];
} __attribute__((aligned(64)));

struct gls_header {
    _Atomic uint64_t magic; /* written last */
    uint32_t version, header_bytes, client_bytes, clients;
    uint64_t total_bytes;
    unsigned char uuid[16];
    uint32_t sm_count;
    char pad1[64 - 52];
    _Atomic uint64_t high_mask, best_mask; /* slots of each class */
    _Atomic uint64_t waiting_mask;         /* slots that may sleep on `idle` */
    char pad2[64 - 24];
    _Atomic uint32_t idle; /* futex: counts ends of high-priority requests */
    char pad3[64 - 4];
    _Atomic uint64_t account; /* best-effort work on the GPU: SMs in flight 48..63 | predicted end, ns >> 6, 0..47 */
    _Atomic uint64_t pending; /* best-effort kernels: number admitted since the account last ran empty */
    char pad4[64 - 16];
    char pad5[4096 - 256];
};

_Static_assert(sizeof(struct gls_header) == 4096, "header layout");
_Static_assert(sizeof(struct gls_client) == 4096, "client layout");
_Static_assert(offsetof(struct gls_client, kernels) == 64, "hot data fill one cache line");
_Static_assert(sizeof(struct gls_launch) == 64, "launch layout");
#define GLS_TOTAL (sizeof(struct gls_header) + GLS_CLIENTS * sizeof(struct gls_client))

struct gls_map {
    int fd;
    int slot; /* -1: none */
    struct gls_header *header;
    struct gls_client *clients;
};

enum gls_error {
    GLS_OK = 0,
    GLS_NO_FILE = 1,    /* cannot be opened, created or mapped (errno) */
    GLS_MISMATCH = 2,   /* another layout, and programs use it */
    GLS_FULL = 3,       /* all slots taken */
    GLS_NOT_OURS = 4,   /* no regular file, or another user's */
    GLS_BUSY = 5        /* somebody keeps the file's creation lock too long */
};

/* Open the GPU's file, creating it where it is missing, stale or of another layout that nobody uses any more. */
enum gls_error gls_open(struct gls_map *map, const char *path, const unsigned char uuid[16], uint32_t sm_count);
/* Take a slot. Its counters start at 0. */
enum gls_error gls_attach(struct gls_map *map, enum gls_class klass, const char *name, uint64_t now_ns);
/* Give the slot back in order (death does the same, less the masks). */
void gls_detach(struct gls_map *map);
void gls_close(struct gls_map *map);
/* Free the slots of the dead: returns how many. `only` limits it to some slots. */
int gls_reap(struct gls_map *map, uint64_t only);
/* Before the first thread of this program waits, and after the last has. The caller holds the slot throughout. */
void gls_announce(struct gls_map *map, bool waits);
/* Sleep until `idle` differs from `seen`, at most so long. Touches no slot: it may have been given back meanwhile. */
void gls_wait(struct gls_map *map, uint32_t seen, uint64_t timeout_ns);
/* Tell waiting best-effort programs that a request ended. */
void gls_wake(struct gls_map *map);
/* Add a kernel to the account of best-effort work. */
void gls_account(struct gls_map *map, uint64_t now_ns, uint64_t duration_ns, uint32_t sm);
/* Best-effort work outstanding: time in ns, SMs in flight, kernels. */
void gls_outstanding(struct gls_map *map, uint64_t now_ns, uint64_t *ns, uint32_t *sm, uint32_t *kernels);
const char *gls_error_text(enum gls_error error);
uint64_t gls_now(void);
/* A fake driver's way to put its virtual clock in their place. */
extern uint64_t (*gls_clock)(void);
extern void (*gls_sleep)(uint64_t ns);
extern void (*gls_waiter)(uint64_t ns);
extern void (*gls_waker)(void);

#ifdef GLS_FAULTS /* test builds: die here if GPULOOM_SHARE_FAULT names the point */
void gls_fault(const char *point);
#else
#define gls_fault(point) ((void)0)
#endif

#endif
