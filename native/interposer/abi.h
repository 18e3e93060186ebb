/* The few types and constants of the CUDA driver ABI that the shim touches.
 *
 * Written from the documented interface; tests/test_abi.c compares every size, offset, value and signature with
 * NVIDIA's own cuda.h where that is at hand (the PyPI wheel nvidia-cuda-runtime-cu12 or nvidia-cuda-runtime).
 */
#ifndef GPULOOM_ABI_H
#define GPULOOM_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult; /* an enum in cuda.h, of the size of an int */
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
typedef struct CUfunc_st *CUfunction;
typedef struct CUkern_st *CUkernel;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef uint64_t cuuint64_t;
typedef int CUstreamCaptureMode;
typedef int CUstreamCaptureStatus;
typedef int CUdriverProcAddressQueryResult;
typedef int CUdevice_attribute;

typedef struct { /* cuda.h: struct CUuuid_st */
    char bytes[16];
} CUuuid;

typedef struct { /* cuda.h: struct CUlaunchConfig_st */
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes;
    CUstream hStream;
    void *attrs; /* CUlaunchAttribute[numAttrs], never looked into */
    unsigned numAttrs;
} CUlaunchConfig;

typedef struct { /* the beginning of cuda.h: struct CUmemAllocationProp_st */
    int type, requestedHandleTypes;
    struct {
        int type, id;
    } location;
} CUmemAllocationProp;

#define CU_MEM_LOCATION_TYPE_DEVICE 1

#define CUDA_SUCCESS 0
#define CUDA_ERROR_INVALID_VALUE 1
#define CUDA_ERROR_OUT_OF_MEMORY 2
#define CUDA_ERROR_NOT_INITIALIZED 3
#define CUDA_ERROR_STUB_LIBRARY 34
#define CUDA_ERROR_NO_DEVICE 100
#define CUDA_ERROR_INVALID_DEVICE 101
#define CUDA_ERROR_INVALID_CONTEXT 201
#define CUDA_ERROR_INVALID_HANDLE 400
#define CUDA_ERROR_NOT_FOUND 500
#define CUDA_ERROR_NOT_READY 600
#define CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED 900
#define CUDA_ERROR_STREAM_CAPTURE_INVALIDATED 901

#define CU_EVENT_DEFAULT 0
#define CU_EVENT_DISABLE_TIMING 2
#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)
#define CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT 16
#define CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR 75
#define CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR 76
#define CU_STREAM_CAPTURE_STATUS_NONE 0
#define CU_STREAM_CAPTURE_STATUS_ACTIVE 1
#define CU_GET_PROC_ADDRESS_DEFAULT 0
#define CU_GET_PROC_ADDRESS_LEGACY_STREAM 1
#define CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM 2
#define CU_GET_PROC_ADDRESS_SUCCESS 0
#define CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND 1
#define CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT 2

/* Parameter lists of what is hooked, once for the shim, the fake driver and the check against cuda.h. */
#define P_LAUNCH                                                                                                    \
    (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,   \
     CUstream stream, void **params, void **extra)
#define P_LAUNCH_EX (const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
#define P_COOPERATIVE                                                                                               \
    (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,   \
     CUstream stream, void **params)
#define P_GRAPH_LAUNCH (CUgraphExec graph, CUstream stream)
#define P_STREAM (CUstream stream)
#define P_BEGIN_CAPTURE (CUstream stream, CUstreamCaptureMode mode)
#define P_BEGIN_CAPTURE_TO                                                                                          \
    (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *edges, size_t count,                     \
     CUstreamCaptureMode mode)
#define P_END_CAPTURE (CUstream stream, CUgraph *graph)
#define P_EVENT (CUevent event)
#define P_EVENT_RECORD (CUevent event, CUstream stream)
#define P_EVENT_RECORD_FLAGS (CUevent event, CUstream stream, unsigned flags)
#define P_STREAM_WAIT (CUstream stream, CUevent event, unsigned flags)
#define P_VOID (void)
#define P_CONTEXT (CUcontext context)
#define P_PROC_1 (const char *symbol, void **pfn, int version, cuuint64_t flags)
#define P_PROC_2                                                                                                    \
    (const char *symbol, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
#define P_GET_FUNCTION (CUfunction *function, CUmodule module, const char *name)
#define P_GET_KERNEL (CUkernel *kernel, CUlibrary library, const char *name)
#define P_KERNEL_FUNCTION (CUfunction *function, CUkernel kernel)
#define P_PRIMARY (CUcontext *context, CUdevice device)
#define P_DEVICE (CUdevice device)
#define P_COPY (CUdeviceptr to, CUdeviceptr from, size_t bytes)
#define P_COPY_TO_HOST (void *to, CUdeviceptr from, size_t bytes)
#define P_MEM_ALLOC (CUdeviceptr *at, size_t bytes)
#define P_MEM_MANAGED (CUdeviceptr *at, size_t bytes, unsigned flags)
#define P_MEM_PITCH (CUdeviceptr *at, size_t *pitch, size_t width, size_t height, unsigned element)
#define P_MEM_ASYNC (CUdeviceptr *at, size_t bytes, CUstream stream)
#define P_MEM_POOL (CUdeviceptr *at, size_t bytes, CUmemoryPool pool, CUstream stream)
#define P_MEM_CREATE                                                                                                \
    (CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,                     \
     unsigned long long flags)
#define P_MEM_FREE (CUdeviceptr at)
#define P_MEM_FREE_ASYNC (CUdeviceptr at, CUstream stream)
#define P_MEM_RELEASE (CUmemGenericAllocationHandle handle)
#define P_MEM_INFO (size_t *left, size_t *total)
#define P_MODULE (CUmodule module)
#define P_LIBRARY (CUlibrary library)

#endif
