/* What is known of the kernels that this program launches. All functions but gls_describe want the caller to hold
 * gls_lock; gls_describe calls the driver and wants it free. */
#ifndef GPULOOM_KERNELS_H
#define GPULOOM_KERNELS_H

#include "abi.h"
#include "admission.h"
#include "profile.h"

#include <stdatomic.h>
#include <stdbool.h>

struct gls_key {
    CUfunction f;
    unsigned grid[3], block[3], shared;
};

struct gls_known {
    struct gls_key key;
    uint64_t id; /* hash of name, grid, block, shared memory; 0: free entry */
    struct gl_kernel kernel;
    uint32_t launches, samples;
    uint64_t used; /* when it was last looked up, in look-ups */
    bool profiled;   /* the duration comes from a profile and is not learnt */
    bool collective; /* an NCCL kernel: the program must not be gated */
};

enum gls_handle { GLS_HANDLE_UNSEEN = 0, GLS_HANDLE_FUNCTION = 1, GLS_HANDLE_KERNEL = 2 };

/* The entry of a kernel, or NULL if it is not there. Its address holds while the lock does. */
struct gls_known *gls_find(const struct gls_key *key);
/* Ask the driver (and the profile) what kernel this is. */
struct gls_known gls_describe(const struct gls_key *key, unsigned sm_count);
/* Add it, or find it if another thread has. Where there is no place, the one longest unused is replaced. */
struct gls_known *gls_add(const struct gls_known *known);
/* A measured duration. */
void gls_learn(struct gls_known *known, uint64_t duration_ns);
/* A handle that the driver gave out under this name; NULL: it did not say which. */
void gls_handle_seen(const void *handle, enum gls_handle kind, const char *name);
/* Forget all entries. */
void gls_kernels_clear(void);
/* Code has been unloaded: handles may come to mean other kernels. */
void gls_kernels_unloaded(void);
extern unsigned gls_kernels_generation; /* counts the clearings */

/* A lock of this process, held for some tens of nanoseconds. Reset in the child of a fork. */
extern atomic_flag gls_lock_word;
static inline void gls_lock(void) {
    while (atomic_flag_test_and_set_explicit(&gls_lock_word, memory_order_acquire)) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}
static inline void gls_unlock(void) { atomic_flag_clear_explicit(&gls_lock_word, memory_order_release); }

#endif
