/* A small libnvidia-ml.so.1 for tests. What each call does is read, at each call, from the file named by
 * FAKE_NVML_CONTROL: lines of "key number". A function's own name as the key is the code it returns; "hang.NAME N"
 * makes it wait until somebody has opened the named pipe FAKE_NVML_CONTROL.N for writing, and closed it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOT_SUPPORTED = 3, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, NO_HANDLES = 64 };
typedef struct { int slice; } Handle;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; } ProcessSample;
typedef struct { unsigned version, supported; } Support;
typedef struct { unsigned id; int ret; double value; const char *names[3]; } Metric;
typedef struct { unsigned version, count; int *first, *second; Metric metrics[1]; } Metrics;

static Handle whole = {0}, slice = {1};
static int sample_clock;
static struct { const char *name; int calls; } counts[NO_HANDLES];

static double told(const char *key, double otherwise) {
    const char *path = getenv("FAKE_NVML_CONTROL");
    FILE *file = path ? fopen(path, "r") : NULL;
    char name[128];
    double number, found = otherwise;
    while (file && fscanf(file, "%127s %lf", name, &number) == 2)
        if (!strcmp(name, key)) found = number;
    if (file) fclose(file);
    return found;
}

static int enter(const char *name) {
    char key[128], path[4096], byte;
    for (int i = 0; i < NO_HANDLES; i++)
        if (!counts[i].name || !strcmp(counts[i].name, name)) { counts[i].name = name; counts[i].calls++; break; }
    snprintf(key, sizeof key, "hang.%s", name);
    int number = (int)told(key, 0);
    if (number) {
        snprintf(path, sizeof path, "%s.%d", getenv("FAKE_NVML_CONTROL"), number);
        int pipe = open(path, O_RDONLY);
        while (read(pipe, &byte, 1) > 0) { }
        close(pipe);
    }
    return (int)told(name, 0);
}

#define ENTER() do { int ret = enter(__func__); if (ret) return ret; } while (0)
#define WHOLE_ONLY(handle) do { if ((handle)->slice) return NOT_SUPPORTED; } while (0)

int fakeCalls(const char *name) {
    for (int i = 0; i < NO_HANDLES && counts[i].name; i++)
        if (!strcmp(counts[i].name, name)) return counts[i].calls;
    return 0;
}

const char *nvmlErrorString(int code) { (void)code; return "an error the bindings do not know"; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; ENTER(); return 0; }
int nvmlShutdown(void) { ENTER(); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { ENTER(); *count = (unsigned)told("count", 1); return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle **handle) {
    ENTER();
    if (index >= told("count", 1)) return INVALID_ARGUMENT;
    *handle = &whole;
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Handle **handle) {
    ENTER();
    if (!strcmp(uuid, "MIG-1")) *handle = &slice;
    else if (!strcmp(uuid, "GPU-1")) *handle = &whole;
    else return NOT_FOUND;
    return 0;
}

int nvmlDeviceGetName(Handle *handle, char *name, unsigned length) {
    ENTER();
    snprintf(name, length, handle->slice ? "NVIDIA Fake MIG 1g.18gb" : "NVIDIA Fake");
    return 0;
}

int nvmlDeviceIsMigDeviceHandle(Handle *handle, unsigned *answer) {
    ENTER();
    *answer = (unsigned)handle->slice;
    return 0;
}

int nvmlDeviceGetMigMode(Handle *handle, unsigned *now, unsigned *next) {
    ENTER();
    (void)handle;
    *now = *next = (unsigned)told("mig", 0);
    return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(Handle *handle, unsigned *count) { ENTER(); (void)handle; *count = 7; return 0; }

int nvmlDeviceGetMigDeviceHandleByIndex(Handle *handle, unsigned index, Handle **found) {
    ENTER();
    (void)handle;
    if (index != told("slice_slot", 0)) return NOT_FOUND;
    *found = &slice;
    return 0;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle *mig, Handle **parent) {
    ENTER();
    if (!mig->slice) return INVALID_ARGUMENT;
    *parent = &whole;
    return 0;
}

int nvmlDeviceGetGpuInstanceId(Handle *mig, unsigned *id) { ENTER(); (void)mig; *id = 5; return 0; }

int nvmlDeviceGetMemoryInfo_v2(Handle *handle, Memory *memory) {
    ENTER();
    unsigned long long mib = 1 << 20;
    memory->total = (handle->slice ? 18000 : 140000) * mib;
    memory->reserved = 500 * mib;
    memory->used = (handle->slice ? 2000 : 90000) * mib;
    memory->free = memory->total - memory->used - memory->reserved;
    return 0;
}

int nvmlDeviceGetPowerUsage(Handle *handle, unsigned *milliwatts) {
    ENTER();
    WHOLE_ONLY(handle);
    *milliwatts = 123500;
    return 0;
}

int nvmlDeviceGetTemperature(Handle *handle, unsigned sensor, unsigned *celsius) {
    ENTER();
    WHOLE_ONLY(handle);
    (void)sensor;
    *celsius = 62;
    return 0;
}

int nvmlDeviceGetUtilizationRates(Handle *handle, Utilization *rates) {
    ENTER();
    WHOLE_ONLY(handle);
    rates->gpu = (unsigned)told("kernel_percent", 97);
    rates->memory = 40;
    return 0;
}

/* Two processes, at times that advance with each full answer; none when "process_percent" is negative. */
int nvmlDeviceGetProcessUtilization(Handle *handle, ProcessSample *samples, unsigned *count, unsigned long long since) {
    static unsigned long long now = 1000;
    double percent = told("process_percent", 30);
    ENTER();
    WHOLE_ONLY(handle);
    (void)since;
    if (percent < 0) return NOT_FOUND;
    if (!samples) { *count = 2; return INSUFFICIENT_SIZE; }
    now += 1000;
    for (unsigned i = 0; i < 2; i++) samples[i] = (ProcessSample){.pid = 10 + i, .time = now, .sm = (unsigned)percent};
    *count = 2;
    return 0;
}

int nvmlGpmQueryDeviceSupport(Handle *handle, Support *support) {
    ENTER();
    (void)handle;
    support->supported = (unsigned)told("gpm", 1);
    return 0;
}

int nvmlGpmSampleAlloc(int **sample) { ENTER(); *sample = calloc(1, sizeof **sample); return 0; }
int nvmlGpmSampleFree(int *sample) { ENTER(); free(sample); return 0; }
int nvmlGpmSampleGet(Handle *handle, int *sample) { ENTER(); WHOLE_ONLY(handle); *sample = ++sample_clock; return 0; }

int nvmlGpmMigSampleGet(Handle *handle, unsigned instance, int *sample) {
    ENTER();
    if (handle->slice || instance != 5) return INVALID_ARGUMENT;
    *sample = ++sample_clock;
    return 0;
}

int nvmlGpmMetricsGet(Metrics *request) {
    ENTER();
    if (request->count != 1 || *request->second != *request->first + 1) return INVALID_ARGUMENT;
    request->metrics[0].ret = (int)told("metric_return", 0);
    request->metrics[0].value = told("sm_percent", 71);
    return 0;
}
