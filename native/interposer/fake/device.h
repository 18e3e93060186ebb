/* The GPUs of the fake driver: streams of kernels that share SMs and bandwidth, seen by all processes that name the same
 * state file; on the real clock or on a virtual one. */
#ifndef FAKE_DEVICE_H
#define FAKE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#define FAKE_DEVICES 4

struct fake_work {
    uint64_t stream; /* unique among all processes */
    int event;       /* >= 0: an event, not a kernel */
    uint32_t sm;
    float compute, dram;
    double left_ns; /* work left, as it takes alone */
    bool running;
};

/* The clock of this thread. On the virtual clock every call costs a little, so that polling makes progress. */
uint64_t fake_now(void);
/* Let so much time pass for this thread. */
void fake_pass(uint64_t ns);
bool fake_virtual(void);
int fake_sms(void);
void fake_queue(int device, const struct fake_work *work);
/* Whether all work of the stream (0: of this process) is done; waits for it if asked to. */
bool fake_done(int device, uint64_t stream, bool wait);
uint64_t fake_stream(void); /* a new name of a stream of this process */
int fake_event_new(void);
void fake_event_free(int event);
void fake_event_reset(int event);
/* 0: not recorded yet or not reached; else the time it was reached. */
uint64_t fake_event_time(int device, int event);

#endif
