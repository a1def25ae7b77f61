/* A small libnvidia-ml.so.1 for tests. What each call does is read, at each call, from the file named by
 * FAKE_NVML_CONTROL: lines of "key number". A function's own name as the key is the code it returns; "hang.NAME N"
 * makes it wait until somebody has opened the named pipe FAKE_NVML_CONTROL.N for writing, and closed it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOT_SUPPORTED = 3, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };
enum { MOST_GPUS = 8, NO_NAMES = 96 };
typedef struct { int index, slice; } Handle;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; } ProcessSample;
typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute_instance; } Process;
typedef struct { unsigned version, supported; } Support;
typedef struct { unsigned id; int ret; double value; const char *names[3]; } Metric;
typedef struct { unsigned version, count; int *first, *second; Metric metrics[1]; } Metrics;
typedef struct { Handle *device; unsigned long long type, data; unsigned instance, compute_instance; } Event;
typedef struct {
    unsigned field, scope;
    long long time, latency;
    unsigned type;
    int ret;
    union { double number; unsigned long long count; } value;
} Field;

static Handle whole[MOST_GPUS] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}, slice = {0, 1};
static int sample_clock;
static struct { const char *name; int calls; } counts[NO_NAMES];

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

/* What is told of one GPU, as "key@index", goes before what is told of all. */
static double told_of(const Handle *handle, const char *key, double otherwise) {
    char one[160];
    snprintf(one, sizeof one, "%s@%d", key, handle->index);
    return told(one, told(key, otherwise));
}

static int enter(const char *name, const Handle *handle) {
    char key[128], path[4096], byte;
    for (int i = 0; i < NO_NAMES; i++)
        if (!counts[i].name || !strcmp(counts[i].name, name)) { counts[i].name = name; counts[i].calls++; break; }
    snprintf(key, sizeof key, "hang.%s", name);
    int number = (int)told(key, 0);
    if (number) {
        snprintf(path, sizeof path, "%s.%d", getenv("FAKE_NVML_CONTROL"), number);
        int pipe = open(path, O_RDONLY);
        while (read(pipe, &byte, 1) > 0) { }
        close(pipe);
    }
    return (int)(handle ? told_of(handle, name, 0) : told(name, 0));
}

#define ENTER() do { int ret = enter(__func__, NULL); if (ret) return ret; } while (0)
#define ENTER_ON(handle) do { int ret = enter(__func__, handle); if (ret) return ret; } while (0)
#define WHOLE_ONLY(handle) do { ENTER_ON(handle); if ((handle)->slice) return NOT_SUPPORTED; } while (0)

int fakeCalls(const char *name) {
    for (int i = 0; i < NO_NAMES && counts[i].name; i++)
        if (!strcmp(counts[i].name, name)) return counts[i].calls;
    return 0;
}

const char *nvmlErrorString(int code) { (void)code; return "an error the bindings do not know"; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; ENTER(); return 0; }
int nvmlShutdown(void) { ENTER(); return 0; }
static int gpus(void) {
    const char *count = getenv("FAKE_NVML_COUNT");
    return (int)told("count", count ? atoi(count) : 1);
}

int nvmlDeviceGetCount_v2(unsigned *count) { ENTER(); *count = (unsigned)gpus(); return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle **handle) {
    if ((int)index >= gpus()) return INVALID_ARGUMENT;
    ENTER_ON(&whole[index]);
    *handle = &whole[index];
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Handle **handle) {
    int number = 0;
    if (!strcmp(uuid, "MIG-1")) *handle = &slice;
    else if (sscanf(uuid, "GPU-%d-x", &number) == 1 && number > 0 && number <= gpus() && strchr(uuid, 'x'))
        *handle = &whole[number - 1];
    else { ENTER(); return NOT_FOUND; }
    ENTER_ON(*handle);
    return 0;
}

int nvmlDeviceGetUUID(Handle *handle, char *uuid, unsigned length) {
    ENTER_ON(handle);
    if (handle->slice) snprintf(uuid, length, "MIG-1");
    else snprintf(uuid, length, "GPU-%d-x", handle->index + 1);
    return 0;
}

int nvmlDeviceGetIndex(Handle *handle, unsigned *index) { WHOLE_ONLY(handle); *index = handle->index; return 0; }

int nvmlDeviceGetName(Handle *handle, char *name, unsigned length) {
    ENTER_ON(handle);
    snprintf(name, length, handle->slice ? "NVIDIA Fake MIG 1g.18gb" : "NVIDIA Fake");
    return 0;
}

int nvmlDeviceIsMigDeviceHandle(Handle *handle, unsigned *answer) {
    ENTER_ON(handle);
    *answer = (unsigned)handle->slice;
    return 0;
}

int nvmlDeviceGetMigMode(Handle *handle, unsigned *now, unsigned *next) {
    ENTER_ON(handle);
    *now = *next = (unsigned)told("mig", 0);
    return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(Handle *handle, unsigned *count) { ENTER_ON(handle); *count = 7; return 0; }

int nvmlDeviceGetMigDeviceHandleByIndex(Handle *handle, unsigned index, Handle **found) {
    ENTER_ON(handle);
    if (index != told("slice_slot", 0)) return NOT_FOUND;
    *found = &slice;
    return 0;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle *mig, Handle **parent) {
    ENTER_ON(mig);
    if (!mig->slice) return INVALID_ARGUMENT;
    *parent = &whole[mig->index];
    return 0;
}

int nvmlDeviceGetGpuInstanceId(Handle *mig, unsigned *id) { ENTER_ON(mig); *id = 5; return 0; }

int nvmlDeviceGetMemoryInfo_v2(Handle *handle, Memory *memory) {
    ENTER_ON(handle);
    unsigned long long mib = 1 << 20;
    memory->total = (handle->slice ? 18000 : 140000) * mib;
    memory->reserved = 500 * mib;
    memory->used = (handle->slice ? 2000 : (unsigned long long)told_of(handle, "used_mib", 90000)) * mib;
    memory->free = memory->total - memory->used - memory->reserved;
    return 0;
}

/* Calls that answer with one number, which "key" tells. */
#define NUMBER(function, type, key, otherwise) \
    int function(Handle *handle, type *answer) { \
        WHOLE_ONLY(handle); \
        *answer = (type)told_of(handle, key, otherwise); \
        return 0; \
    }

NUMBER(nvmlDeviceGetPowerUsage, unsigned, "milliwatts", 123500)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "limit_milliwatts", 700000)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, "millijoules", 5e9)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "reasons", 0)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "reasons", 0)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "generation", 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "most_generation", 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "width", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "most_width", 16)
NUMBER(nvmlDeviceGetFanSpeed, unsigned, "fan", 45)

int nvmlDeviceGetTemperature(Handle *handle, unsigned sensor, unsigned *celsius) {
    WHOLE_ONLY(handle);
    (void)sensor;
    *celsius = 62;
    return 0;
}

int nvmlDeviceGetClockInfo(Handle *handle, unsigned kind, unsigned *megahertz) {
    WHOLE_ONLY(handle);
    *megahertz = kind == 1 ? 1755 : 2619;
    return 0;
}

int nvmlDeviceGetMaxClockInfo(Handle *handle, unsigned kind, unsigned *megahertz) {
    WHOLE_ONLY(handle);
    *megahertz = kind == 1 ? 1980 : 2619;
    return 0;
}

int nvmlDeviceGetPcieThroughput(Handle *handle, unsigned counter, unsigned *kb) {
    WHOLE_ONLY(handle);
    *kb = counter == 1 ? 3000 : 2000;
    return 0;
}

int nvmlDeviceGetNvLinkState(Handle *handle, unsigned link, unsigned *active) {
    WHOLE_ONLY(handle);
    if (link >= told("nvlinks", 18)) return told("nvlinks", 18) ? INVALID_ARGUMENT : NOT_SUPPORTED;
    *active = link >= told("nvlinks_down", 0);
    return 0;
}

int nvmlDeviceGetFieldValues(Handle *handle, int count, Field *fields) {
    WHOLE_ONLY(handle);
    for (int i = 0; i < count; i++) {
        fields[i].ret = (int)told("field_return", 0);
        fields[i].value.count = (unsigned long long)told(fields[i].field == 138 ? "sent_kib" : "received_kib", 0);
    }
    return 0;
}

int nvmlDeviceGetTotalEccErrors(Handle *handle, unsigned kind, unsigned counter, unsigned long long *count) {
    WHOLE_ONLY(handle);
    *count = (unsigned long long)(counter ? 999 : kind ? told("uncorrected", 1) : told("corrected", 4));
    return 0;
}

int nvmlDeviceGetRemappedRows(
    Handle *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed
) {
    WHOLE_ONLY(handle);
    *corrected = 2;
    *uncorrected = 1;
    *pending = (unsigned)told("remap_pending", 0);
    *failed = (unsigned)told("remap_failed", 0);
    return 0;
}

int nvmlDeviceGetRetiredPages(Handle *handle, unsigned cause, unsigned *count, unsigned long long *pages) {
    WHOLE_ONLY(handle);
    unsigned found = cause ? 1 : 2;
    if (!pages) { *count = found; return INSUFFICIENT_SIZE; }
    for (unsigned i = 0; i < found; i++) pages[i] = i;
    *count = found;
    return 0;
}

/* One process, "pid", which holds 1500 MiB; on a slice 700 MiB. Its memory is unknown when told so. */
int nvmlDeviceGetComputeRunningProcesses_v3(Handle *handle, unsigned *count, Process *processes) {
    ENTER_ON(handle);
    if (told("pid", 0) == 0) { *count = 0; return 0; }
    if (!processes) { *count = 1; return INSUFFICIENT_SIZE; }
    unsigned long long mib = handle->slice ? 700 : 1500;
    processes[0] = (Process){.pid = (unsigned)told("pid", 0), .memory = told("secret", 0) ? ~0ULL : mib << 20};
    *count = 1;
    return 0;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle *handle, unsigned *count, Process *processes) {
    ENTER_ON(handle);
    (void)processes;
    *count = 0;
    return 0;
}

int nvmlEventSetCreate(int **set) { ENTER(); *set = calloc(1, sizeof **set); return 0; }
int nvmlEventSetFree(int *set) { ENTER(); free(set); return 0; }

int nvmlDeviceRegisterEvents(Handle *handle, unsigned long long types, int *set) {
    WHOLE_ONLY(handle);
    (void)set;
    return types == 8 ? 0 : NOT_SUPPORTED;
}

/* Xid "xid" of GPU "xid_gpu", once for each that "xids" counts; an event can't be waited for. */
int nvmlEventSetWait_v2(int *set, Event *event, unsigned milliseconds) {
    static int given;
    ENTER();
    (void)set;
    if (milliseconds) return INVALID_ARGUMENT;
    if (given >= told("xids", 0)) return TIMEOUT;
    given++;
    *event = (Event){.device = &whole[(int)told("xid_gpu", 0)], .type = 8, .data = (unsigned long long)told("xid", 79)};
    return 0;
}

int nvmlDeviceGetUtilizationRates(Handle *handle, Utilization *rates) {
    WHOLE_ONLY(handle);
    rates->gpu = (unsigned)told("kernel_percent", 97);
    rates->memory = 40;
    return 0;
}

/* Two processes, at times that advance with each full answer; none when "process_percent" is negative. */
int nvmlDeviceGetProcessUtilization(Handle *handle, ProcessSample *samples, unsigned *count, unsigned long long since) {
    static unsigned long long now = 1000;
    double percent = told("process_percent", 30);
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
    ENTER_ON(handle);
    support->supported = (unsigned)told("gpm", getenv("FAKE_NVML_GPM") ? atoi(getenv("FAKE_NVML_GPM")) : 1);
    return 0;
}

int nvmlGpmSampleAlloc(int **sample) { ENTER(); *sample = calloc(1, sizeof **sample); return 0; }
int nvmlGpmSampleFree(int *sample) { ENTER(); free(sample); return 0; }
int nvmlGpmSampleGet(Handle *handle, int *sample) { WHOLE_ONLY(handle); *sample = ++sample_clock; return 0; }

int nvmlGpmMigSampleGet(Handle *handle, unsigned instance, int *sample) {
    ENTER_ON(handle);
    if (handle->slice || instance != 5) return INVALID_ARGUMENT;
    *sample = ++sample_clock;
    return 0;
}

/* Percentages of SM_UTIL, SM_OCCUPANCY, ANY_TENSOR_UTIL, DRAM_BW_UTIL; MiB/s of PCIe and NVLink, sent and received. */
static double metric(unsigned id) {
    switch (id) {
    case 2: return told("sm_percent", 71);
    case 3: return 33;
    case 5: return 25;
    case 10: return 64;
    case 20: return 7;
    case 21: return 9;
    case 60: return 500;
    case 61: return 400;
    }
    return -1;
}

/* Both samples must be the GPU's, and in their order; "link_return" is what PCIe and NVLink alone answer. */
int nvmlGpmMetricsGet(Metrics *request) {
    ENTER();
    if (*request->second <= *request->first) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < request->count; i++) {
        Metric *one = &request->metrics[i];
        one->ret = (int)told(one->id >= 20 ? "link_return" : "metric_return", 0);
        one->value = metric(one->id);
    }
    return 0;
}
