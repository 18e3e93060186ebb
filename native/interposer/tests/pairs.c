/* A service or a training with the kernels of a recorded profile: pairs serve KERNELS ARRIVALS | pairs train KERNELS NS
 *
 * KERNELS: lines "k SMS NS COMPUTE DRAM" describe kernel 0, 1, …, then lines "l NUMBER" are the launches of a request or of
 * an iteration, in order. A line "p NS": the program computes so long before each launch. ARRIVALS: nanoseconds since the start, a line each. The service prints when each request has
 * finished since the start (the service has warmed up before), the training how much work (as it takes alone) it has done in the time given and how long that took. */
#define _GNU_SOURCE
#include "../abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                                                                 \
    do {                                                                                                            \
        CUresult result_ = (call);                                                                                  \
        if (result_ != CUDA_SUCCESS) {                                                                              \
            fprintf(stderr, "error %d at %s:%d\n", result_, #call, __LINE__);                                       \
            exit(3);                                                                                                \
        }                                                                                                           \
    } while (0)

extern CUresult cuInit(unsigned), cuDeviceGet(CUdevice *, int), cuCtxCreate_v2(CUcontext *, unsigned, CUdevice),
    cuModuleLoadData(CUmodule *, const void *), cuModuleGetFunction(CUfunction *, CUmodule, const char *),
    cuCtxSynchronize(void), cuLaunchKernel P_LAUNCH, cuStreamSynchronize P_STREAM;

#define KERNELS 8192
#define WARM_UP 3
#define EPOCH_NS 1300000000u /* on the virtual clock, which begins at 1e9: by then the service has warmed up */
static struct {
    CUfunction f;
    unsigned sms;
    double ns;
} kernels[KERNELS];
static unsigned launches[KERNELS], kernel_count, launch_count;
static unsigned long long pause_ns;
static uint64_t (*now)(void);
static void (*rest)(uint64_t);

static void load(const char *path, CUmodule module) {
    FILE *file = fopen(path, "r");
    char line[256], name[256], compute[32], dram[32];
    if (!file) exit(2);
    while (fgets(line, sizeof line, file)) {
        unsigned sms, which;
        double ns;
        if (sscanf(line, "k %u %lf %31s %31s", &sms, &ns, compute, dram) == 4 && kernel_count < KERNELS) {
            snprintf(name, sizeof name, "k%u?ns=%.0f&per_sm=1&compute=%s&dram=%s", kernel_count, ns, compute, dram);
            CHECK(cuModuleGetFunction(&kernels[kernel_count].f, module, name));
            kernels[kernel_count].sms = sms;
            kernels[kernel_count++].ns = ns;
        } else if (sscanf(line, "p %llu", &pause_ns) == 1) {
            continue;
        } else if (sscanf(line, "l %u", &which) == 1 && which < kernel_count && launch_count < KERNELS) {
            launches[launch_count++] = which;
        } else {
            exit(2);
        }
    }
    fclose(file);
}

static double launch(unsigned number) {
    unsigned k = launches[number];
    if (pause_ns) rest(pause_ns);
    CHECK(cuLaunchKernel(kernels[k].f, kernels[k].sms, 1, 1, 128, 1, 1, 0, NULL, NULL, NULL));
    return kernels[k].ns;
}

static void until(uint64_t at) {
    uint64_t from = now();
    if (from < at) rest(at - from);
}

static void serve(const char *path) {
    FILE *file = fopen(path, "r");
    unsigned long long arrival;
    if (!file) exit(2);
    for (int i = 0; i < WARM_UP; i++) {
        for (unsigned n = 0; n < launch_count; n++) launch(n);
        CHECK(cuStreamSynchronize(NULL));
        rest(1000000);
    }
    printf("finish=");
    for (int i = 0; fscanf(file, "%llu", &arrival) == 1; i++) {
        until(EPOCH_NS + arrival);
        for (unsigned n = 0; n < launch_count; n++) launch(n);
        CHECK(cuStreamSynchronize(NULL));
        printf("%s%llu", i ? "," : "", (unsigned long long)(now() - EPOCH_NS));
    }
    printf("\n");
    fclose(file);
}

static void train(uint64_t for_ns) {
    double work = 0;
    uint64_t longest = 0;
    until(EPOCH_NS);
    for (unsigned n = 0;; n = (n + 1) % launch_count) {
        uint64_t from = now(), took;
        if (from >= EPOCH_NS + for_ns) break;
        work += launch(n);
        took = now() - from;
        if (took > longest) longest = took;
    }
    CHECK(cuCtxSynchronize());
    printf("work=%.0f took=%llu longest=%llu\n", work, (unsigned long long)(now() - EPOCH_NS), (unsigned long long)longest);
}

int main(int argc, char **argv) {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    if (argc != 4) return 2;
    void *driver = dlopen(getenv("GPULOOM_SHARE_DRIVER"), RTLD_NOW | RTLD_LOCAL);
    if (!driver) return 2;
    now = (uint64_t(*)(void))dlsym(driver, "gpuloom_fake_clock");
    rest = (void (*)(uint64_t))dlsym(driver, "gpuloom_fake_sleep");
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuCtxCreate_v2(&context, 0, device));
    CHECK(cuModuleLoadData(&module, "image"));
    load(argv[2], module);
    if (strcmp(argv[1], "serve") == 0) serve(argv[3]);
    else train((uint64_t)strtoull(argv[3], NULL, 10));
    return 0;
}
