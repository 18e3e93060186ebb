/* The profile of a program's kernels, as `gpuloom share run --profile` hands it over: a line per kernel, sharing/table.py
 * writes it. Read once, then only looked up, so no lock is needed. */
#ifndef GPULOOM_PROFILE_H
#define GPULOOM_PROFILE_H

#include "admission.h"

#include <stddef.h>
#include <stdint.h>

#define GLS_SHARED_UNKNOWN UINT32_MAX /* dynamic shared memory that the profile does not tell: "-" in the file */

enum gls_match {
    GLS_MATCH_NONE,
    GLS_MATCH_NAME,      /* the kernel's own name, grid, block and shared memory */
    GLS_MATCH_SIGNATURE, /* its qualified name without template arguments, grid, block and shared memory */
    GLS_MATCH_CLASS,     /* name or signature alone: only the class holds */
};

/* The qualified name of a kernel without template arguments and parameters, from its mangled name (Itanium C++ ABI,
 * "External names"): _ZN2at6native6kernelILi4EEEvi -> at::native::kernel. Names that aren't mangled stay as they are.
 * Returns its length; 0 and an empty string: it has none, or `room` is too small. */
size_t gls_signature(const char *name, char *signature, size_t room);
/* Hash of name, grid, block, shared memory; never 0. */
uint64_t gls_identity(const char *name, const unsigned grid[3], const unsigned block[3], unsigned shared);
/* Read the profile that GPULOOM_SHARE_PROFILE names, if any. Once, before anything else. */
void gls_profile_load(void);
/* How many kernels it holds. */
size_t gls_profile_size(void);
/* What it says of a kernel; `kernel` is left alone where it says nothing. */
enum gls_match gls_profile_find(const char *name, const unsigned grid[3], const unsigned block[3], unsigned shared,
                                struct gl_kernel *kernel);

#endif
