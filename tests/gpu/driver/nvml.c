/* A stand-in for libnvidia-ml.so.1: what the product calls, as the driver's header of each branch describes it.
 *
 * Exports are those of the branch, fields beyond its last are refused one by one, and what needs an administrator is
 * refused to everybody else. A value that a model does not have is NOT_SUPPORTED, never 0. */
#include "machine.h"

enum {
  OK, UNINITIALIZED, INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, INSUFFICIENT = 7, TIMEOUT = 10,
  CORRUPT_INFOROM = 14, LOST = 15, VERSION = 25, UNKNOWN = 999
};
static int open_count, files[MAX_GPUS];

/* Opened or not, each GPU's device file goes with the library: that is what a reset is refused for. */
static void hold_devices(int open_them) {
  for (int i = 0; i < gpu_count; i++) {
    if (open_them) files[i] = open(at("root/dev/nvidia%d", i), O_RDONLY | O_CLOEXEC);
    else if (files[i] >= 0) close(files[i]);
  }
}

/* A handle is 1000 for each GPU, and one more for each instance on it. */
typedef struct {
  Gpu *gpu;
  Instance *instance;
  int number;
} Place;
static int find(void *handle, Place *place) {
  uintptr_t at_ = (uintptr_t)handle;
  if (!open_count) return UNINITIALIZED;
  if (at_ < 1000 || at_ / 1000 > (uintptr_t)gpu_count) return INVALID;
  place->number = at_ / 1000 - 1;
  place->gpu = &gpus[place->number];
  place->instance = at_ % 1000 ? &place->gpu->instances[at_ % 1000 - 1] : NULL;
  while (fault(place->number, "silent", NULL, NULL)) usleep(20000);
  return is_lost(place->number) ? LOST : OK;
}
#define FIND(handle)                 \
  Place p;                           \
  int found_ = find(handle, &p);     \
  if (found_) return found_
#define WHOLE(handle) \
  FIND(handle);       \
  if (p.instance) return NOT_SUPPORTED
#define REAL(handle) \
  WHOLE(handle);     \
  if (p.gpu->virtual) return NOT_SUPPORTED
#define ADMINISTRATOR \
  if (!privileged) return NO_PERMISSION
static void *handle_of(int gpu, int slot) { return (void *)(uintptr_t)((gpu + 1) * 1000 + slot); }

/* --- the library ------------------------------------------------------------------------------------------------ */
API int nvmlInitWithFlags(unsigned flags) {
  set_up();
  if (nvml_refuses) return nvml_refuses;
  if (!open_count) hold_devices(1);
  return open_count++, OK;
}
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlShutdown(void) {
  if (!open_count) return UNINITIALIZED;
  if (!--open_count) hold_devices(0);
  return OK;
}
API const char *nvmlErrorString(int code) {
  static char text[32];
  snprintf(text, sizeof text, "NVML error %d", code);
  return text;
}
API int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "%s", driver_text), OK; }
API int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = CUDA_OF_RELEASE, OK; }
API int nvmlSystemGetProcessName(unsigned pid, char *text, unsigned size) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NOT_FOUND;
  ssize_t n = read(fd, text, size - 1);
  close(fd);
  return text[n > 0 ? n : 0] = 0, OK;
}
API int nvmlDeviceGetCount_v2(unsigned *count) { return open_count ? (*count = gpu_count, OK) : UNINITIALIZED; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  if (!open_count) return UNINITIALIZED;
  if (index >= (unsigned)gpu_count) return INVALID;
  *device = handle_of(index, 0);
  return is_lost(index) ? LOST : OK;
}
API int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  if (!open_count) return UNINITIALIZED;
  for (int gpu = 0; gpu < gpu_count; gpu++) {
    int slot = -1;
    if (!strcmp(gpus[gpu].uuid, uuid)) slot = 0;
    for (int i = 0; i < gpus[gpu].instance_count; i++)
      if (!strcmp(gpus[gpu].instances[i].uuid, uuid)) slot = i + 1;
    if (slot >= 0) return *device = handle_of(gpu, slot), is_lost(gpu) ? LOST : OK;
  }
  return NOT_FOUND;
}

/* --- who a device is -------------------------------------------------------------------------------------------- */
API int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
  FIND(device);
  return snprintf(text, size, "%s", p.instance ? p.instance->uuid : p.gpu->uuid), OK;
}
API int nvmlDeviceGetName(void *device, char *text, unsigned size) {
  FIND(device);
  if (p.gpu->virtual) snprintf(text, size, "NVIDIA %s-20C", p.gpu->model->word);
  else if (p.instance) snprintf(text, size, "%s MIG %s", p.gpu->model->name, profile_name(p.gpu, p.instance->profile));
  else snprintf(text, size, "%s", p.gpu->model->name);
  return OK;
}
API int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) {
  WHOLE(device);
  return *minor = p.number, OK;
}
typedef struct {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char text[32];
} Pci;
API int nvmlDeviceGetPciInfo_v3(void *device, Pci *out) {
  FIND(device);
  *out = (Pci){.bus = p.gpu->bus, .id = 0x233010de};
  snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", p.gpu->bus);
  snprintf(out->text, sizeof out->text, "00000000:%02X:00.0", p.gpu->bus);
  return OK;
}
static void memory_in(Place p, uint64_t *total, uint64_t *used) {
  *total = (p.instance ? (uint64_t)memory_of(p.gpu, p.instance->profile) : (uint64_t)p.gpu->model->memory_mib) * MIB;
  *used = 3 * MIB;
}
API int nvmlDeviceGetMemoryInfo(void *device, uint64_t out[3]) {
  FIND(device);
  memory_in(p, &out[0], &out[2]);
  return out[1] = out[0] - out[2], OK;
}
typedef struct { unsigned version; uint64_t total, reserved, free, used; } MemoryV2;
API int nvmlDeviceGetMemoryInfo_v2(void *device, MemoryV2 *out) {
  FIND(device);
  if (out->version != (sizeof *out | 2 << 24)) return VERSION;
  memory_in(p, &out->total, &out->used);
  out->reserved = 0;
  return out->free = out->total - out->used, OK;
}
API int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
  FIND(device);
  return *major = p.gpu->model->major, *minor = p.gpu->model->minor, OK;
}
API int nvmlDeviceGetVirtualizationMode(void *device, unsigned *mode) {
  WHOLE(device);
  return *mode = p.gpu->virtual ? 2 : 0, OK;
}
API int nvmlDeviceGetMemoryAffinity(void *device, unsigned size, unsigned long *sets, unsigned scope) {
  REAL(device);
  return *sets = 1, OK;
}

/* --- numbers ---------------------------------------------------------------------------------------------------- */
#define NUMBER(function, need, value)                    \
  API int function(void *device, unsigned *out) {        \
    need(device);                                        \
    return *out = (value), OK;                           \
  }
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, REAL, p.gpu->model->pcie_gen)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, REAL, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, REAL, p.gpu->model->pcie_gen)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, REAL, 16)
NUMBER(nvmlDeviceGetPcieReplayCounter, REAL, fault_number(p.number, "replays"))
NUMBER(nvmlDeviceGetPersistenceMode, WHOLE, access(at("persistence-off"), F_OK) != 0)
NUMBER(nvmlDeviceGetComputeMode, WHOLE, compute_mode)
NUMBER(nvmlDeviceGetPowerUsage, REAL, p.gpu->model->power_mw / 2)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, REAL, power_limit_mw ? power_limit_mw : p.gpu->model->power_mw)
NUMBER(nvmlDeviceGetPowerManagementLimit, REAL, power_limit_mw ? power_limit_mw : p.gpu->model->power_mw)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, REAL, p.gpu->model->power_mw)
API int nvmlDeviceGetPowerManagementLimitConstraints(void *device, unsigned *low, unsigned *high) {
  REAL(device);
  return *low = p.gpu->model->power_mw / 2, *high = p.gpu->model->power_mw, OK;
}
static int clock_of(void *device, unsigned kind, unsigned *out) {
  WHOLE(device);
  if (kind > 3) return INVALID;
  return *out = kind == 2 ? p.gpu->model->memory_mhz : p.gpu->model->sm_mhz, OK;
}
API int nvmlDeviceGetClockInfo(void *device, unsigned kind, unsigned *out) { return clock_of(device, kind, out); }
API int nvmlDeviceGetMaxClockInfo(void *device, unsigned kind, unsigned *out) { return clock_of(device, kind, out); }
API int nvmlDeviceGetApplicationsClock(void *device, unsigned kind, unsigned *out) {
  REAL(device);
  return clock_of(device, kind, out);
}
API int nvmlDeviceGetDefaultApplicationsClock(void *device, unsigned kind, unsigned *out) {
  REAL(device);
  return clock_of(device, kind, out);
}
API int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *out) {
  REAL(device);
  return sensor ? INVALID : (*out = 41, OK);
}
API int nvmlDeviceGetTemperatureThreshold(void *device, unsigned kind, unsigned *out) {
  REAL(device);
  return kind > 3 ? INVALID : (*out = 92 - kind, OK);
}
static int throttled(void *device, uint64_t *out) {
  WHOLE(device);
  return *out = fault_number(p.number, "throttle"), OK;
}
API int nvmlDeviceGetCurrentClocksEventReasons(void *device, uint64_t *out) { return throttled(device, out); }
API int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, uint64_t *out) { return throttled(device, out); }
API int nvmlDeviceGetUtilizationRates(void *device, unsigned out[2]) {
  WHOLE(device);
  if (p.gpu->mig) return NOT_SUPPORTED;
  return out[0] = 63, out[1] = 21, OK;
}
API int nvmlDeviceGetPcieThroughput(void *device, unsigned kind, unsigned *out) {
  REAL(device);
  return kind > 1 ? INVALID : (*out = 1000, OK);
}

/* --- health ----------------------------------------------------------------------------------------------------- */
API int nvmlDeviceGetEccMode(void *device, unsigned *now, unsigned *later) {
  REAL(device);
  return *now = *later = 1, OK;
}
API int nvmlDeviceGetTotalEccErrors(void *device, unsigned kind, unsigned counter, uint64_t *out) {
  REAL(device);
  if (kind > 1 || counter > 1) return INVALID;
  return *out = kind ? fault_number(p.number, "uncorrected") + !access(at("ecc.%d", p.number), F_OK) : 0, OK;
}
API int nvmlDeviceGetRemappedRows(void *device, unsigned *fixed, unsigned *lost, unsigned *pending, unsigned *failed) {
  REAL(device);
  if (p.gpu->model->major < 8 || p.gpu->instance_count) return NOT_SUPPORTED;
  *fixed = *lost = 0;
  *pending = fault(p.number, "remap_pending", NULL, NULL);
  return *failed = fault(p.number, "remap_failed", NULL, NULL), OK;
}
API int nvmlDeviceGetRetiredPages(void *device, unsigned cause, unsigned *count, uint64_t *pages) {
  REAL(device);
  if (p.gpu->model->major >= 8) return NOT_SUPPORTED;
  return *count = 0, OK;
}
API int nvmlDeviceGetRetiredPagesPendingStatus(void *device, unsigned *out) {
  REAL(device);
  if (p.gpu->model->major >= 8) return NOT_SUPPORTED;
  return *out = 0, OK;
}
#if RELEASE >= 545
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique, state, health; } Fabric;
API int nvmlDeviceGetGpuFabricInfoV(void *device, Fabric *out) {
  REAL(device);
  if (p.gpu->model->major < 9) return NOT_SUPPORTED;
  if (out->version != (sizeof *out | 2 << 24)) return VERSION;
  return out->state = fabric, out->status = 0, OK;
}
#endif
#if RELEASE >= 550
typedef struct { unsigned version; uint64_t counts[11]; unsigned exceeded; } Sram;
API int nvmlDeviceGetSramEccErrorStatus(void *device, Sram *out) {
  REAL(device);
  ADMINISTRATOR;
  if (p.gpu->model->major < 8) return NOT_SUPPORTED;
  if (out->version != (sizeof *out | 1 << 24)) return VERSION;
  return out->exceeded = fault(p.number, "sram", NULL, NULL), OK;
}
#endif

#include "board.h"
/* Fields by number: the last one of each branch is one less than NVML_FI_MAX of its header. */
#define LAST_FIELD (RELEASE >= 580 ? 273 : RELEASE >= 570 ? 268 : RELEASE >= 550 ? 199 : 196)
typedef struct {
  unsigned id, scope;
  int64_t time, latency;
  int type, result;
  uint64_t value;
} Field;
API int nvmlDeviceGetFieldValues(void *device, int count, Field *fields) {
  WHOLE(device);
  for (Field *f = fields; f < fields + count; f++) {
    f->result = OK;
    f->type = 3;
    /* 197 and 198 were free until CUDA 12.5. */
    if (f->id > LAST_FIELD || !f->id || (RELEASE < 555 && (f->id == 197 || f->id == 198))) f->result = INVALID;
    else if (p.gpu->virtual) f->result = NOT_SUPPORTED;
    else if (f->id == 82) f->value = p.gpu->model->major >= 8 ? 47 : 0;                  /* memory's temperature */
    else if (f->id == 83) f->value = 123456;                                             /* energy */
    else if (f->id == 138 || f->id == 139) {                                             /* NVLink's data */
      if (p.gpu->model->links) f->value = 4096;
      else f->result = NOT_SUPPORTED;
    } else if (f->id == 197 || f->id == 198) {                                           /* PCIe's data */
      if (p.gpu->model->major >= 9) f->value = 8192;
      else f->result = NOT_SUPPORTED;
    } else if (f->id == 230) f->type = 1, f->value = fault_number(p.number, "recovery"); /* recovery action */
    else f->result = NOT_SUPPORTED;
  }
  return OK;
}

/* --- NVLink ----------------------------------------------------------------------------------------------------- */
static int link_(void *device, unsigned link, Place *place) {
  int code = find(device, place);
  if (code) return code;
  if (place->instance || place->gpu->virtual || !place->gpu->model->links) return NOT_SUPPORTED;
  return link < (unsigned)place->gpu->model->links ? OK : INVALID;
}
#define LINK                                  \
  Place p;                                    \
  int code_ = link_(device, link, &p);        \
  if (code_) return code_
API int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *out) {
  LINK;
  return *out = link >= (unsigned)fault_number(p.number, "links_down"), OK;
}
API int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, unsigned *out) {
  LINK;
  return *out = 2, OK;
}
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, Pci *out) {
  LINK;
  *out = (Pci){.bus = 0xc4};
  return snprintf(out->text, sizeof out->text, "00000000:C4:00.0"), OK;
}
API int nvmlDeviceGetNvLinkErrorCounter(void *device, unsigned link, unsigned counter, uint64_t *out) {
  LINK;
  return counter > 4 ? INVALID : (*out = 0, OK);
}

/* --- processes: those that have a context in the stand-in for CUDA, and those that `processes` names ------------- */
typedef struct { unsigned pid; uint64_t used; unsigned gpu_instance, compute_instance; } Process;
API int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *out) {
  FIND(device);
  if (p.gpu->mig && !p.instance) ADMINISTRATOR;
  char own[64], name[64];
  int n = 0, pid;
  const char *uuid = p.instance ? p.instance->uuid : p.gpu->uuid;
  Process seen[64];
  DIR *dir = opendir(at("contexts"));
  for (struct dirent *entry; dir && (entry = readdir(dir)) && n < 64;)
    if (sscanf(entry->d_name, "%63[^.].%d", own, &pid) == 2 && !strcmp(own, uuid) && !kill(pid, 0))
      seen[n++] = (Process){pid, 500 * MIB, -1, -1};
  if (dir) closedir(dir);
  FILE *in = fopen(at("processes"), "r");
  char line[256];
  long long mib = 100;
  while (in && n < 64 && fgets(line, sizeof line, in)) {
    int words = sscanf(line, "%63s %d %lld", name, &pid, &mib);
    if (words >= 2 && !strcmp(name, uuid))
      seen[n++] = (Process){pid, words == 2 ? 100 * MIB : mib < 0 ? UINT64_MAX : mib * MIB, -1, -1};
  }
  if (in) fclose(in);
  int fits = n <= (int)*count;
  if (fits && out) memcpy(out, seen, n * sizeof *seen);
  return *count = n, fits ? OK : INSUFFICIENT;
}
API int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, Process *out) {
  FIND(device);
  if (p.gpu->mig && !p.instance) ADMINISTRATOR;
  FILE *in = fopen(at("drawing"), "r");
  int pid = 0, drawing = in && fscanf(in, "%d", &pid) == 1;
  if (in) fclose(in);
  if (drawing && *count >= 1 && out) out[0] = (Process){pid, 50 * MIB, -1, -1};
  int fits = (int)*count >= drawing;
  return *count = drawing, fits ? OK : INSUFFICIENT;
}
/* Lines of `use`: a device's UUID, a process or 0 for the whole of an instance, and percent. Each is a sample of now. */
static int uses(const char *uuid, int of_processes, int number, int *pid, int *percent) {
  FILE *in = fopen(at("use"), "r");
  char name[64];
  int n = 0;
  while (in && fscanf(in, "%63s %d %d\n", name, pid, percent) == 3)
    if (!strcmp(name, uuid) && (*pid != 0) == of_processes && n++ == number) return fclose(in), 1;
  if (in) fclose(in);
  return 0;
}
typedef struct { unsigned pid; uint64_t at_us; unsigned sm, memory, encoder, decoder; } Utilization;
API int nvmlDeviceGetProcessUtilization(void *device, Utilization *out, unsigned *count, uint64_t since) {
  WHOLE(device);
  if (p.gpu->mig) return NOT_SUPPORTED;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  uint64_t now_us = now.tv_sec * 1000000ull + now.tv_nsec / 1000;
  int pid, percent, n = 0;
  while (now_us > since && uses(p.gpu->uuid, 1, n, &pid, &percent)) {
    if (out && n < (int)*count) out[n] = (Utilization){.pid = pid, .at_us = now_us, .sm = percent};
    n++;
  }
  int fits = out && n <= (int)*count;
  *count = n;
  return !n ? NOT_FOUND : fits ? OK : INSUFFICIENT;
}

/* --- MIG -------------------------------------------------------------------------------------------------------- */
API int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *later) {
  REAL(device);
  if (!p.gpu->model->mig) return NOT_SUPPORTED;
  return *now = *later = p.gpu->mig, OK;
}
API int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
  WHOLE(device);
  return *count = p.gpu->model->mig && !p.gpu->virtual ? 7 : 0, OK;
}
API int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **out) {
  REAL(device);
  if (!p.gpu->mig) return NOT_SUPPORTED;
  if (index >= 7) return INVALID;
  return index < (unsigned)p.gpu->instance_count ? (*out = handle_of(p.number, index + 1), OK) : NOT_FOUND;
}
API int nvmlDeviceIsMigDeviceHandle(void *device, unsigned *out) {
  FIND(device);
  return *out = p.instance != NULL, OK;
}
API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *device, void **out) {
  FIND(device);
  return p.instance ? (*out = handle_of(p.number, 0), OK) : INVALID;
}
API int nvmlDeviceGetGpuInstanceId(void *device, unsigned *out) {
  FIND(device);
  return p.instance ? (*out = p.instance->id, OK) : NOT_SUPPORTED;
}
API int nvmlDeviceGetComputeInstanceId(void *device, unsigned *out) {
  FIND(device);
  return p.instance ? (*out = 0, OK) : NOT_SUPPORTED;
}
typedef struct { unsigned sms, copy, decoders, encoders, jpeg, ofa, slices, compute_slices; uint64_t memory; } Attributes;
API int nvmlDeviceGetAttributes_v2(void *device, Attributes *out) {
  FIND(device);
  if (!p.instance) return NOT_SUPPORTED;
  *out = (Attributes){.sms = sms_of(p.gpu, p.instance->profile), .slices = p.instance->profile->slices};
  return out->memory = memory_of(p.gpu, p.instance->profile), OK;
}
API int nvmlDeviceGetGpuInstanceById(void *device, unsigned id, void **out) {
  REAL(device);
  if (!p.gpu->mig) return NOT_SUPPORTED;
  ADMINISTRATOR;
  return id && id <= (unsigned)p.gpu->instance_count ? (*out = handle_of(p.number, id), OK) : NOT_FOUND;
}
typedef struct { void *device; unsigned id, profile, start, size; } InstanceInfo;
API int nvmlGpuInstanceGetInfo(void *instance, InstanceInfo *out) {
  FIND(instance);
  if (!p.instance) return INVALID;
  *out = (InstanceInfo){handle_of(p.number, 0), p.instance->id, p.instance->profile->id, p.instance->start,
                        p.instance->profile->size};
  return OK;
}
typedef struct {
  unsigned version, id, p2p, slices, most, sms, copy, decoders, encoders, jpeg, ofa;
  uint64_t memory;
  char name[96];
} ProfileInfo;
#define LAST_PROFILE (RELEASE >= 580 ? 0x10 : RELEASE >= 570 ? 0xc : 9)
API int nvmlDeviceGetGpuInstanceProfileInfoV(void *device, unsigned number, ProfileInfo *out) {
  REAL(device);
  if (number > LAST_PROFILE) return INVALID;
  if (!p.gpu->mig) return NOT_SUPPORTED;
  if (out->version && out->version != (sizeof *out | 2 << 24)) return VERSION;
  for (int i = 0; i < PROFILES; i++)
    if (profiles[i].number == (int)number) {
      const Profile *f = &profiles[i];
      out->id = f->id, out->slices = f->slices, out->most = f->most, out->sms = sms_of(p.gpu, f);
      out->memory = memory_of(p.gpu, f);
      return snprintf(out->name, sizeof out->name, "MIG %s", profile_name(p.gpu, f)), OK;
    }
  return NOT_SUPPORTED;
}
typedef struct { unsigned start, size; } Placement;
API int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *device, unsigned id, Placement *out, unsigned *count) {
  REAL(device);
  ADMINISTRATOR;
  for (int i = 0; i < PROFILES; i++)
    if (profiles[i].id == (int)id) {
      for (int n = 0; out && n < profiles[i].places; n++)
        out[n] = (Placement){n * profiles[i].step, profiles[i].size};
      return *count = profiles[i].places, OK;
    }
  return NOT_SUPPORTED;
}

/* --- counters of instances: a sample is a number that grows ------------------------------------------------------ */
typedef struct { unsigned version, supported; } GpmSupport;
API int nvmlGpmQueryDeviceSupport(void *device, GpmSupport *out) {
  WHOLE(device);
  return out->supported = p.gpu->model->major >= 9 && !p.gpu->virtual, OK;
}
typedef struct { double look; char uuid[64]; } GpmSample;
API int nvmlGpmSampleAlloc(void **sample) { return *sample = calloc(1, sizeof(GpmSample)), OK; }
API int nvmlGpmSampleFree(void *sample) { return free(sample), OK; }
API int nvmlGpmMigSampleGet(void *device, unsigned instance, void *sample) {
  WHOLE(device);
  static double looks;
  if (p.gpu->model->major < 9) return NOT_SUPPORTED;
  if (!instance || instance > (unsigned)p.gpu->instance_count) return INVALID;
  GpmSample *made = sample;
  snprintf(made->uuid, sizeof made->uuid, "%s", p.gpu->instances[instance - 1].uuid);
  return made->look = ++looks, OK;
}
typedef struct { unsigned id; int result; double value; const char *names[3]; } GpmMetric;
typedef struct { unsigned version, count; void *before, *after; GpmMetric metrics[]; } GpmQuestion;
API int nvmlGpmMetricsGet(GpmQuestion *question) {
  if (question->version != 1) return VERSION;
  if (!question->before || !question->after) return INVALID;
  int pid, percent = 42;
  if (!uses(((GpmSample *)question->after)->uuid, 0, 0, &pid, &percent)) percent = 42;
  for (unsigned i = 0; i < question->count; i++)
    question->metrics[i].result = OK, question->metrics[i].value = percent;
  return OK;
}

/* --- XIDs: lines of `events` that came after a GPU was registered ------------------------------------------------- */
typedef struct { long read; unsigned devices; } EventSet;
API int nvmlEventSetCreate(EventSet **set) {
  if (!open_count) return UNINITIALIZED;
  struct stat file;
  *set = calloc(1, sizeof **set);
  return (*set)->read = stat(at("events"), &file) ? 0 : file.st_size, OK;
}
API int nvmlEventSetFree(EventSet *set) { return free(set), OK; }
API int nvmlDeviceRegisterEvents(void *device, uint64_t kinds, EventSet *set) {
  REAL(device);
  if (kinds & ~0x1ffull) return NOT_SUPPORTED;
  close(open(at("watched"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  return set->devices |= 1u << p.number, OK;
}
typedef struct { void *device; uint64_t kind, data; unsigned gpu_instance, compute_instance; } Event;
API int nvmlEventSetWait_v2(EventSet *set, Event *out, unsigned wait_ms) {
  for (unsigned waited = 0;; waited += 10) {
    FILE *in = fopen(at("events"), "r");
    int gpu, xid;
    if (in && !fseek(in, set->read, SEEK_SET))
      while (fscanf(in, "%d %d\n", &gpu, &xid) == 2) {
        set->read = ftell(in);
        if (!(set->devices >> gpu & 1)) continue;
        *out = (Event){handle_of(gpu, 0), 8, xid, -1, -1};
        return fclose(in), OK;
      }
    if (in) fclose(in);
    /* One that is lost ends the waiting for all of them. */
    for (gpu = 0; gpu < gpu_count; gpu++)
      if (set->devices >> gpu & 1 && is_lost(gpu)) return LOST;
    if (waited >= wait_ms) return TIMEOUT;
    usleep(10000);
  }
}
