/* Blocks per SM by NVIDIA's own cuda_occupancy.h (of the wheel nvidia-cuda-runtime): what the Python rule is compared with.
 *
 * Standard input: lines of major, minor, threads per SM, shared bytes per SM, reserved bytes per block, threads per
 * block, registers per thread, shared bytes per block. Standard output: blocks per SM of each, 0 where it can't run. */
#include <stddef.h>
#include <string.h>

#include <cuda_occupancy.h>

#include <stdio.h>

int main(void) {
    int major, minor, per_sm, shared_sm, reserved, threads, registers, shared;
    while (scanf("%d %d %d %d %d %d %d %d", &major, &minor, &per_sm, &shared_sm, &reserved, &threads, &registers,
                 &shared) == 8) {
        cudaOccDeviceProp device;
        cudaOccFuncAttributes function;
        cudaOccDeviceState state;
        cudaOccResult result;
        memset(&device, 0, sizeof device);
        memset(&function, 0, sizeof function);
        memset(&state, 0, sizeof state);
        device.computeMajor = major;
        device.computeMinor = minor;
        device.maxThreadsPerBlock = 1024;
        device.maxThreadsPerMultiprocessor = per_sm;
        device.regsPerBlock = device.regsPerMultiprocessor = 65536;
        device.warpSize = 32;
        device.sharedMemPerBlock = 48 * 1024;
        device.sharedMemPerMultiprocessor = (size_t)shared_sm;
        device.sharedMemPerBlockOptin = (size_t)(shared_sm - reserved);
        device.reservedSharedMemPerBlock = (size_t)reserved;
        device.numSms = 80;
        function.maxThreadsPerBlock = 1024;
        function.numRegs = registers;
        function.sharedSizeBytes = 0;
        function.maxDynamicSharedSizeBytes = (size_t)(shared_sm - reserved);
        function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED; /* as many blocks as the SM can be set to hold */
        int status = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &function, &state, threads, (size_t)shared);
        printf("%d\n", status == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : 0);
    }
    return 0;
}
