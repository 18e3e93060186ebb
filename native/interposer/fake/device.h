/* The GPUs of the fake driver: streams of kernels that share SMs and bandwidth, seen by all processes that name the same
 * state file; on the real clock or on a virtual one. */
#ifndef FAKE_DEVICE_H
#define FAKE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#define FAKE_DEVICES 4

struct fake_work {
    int event;           /* >= 0: an event, not a kernel */
    int gate;            /* > 0: nothing but a wait until event gate - 1 is reached */
    uint32_t sm;         /* SMs that all blocks would fill at once; more than the GPU has: several waves */
    float compute, dram; /* 0..1; negative: unknown */
    double ns;           /* as it takes alone */
    /* the device's own: */
    uint32_t pending, running; /* SM-sized portions not started; batches that run */
    uint64_t ready;
    double block_ns;
};

/* The clock of this thread. */
uint64_t fake_now(void);
/* Let so much time pass for this thread. */
void fake_pass(uint64_t ns);
/* Virtual clock: let so much time pass, or less where another thread calls fake_wake meanwhile. */
void fake_wait(uint64_t ns);
void fake_wake(void);
bool fake_virtual(void);
int fake_sms(void);
/* Append work to a stream; the call takes the CPU so long on the virtual clock. */
void fake_queue(int device, uint64_t stream, const struct fake_work *work, uint64_t call_ns);
/* Whether all work of the stream (0: of this process) is done; waits for it if asked to. */
bool fake_done(int device, uint64_t stream, bool wait);
uint64_t fake_stream(void); /* a new name of a stream of this process */
int fake_event_new(void);
void fake_event_free(int event);
void fake_event_reset(int event);
/* 0: not recorded yet or not reached; else the time it was reached. */
uint64_t fake_event_time(int device, int event);

#endif
