/* Compile-time comparison of abi.h with NVIDIA's cuda.h: compile with -I<folder of cuda.h>; there is nothing to run.
 * abi.h's names are those of cuda.h, so it is read under other names. */
#define __CUDA_API_VERSION_INTERNAL 1 /* v1 and _ptsz forms are declared too */
#include <cuda.h>

/* Values: keep cuda.h's (enumerators) apart from ours (macros). */
enum {
    nv_success = CUDA_SUCCESS, nv_value = CUDA_ERROR_INVALID_VALUE, nv_memory = CUDA_ERROR_OUT_OF_MEMORY,
    nv_init = CUDA_ERROR_NOT_INITIALIZED, nv_stub = CUDA_ERROR_STUB_LIBRARY, nv_no_device = CUDA_ERROR_NO_DEVICE,
    nv_device = CUDA_ERROR_INVALID_DEVICE, nv_context = CUDA_ERROR_INVALID_CONTEXT,
    nv_handle = CUDA_ERROR_INVALID_HANDLE, nv_found = CUDA_ERROR_NOT_FOUND, nv_ready = CUDA_ERROR_NOT_READY,
    nv_unsupported = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, nv_spoilt = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
    nv_event = CU_EVENT_DEFAULT, nv_timing = CU_EVENT_DISABLE_TIMING,
    nv_sms = CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, nv_major = CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
    nv_minor = CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, nv_none = CU_STREAM_CAPTURE_STATUS_NONE,
    nv_active = CU_STREAM_CAPTURE_STATUS_ACTIVE, nv_default = CU_GET_PROC_ADDRESS_DEFAULT,
    nv_legacy = CU_GET_PROC_ADDRESS_LEGACY_STREAM, nv_ptsz = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
    nv_ok = CU_GET_PROC_ADDRESS_SUCCESS, nv_no_symbol = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
    nv_old = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, nv_on_device = CU_MEM_LOCATION_TYPE_DEVICE
};
enum { nv_legacy_stream = (int)(size_t)CU_STREAM_LEGACY, nv_per_thread_stream = (int)(size_t)CU_STREAM_PER_THREAD };
typedef struct CUlaunchConfig_st nv_config;
typedef struct CUuuid_st nv_uuid;
typedef struct CUmemAllocationProp_st nv_properties;
#undef CU_STREAM_LEGACY
#undef CU_STREAM_PER_THREAD
/* From here to the #undefs the plain names are abi.h's. */
#define CUresult our_CUresult
#define CUdevice our_CUdevice
#define CUdeviceptr our_CUdeviceptr
#define CUstreamCaptureMode our_CUstreamCaptureMode
#define CUstreamCaptureStatus our_CUstreamCaptureStatus
#define CUdriverProcAddressQueryResult our_CUdriverProcAddressQueryResult
#define CUdevice_attribute our_CUdevice_attribute
#define CUuuid our_CUuuid
#define CUlaunchConfig our_CUlaunchConfig
#define CUmemAllocationProp our_CUmemAllocationProp
#define cuuint64_t our_uint64
#include "../abi.h"

#define SAME(a, b) _Static_assert((a) == (b), #b)
SAME(nv_success, CUDA_SUCCESS);
SAME(nv_value, CUDA_ERROR_INVALID_VALUE);
SAME(nv_memory, CUDA_ERROR_OUT_OF_MEMORY);
SAME(nv_init, CUDA_ERROR_NOT_INITIALIZED);
SAME(nv_stub, CUDA_ERROR_STUB_LIBRARY);
SAME(nv_no_device, CUDA_ERROR_NO_DEVICE);
SAME(nv_device, CUDA_ERROR_INVALID_DEVICE);
SAME(nv_context, CUDA_ERROR_INVALID_CONTEXT);
SAME(nv_handle, CUDA_ERROR_INVALID_HANDLE);
SAME(nv_found, CUDA_ERROR_NOT_FOUND);
SAME(nv_ready, CUDA_ERROR_NOT_READY);
SAME(nv_unsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(nv_spoilt, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME(nv_event, CU_EVENT_DEFAULT);
SAME(nv_timing, CU_EVENT_DISABLE_TIMING);
SAME(nv_sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(nv_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(nv_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(nv_none, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(nv_active, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME(nv_default, CU_GET_PROC_ADDRESS_DEFAULT);
SAME(nv_legacy, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
SAME(nv_ptsz, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
SAME(nv_ok, CU_GET_PROC_ADDRESS_SUCCESS);
SAME(nv_no_symbol, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
SAME(nv_old, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
SAME(nv_on_device, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(offsetof(nv_properties, location.type), offsetof(CUmemAllocationProp, location.type));
SAME(sizeof((nv_properties){0}.location.type), sizeof((CUmemAllocationProp){0}.location.type));
#undef CUmemAllocationProp
#undef CUresult
#undef CUdevice
#undef CUdeviceptr
#undef CUstreamCaptureMode
#undef CUstreamCaptureStatus
#undef CUdriverProcAddressQueryResult
#undef CUdevice_attribute
#undef CUuuid
#undef CUlaunchConfig
#undef cuuint64_t
SAME(sizeof(CUresult), sizeof(our_CUresult));
SAME(sizeof(CUdevice), sizeof(our_CUdevice));
SAME(sizeof(CUdeviceptr), sizeof(our_CUdeviceptr));
SAME(sizeof(CUstreamCaptureMode), sizeof(our_CUstreamCaptureMode));
SAME(sizeof(CUstreamCaptureStatus), sizeof(our_CUstreamCaptureStatus));
SAME(sizeof(CUdriverProcAddressQueryResult), sizeof(our_CUdriverProcAddressQueryResult));
SAME(sizeof(CUdevice_attribute), sizeof(our_CUdevice_attribute));
SAME(sizeof(cuuint64_t), sizeof(our_uint64));
SAME(sizeof(nv_uuid), sizeof(our_CUuuid));
SAME(sizeof(nv_config), sizeof(our_CUlaunchConfig));
#define FIELD(name) SAME(offsetof(nv_config, name), offsetof(our_CUlaunchConfig, name))
FIELD(gridDimX);
FIELD(gridDimY);
FIELD(gridDimZ);
FIELD(blockDimX);
FIELD(blockDimY);
FIELD(blockDimZ);
FIELD(sharedMemBytes);
FIELD(hStream);
FIELD(attrs);
FIELD(numAttrs);

/* Every hooked function that cuda.h declares has the parameters that the shim gives it (pointer targets may differ in
 * name: const void * for edge data). cuda.h's macros that rename functions are off. */
#undef cuStreamBeginCapture
#undef cuGetProcAddress
#undef cuCtxSynchronize
#define SIGNATURE(name, parameters)                                                                                 \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&name), CUresult(CUDAAPI *) parameters), #name)
SIGNATURE(cuLaunchKernel, P_LAUNCH);
SIGNATURE(cuLaunchKernelEx, P_LAUNCH_EX);
SIGNATURE(cuLaunchCooperativeKernel, P_COOPERATIVE);
SIGNATURE(cuGraphLaunch, P_GRAPH_LAUNCH);
SIGNATURE(cuStreamSynchronize, P_STREAM);
SIGNATURE(cuStreamQuery, P_STREAM);
SIGNATURE(cuStreamEndCapture, P_END_CAPTURE);
SIGNATURE(cuStreamBeginCapture_v2, P_BEGIN_CAPTURE);
SIGNATURE(cuEventRecord, P_EVENT_RECORD);
SIGNATURE(cuEventRecordWithFlags, P_EVENT_RECORD_FLAGS);
SIGNATURE(cuStreamWaitEvent, P_STREAM_WAIT);
SIGNATURE(cuEventSynchronize, P_EVENT);
SIGNATURE(cuEventQuery, P_EVENT);
SIGNATURE(cuGetProcAddress, P_PROC_1);
SIGNATURE(cuGetProcAddress_v2, P_PROC_2);
SIGNATURE(cuCtxSynchronize, P_VOID);
#if CUDA_VERSION >= 13000
SIGNATURE(cuCtxSynchronize_v2, P_CONTEXT);
#else
SIGNATURE(cuCtxPushCurrent_v2, P_CONTEXT); /* cuda.h of CUDA 12 has no cuCtxSynchronize_v2; this takes a context too */
#endif
SIGNATURE(cuStreamBeginCapture, P_STREAM);
SIGNATURE(cuMemcpyDtoH_v2, P_COPY_TO_HOST);
SIGNATURE(cuMemcpy, P_COPY);
SIGNATURE(cuMemAlloc_v2, P_MEM_ALLOC);
SIGNATURE(cuMemAllocManaged, P_MEM_MANAGED);
SIGNATURE(cuMemAllocPitch_v2, P_MEM_PITCH);
SIGNATURE(cuMemAllocAsync, P_MEM_ASYNC);
SIGNATURE(cuMemAllocFromPoolAsync, P_MEM_POOL);
SIGNATURE(cuMemCreate, P_MEM_CREATE);
SIGNATURE(cuMemFree_v2, P_MEM_FREE);
SIGNATURE(cuMemFreeAsync, P_MEM_FREE_ASYNC);
SIGNATURE(cuMemRelease, P_MEM_RELEASE);
SIGNATURE(cuMemGetInfo_v2, P_MEM_INFO);
SIGNATURE(cuStreamDestroy, P_STREAM);
SIGNATURE(cuStreamDestroy_v2, P_STREAM);
SIGNATURE(cuCtxDestroy, P_CONTEXT);
SIGNATURE(cuCtxDestroy_v2, P_CONTEXT);
SIGNATURE(cuDevicePrimaryCtxRetain, P_PRIMARY);
SIGNATURE(cuDevicePrimaryCtxRelease, P_DEVICE);
SIGNATURE(cuDevicePrimaryCtxRelease_v2, P_DEVICE);
SIGNATURE(cuDevicePrimaryCtxReset, P_DEVICE);
SIGNATURE(cuDevicePrimaryCtxReset_v2, P_DEVICE);
SIGNATURE(cuModuleGetFunction, P_GET_FUNCTION);
SIGNATURE(cuLibraryGetKernel, P_GET_KERNEL);
SIGNATURE(cuKernelGetFunction, P_KERNEL_FUNCTION);
SIGNATURE(cuModuleUnload, P_MODULE);
SIGNATURE(cuLibraryUnload, P_LIBRARY);
/* The edges' type is not named by abi.h: called, and compared without it. */
static inline CUresult begin_capture_to P_BEGIN_CAPTURE_TO {
    return cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode);
}
#define CUgraphEdgeData void
SIGNATURE(begin_capture_to, (CUstream, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t,
                             CUstreamCaptureMode));
#undef CUgraphEdgeData
_Static_assert(__builtin_types_compatible_p(__typeof__(&cuStreamBeginCaptureToGraph),
                                            CUresult(CUDAAPI *)(CUstream, CUgraph, const CUgraphNode *,
                                                                const CUgraphEdgeData *, size_t, CUstreamCaptureMode)),
               "cuStreamBeginCaptureToGraph");

/* What the shim calls for itself. */
#include "../driver.h"
#define OWN(member, name)                                                                                           \
    _Static_assert(__builtin_types_compatible_p(__typeof__(((struct gls_own *)0)->member), __typeof__(&name)), #name)
OWN(context, cuCtxGetCurrent);
OWN(device, cuCtxGetDevice);
OWN(uuid, cuDeviceGetUuid_v2);
OWN(attribute, cuDeviceGetAttribute);
OWN(function_name, cuFuncGetName);
OWN(kernel_name, cuKernelGetName);
OWN(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor);
OWN(capturing, cuStreamIsCapturing);
OWN(event_create, cuEventCreate);
OWN(primary_state, cuDevicePrimaryCtxGetState);
#undef cuEventElapsedTime
OWN(event_elapsed, cuEventElapsedTime);

SAME(nv_legacy_stream, (int)(size_t)CU_STREAM_LEGACY);
SAME(nv_per_thread_stream, (int)(size_t)CU_STREAM_PER_THREAD);
