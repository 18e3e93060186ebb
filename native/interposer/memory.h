/* How much GPU memory a program may have beside others: GPULOOM_SHARE_MEMORY_MIB. Counted is what it asks the driver
 * for; not what a context itself takes, nor arrays for textures. */
#ifndef GPULOOM_MEMORY_H
#define GPULOOM_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gls_memory { GLS_POINTER, GLS_ALLOCATION }; /* of the calls that name an address; of cuMemCreate */

void gls_memory_bound(double mib); /* 0: none. Once, before anything else */
bool gls_memory_has_bound(void);
/* Room for so much more: kept for an allocation that is about to be made. False: there is none, and the program has been
 * told so once, on its stderr. */
bool gls_memory_takes(size_t bytes);
/* It was made: this is its name, 0 if it was not; `asked` was kept for it. context: that it ends with; NULL: none. */
void gls_memory_taken(enum gls_memory kind, uint64_t name, size_t asked, size_t bytes, const void *context);
/* It is about to be freed: its bytes, 0 if it is not known. If it can't be freed after all it is taken again, in
 * its context. */
size_t gls_memory_freed(enum gls_memory kind, uint64_t name, const void **context);
void gls_memory_forked(void); /* in the child, which has none */
void gls_memory_context_gone(const void *context); /* and what was allocated in it */
void gls_memory_seen(size_t *left, size_t *total); /* what the driver says of the GPU, within the bound */

#endif
