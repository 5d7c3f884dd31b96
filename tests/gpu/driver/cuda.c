/* A stand-in for libcuda.so.1: what the product calls, run on the CPU, by the rules of the driver of one branch.
 *
 * Calls are queued and run in order at the next synchronisation. Kernels are the check's own sources, built for the
 * host (`kernels.so` beside this library). Time is what the model would need. A device's memory is small here. */
#include "machine.h"
#include <elf.h>
#include <sys/mman.h>

typedef uint64_t u64;
enum {
  OK, INVALID, OUT_OF_MEMORY, NOT_INITIALIZED, UNAVAILABLE = 46, NO_DEVICE = 100, INVALID_DEVICE, INVALID_IMAGE = 200,
  INVALID_CONTEXT, NO_BINARY = 209, ECC = 214, INVALID_HANDLE = 400, NOT_FOUND = 500, LAUNCH_TIMEOUT = 702,
  ALREADY_ENABLED = 704, NOT_READY_SYSTEM = 802, UNKNOWN = 999
};

/* --- devices: what CUDA_VISIBLE_DEVICES lets this process see ----------------------------------------------------- */
typedef struct {
  int gpu;
  Instance *instance;
} Device;
static Device visible[MAX_GPUS];
static int visible_count, initialised, broken[MAX_GPUS];
static int current = -1; /* the device whose context is current; -1: none */

static const char *uuid_of(int device) {
  return visible[device].instance ? visible[device].instance->uuid : gpus[visible[device].gpu].uuid;
}
static void see(int gpu, Instance *instance) { visible[visible_count++] = (Device){gpu, instance}; }
static int see_by_name(const char *name) {
  for (int gpu = 0; gpu < gpu_count; gpu++) {
    for (int i = 0; i < gpus[gpu].instance_count; i++)
      if (!strcmp(gpus[gpu].instances[i].uuid, name)) return see(gpu, &gpus[gpu].instances[i]), 1;
    if (strcmp(gpus[gpu].uuid, name)) continue;
    /* A GPU in MIG mode is no CUDA device; its first instance is. */
    if (!gpus[gpu].mig) return see(gpu, NULL), 1;
    if (gpus[gpu].instance_count) return see(gpu, &gpus[gpu].instances[0]), 1;
  }
  return 0;
}
/* One that is no device hides all that come after it. */
static void look(void) {
  char *only = getenv("CUDA_VISIBLE_DEVICES"), text[512], *rest = text, *name;
  if (!only) {
    for (int gpu = 0; gpu < gpu_count; gpu++) see_by_name(gpus[gpu].uuid);
    return;
  }
  snprintf(text, sizeof text, "%s", only);
  while ((name = strsep(&rest, ",")) && visible_count < MAX_GPUS && see_by_name(name));
}
API int cuInit(unsigned flags) {
  set_up();
  if (cuda_refuses) return cuda_refuses;
  for (int gpu = 0; gpu < gpu_count; gpu++) /* without their fabric, GPUs on switches are not for CUDA */
    if (gpus[gpu].model->links && !gpus[gpu].virtual && !gpus[gpu].mig && fabric != 3) return NOT_READY_SYSTEM;
  if (!initialised) look();
  initialised = 1;
  return visible_count ? OK : NO_DEVICE;
}
API int cuDriverGetVersion(int *version) { return *version = CUDA_OF_RELEASE, OK; }
#define STARTED \
  if (!initialised) return NOT_INITIALIZED
#define DEVICE(d) \
  STARTED;        \
  if (d < 0 || d >= visible_count) return INVALID_DEVICE
API int cuDeviceGetCount(int *count) {
  STARTED;
  return *count = visible_count, OK;
}
API int cuDeviceGet(int *device, int ordinal) {
  DEVICE(ordinal);
  return *device = ordinal, OK;
}
static const Gpu *gpu_of(int device) { return &gpus[visible[device].gpu]; }
API int cuDeviceGetName(char *name, int size, int device) {
  DEVICE(device);
  if (gpu_of(device)->virtual) return snprintf(name, size, "NVIDIA %s-20C", gpu_of(device)->model->word), OK;
  return snprintf(name, size, "%s", gpu_of(device)->model->name), OK;
}
static int bytes_of(const char *uuid, unsigned char *out) {
  int n = 0;
  for (const char *c = uuid + 4; *c && n < 32; c++) {
    if (*c == '-') continue;
    int digit = *c <= '9' ? *c - '0' : (*c | 32) - 'a' + 10;
    out[n / 2] = n % 2 ? out[n / 2] | digit : digit << 4;
    n++;
  }
  return OK;
}
API int cuDeviceGetUuid(unsigned char *uuid, int device) { /* the first version tells of an instance its GPU's */
  DEVICE(device);
  return bytes_of(gpu_of(device)->uuid, uuid);
}
API int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
  DEVICE(device);
  return bytes_of(uuid_of(device), uuid);
}
static int sms(int device) {
  return visible[device].instance ? sms_of(gpu_of(device), visible[device].instance->profile) : gpu_of(device)->model->sms;
}
API int cuDeviceGetAttribute(int *value, int which, int device) {
  DEVICE(device);
  switch (which) {
    case 16: return *value = sms(device), OK;
    case 38: return *value = 1 << 20, OK; /* L2: small, for the working set is several times as much */
    case 75: return *value = gpu_of(device)->model->major, OK;
    case 76: return *value = gpu_of(device)->model->minor, OK;
  }
  return INVALID;
}

/* --- contexts ----------------------------------------------------------------------------------------------------- */
static char *arena;
static u64 arena_size;
static int held[MAX_GPUS]; /* contexts by device */
static int others_on(int device) {
  char uuid[64];
  int pid, found = 0;
  DIR *dir = opendir(at("contexts"));
  for (struct dirent *entry; dir && (entry = readdir(dir));)
    if (sscanf(entry->d_name, "%63[^.].%d", uuid, &pid) == 2 && !strcmp(uuid, uuid_of(device)) && pid != getpid() &&
        !kill(pid, 0))
      found = 1;
  if (dir) closedir(dir);
  return found;
}
API int cuDevicePrimaryCtxRetain(void **context, int device) {
  DEVICE(device);
  if (is_lost(visible[device].gpu)) return UNKNOWN;
  if (compute_mode == 2 || (compute_mode == 3 && others_on(device))) return UNAVAILABLE;
  if (fault(visible[device].gpu, "no_context", NULL, NULL)) return fault_number(visible[device].gpu, "no_context");
  int fd = open(at("contexts/%s.%d", uuid_of(device), getpid()), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  if (fd >= 0) close(fd);
  if (!arena) {
    arena_size = (u64)arena_mib * MIB;
    arena = mmap(NULL, arena_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < dirty_words; i++) ((u64 *)arena)[i * 7] = 1; /* what an earlier tenant has left */
  }
  held[device]++;
  return *context = (void *)(uintptr_t)(device + 1), OK;
}
API int cuCtxSetCurrent(void *context) {
  STARTED;
  if ((uintptr_t)context > (uintptr_t)visible_count) return INVALID_CONTEXT;
  if (context && !held[(uintptr_t)context - 1]) return INVALID_CONTEXT;
  return current = (int)(uintptr_t)context - 1, OK;
}
API int cuCtxGetDevice(int *device) {
  STARTED;
  return current < 0 ? INVALID_CONTEXT : (*device = current, OK);
}
/* What every call on a device needs: a driver that was started, a current context, and no error that has stuck. */
#define READY                              \
  STARTED;                                 \
  if (current < 0) return INVALID_CONTEXT; \
  if (broken[current]) return broken[current]

/* --- the queue ---------------------------------------------------------------------------------------------------- */
enum { KERNEL, SET, COPY, PEER, TIME, WAIT, CALL };
typedef struct { int used, device; double ms; } Stream;
enum { MAX_STREAMS = 32 };
static Stream streams[MAX_STREAMS], default_streams[MAX_GPUS];
static int events[MAX_GPUS]; /* by device */
typedef struct {
  int kind, value, device, source, target;
  Stream *stream;
  void *work, *staged;
  u64 to, from, size;
  double ms;
  char name[32];
} Op;
static Op *queue;
static int queued, room;
static void (*berth_run)(void *);

static int add(Op op, void *stream) {
  op.device = current;
  op.stream = stream ? stream : &default_streams[current];
  if (queued == room) queue = realloc(queue, (room = room ? 2 * room : 256) * sizeof *queue);
  queue[queued++] = op;
  return OK;
}
static int faulty(const char *kind, const char *name) {
  char text[64];
  return fault(visible[current].gpu, kind, text, NULL) && !strcmp(text, name);
}
/* What is asked for at the start of this kernel (or `copy`); a broken device stays broken. */
static void obey(const char *name) {
  int gpu = visible[current].gpu;
  if (faulty("hang", name)) {
    signal(SIGTERM, SIG_IGN);
    for (;;) usleep(1000);
  }
  if (faulty("ecc", name)) {
    close(open(at("ecc.%d", gpu), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    happens(gpu, 48);
    broken[current] = ECC;
  }
  if (faulty("watchdog", name)) broken[current] = LAUNCH_TIMEOUT; /* of a display */
  if (faulty("off_the_bus", name)) {
    close(open(at("lost.%d", gpu), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    happens(gpu, 79);
    broken[current] = UNKNOWN;
  }
}
/* Faults of memory: `stuck WORD BIT`, and a product that is wrong: `product WORD FLIP`. */
static void spoil(const Op *op) {
  char text[64];
  long second;
  if (fault(visible[current].gpu, "stuck", text, &second)) ((u64 *)arena)[atol(text)] |= 1ull << second;
  if (op->kind == KERNEL && op->to && fault(visible[current].gpu, "product", text, &second))
    ((uint32_t *)op->to)[atol(text)] ^= (uint32_t)second;
}
static double cross(const Op *op);
/* While another device has products to make, too: `slow_joint PERMILLE`, as where power does not suffice for all. */
static double share_of(const Op *op) {
  long permille = fault_number(visible[op->device].gpu, "slow_joint");
  for (int i = 0; i < queued && permille && !strncmp(op->name, "gemm_", 5); i++)
    if (queue[i].device != op->device && !strncmp(queue[i].name, "gemm_", 5)) return permille / 1000.0;
  return 1;
}
/* All is run in the order in which it came; the time that it takes is its stream's, and goes on beside others'. */
static int drain(void) {
  int caller = current;
  double last = 0;
  for (int i = 0; i < queued; i++) {
    Op *op = &queue[i];
    current = op->device;
    if (op->kind == KERNEL && !broken[current]) obey(op->name);
    if (broken[current]) continue;
    if (op->kind == KERNEL) berth_run(op->work);
    else if (op->kind == SET) memset((void *)op->to, op->value, op->size);
    else if (op->kind == COPY) memmove((void *)op->to, op->staged ? op->staged : (void *)op->from, op->size);
    else if (op->kind == PEER) op->ms = cross(op);
    else if (op->kind == CALL) ((void (*)(void *))op->to)(op->work);
    else if (op->kind == TIME) *(double *)op->to = op->stream->ms;
    else if (*(double *)op->from > op->stream->ms) op->stream->ms = *(double *)op->from;
    free(op->staged);
    op->stream->ms += op->ms / share_of(op);
    if (op->kind != TIME && op->kind != WAIT) spoil(op);
    if (op->stream->ms > last) last = op->stream->ms;
  }
  /* Whoever asks has waited for all of it. */
  for (int i = 0; i < MAX_STREAMS && last > 0; i++) streams[i].ms = last;
  for (int i = 0; i < MAX_GPUS && last > 0; i++) default_streams[i].ms = last;
  queued = 0;
  current = caller;
  return current < 0 ? OK : broken[current];
}
/* What another library of this process runs on the device, in order with the rest; `ms` is what it takes. */
API int berth_queue(void (*function)(void *), void *data, double ms, void *stream) {
  READY;
  return add((Op){.kind = CALL, .to = (u64)function, .work = data, .ms = ms}, stream);
}
static double rate(const char *kind, double normal) {
  long permille = fault_number(visible[current].gpu, kind);
  Instance *instance = visible[current].instance;
  double share = instance && strcmp(kind, "slow_pcie") ? instance->profile->size / 8.0 : 1;
  return normal * share * (permille ? permille / 1000.0 : 1);
}
static double moving(u64 size) { return size / rate("slow", gpu_of(current)->model->copy_gb_s) / 1e6; }
static double crossing(u64 size) {
  static const double gb_s[] = {0, 3, 6, 12, 24, 54, 100};
  return size / rate("slow_pcie", gb_s[gpu_of(current)->model->pcie_gen]) / 1e6;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */
typedef struct { u64 at, size; int device; } Block;
static Block blocks[4096];
static int block_count;
static const Block *block_with(u64 address, u64 size) {
  for (int i = 0; i < block_count; i++)
    if (address >= blocks[i].at && address + size <= blocks[i].at + blocks[i].size) return &blocks[i];
  return NULL;
}
API int cuMemGetInfo_v2(size_t *free_, size_t *total) {
  READY;
  *free_ = *total = arena_size;
  for (int i = 0; i < block_count; i++)
    if (blocks[i].at >= (u64)arena && blocks[i].at < (u64)arena + arena_size) *free_ -= blocks[i].size;
  return OK;
}
API int cuMemAlloc_v2(u64 *address, size_t asked) {
  READY;
  u64 size = (asked + 255) / 256 * 256, place = (u64)arena;
  if (!asked || block_count == sizeof blocks / sizeof *blocks) return INVALID;
  /* What is small comes from memory that the context has already, as with a driver. */
  if (size <= 65536) place = (u64)aligned_alloc(256, size);
  else
    for (int i = 0; i < block_count;) { /* the first gap that is large enough */
      if (place + size > blocks[i].at && blocks[i].at + blocks[i].size > place) place = blocks[i].at + blocks[i].size, i = 0;
      else i++;
    }
  if (size > 65536 && (fault(visible[current].gpu, "no_memory", NULL, NULL) || place + size > (u64)arena + arena_size))
    return OUT_OF_MEMORY;
  blocks[block_count++] = (Block){place, size, current};
  return *address = place, OK;
}
API int cuMemFree_v2(u64 address) {
  STARTED;
  int status = drain();
  for (int i = 0; i < block_count; i++)
    if (blocks[i].at == address) {
      if (blocks[i].size <= 65536) free((void *)address);
      blocks[i] = blocks[--block_count];
      return status;
    }
  return INVALID;
}
API int cuMemHostAlloc(void **p, size_t size, unsigned flags) {
  READY;
  return *p = aligned_alloc(4096, (size + 4095) / 4096 * 4096), OK;
}
API int cuMemFreeHost(void *p) { return free(p), OK; }
API int cuMemHostGetDevicePointer_v2(u64 *device, void *host, unsigned flags) {
  READY;
  return *device = (u64)host, OK;
}

/* --- streams and events ------------------------------------------------------------------------------------------- */
static char events_mark;
static int is_stream(Stream *s) { return s >= streams && s < streams + MAX_STREAMS && s->used; }
/* A stream takes what its own device is to do, while that one's context is current. */
#define STREAM(s) \
  READY;          \
  if (s && (!is_stream(s) || ((Stream *)s)->device != current)) return INVALID_HANDLE
API int cuStreamCreate(Stream **stream, unsigned flags) {
  READY;
  long most = fault_number(visible[current].gpu, "most_streams");
  for (int i = 0; i < (most ? most : MAX_STREAMS); i++)
    if (!streams[i].used) return streams[i].used = 1, streams[i].device = current, *stream = &streams[i], OK;
  return OUT_OF_MEMORY;
}
API int cuStreamDestroy_v2(Stream *stream) {
  int status = drain();
  return is_stream(stream) ? stream->used = 0, status : INVALID_HANDLE;
}
API int cuStreamSynchronize(void *stream) {
  STREAM(stream);
  return drain();
}
API int cuMemsetD8Async(u64 to, unsigned char value, size_t size, void *stream) {
  STREAM(stream);
  if (!block_with(to, size)) return INVALID;
  return add((Op){.kind = SET, .to = to, .value = value, .size = size}, stream);
}
static int copy(u64 to, u64 from, size_t size, int stage, double ms, void *stream) {
  Op op = {.kind = COPY, .to = to, .from = from, .size = size, .ms = ms};
  /* Pageable memory is read at once; pinned buffers are larger here. */
  if (stage && size <= 65536) op.staged = memcpy(malloc(size), (void *)from, size);
  return add(op, stream);
}
API int cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t size, void *stream) {
  STREAM(stream);
  return block_with(to, size) ? copy(to, (u64)from, size, 1, crossing(size), stream) : INVALID;
}
API int cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t size, void *stream) {
  STREAM(stream);
  return block_with(from, size) ? copy((u64)to, from, size, 0, crossing(size), stream) : INVALID;
}
API int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t size, void *stream) {
  STREAM(stream);
  return block_with(to, size) && block_with(from, size) ? copy(to, from, size, 0, moving(2 * size), stream) : INVALID;
}
typedef struct { void *mark; double ms; int device; } Event;
API int cuEventCreate(Event **event, unsigned flags) {
  READY;
  *event = malloc(sizeof **event);
  events[current]++;
  return **event = (Event){&events_mark, -1, current}, OK;
}
API int cuEventDestroy_v2(Event *event) {
  if (event->mark != &events_mark) return INVALID_HANDLE;
  int status = drain();
  events[event->device]--;
  return free(event), status;
}
API int cuEventRecord(Event *event, void *stream) {
  STREAM(stream);
  if (event->mark != &events_mark || event->device != current) return INVALID_HANDLE;
  return add((Op){.kind = TIME, .to = (u64)&event->ms}, stream);
}
/* The event may be another device's. */
API int cuStreamWaitEvent(void *stream, Event *event, unsigned flags) {
  STREAM(stream);
  if (event->mark != &events_mark || flags) return INVALID_HANDLE;
  return add((Op){.kind = WAIT, .from = (u64)&event->ms}, stream);
}
API int cuEventSynchronize(Event *event) {
  READY;
  return drain();
}
API int cuEventElapsedTime(float *ms, Event *start, Event *end) {
  READY;
  if (start->ms < 0 || end->ms < 0) return INVALID_HANDLE; /* never recorded, or not reached yet */
  if (start->device != end->device) return INVALID_HANDLE; /* two devices have two clocks */
  return *ms = (float)(end->ms - start->ms), OK;
}
#if RELEASE >= 570
API int cuEventElapsedTime_v2(float *ms, Event *start, Event *end) { return cuEventElapsedTime(ms, start, end); }
#endif
#include "peers.h"
API int cuDevicePrimaryCtxRelease_v2(int device) {
  DEVICE(device);
  int status = drain();
  if (!held[device]) return INVALID_CONTEXT;
  if (--held[device]) return status;
  ended(device);
  unlink(at("contexts/%s.%d", uuid_of(device), getpid()));
  if (current == device) current = -1;
  return status;
}
/* Whoever else holds it: it ends. */
API int cuDevicePrimaryCtxReset_v2(int device) {
  DEVICE(device);
  if (held[device]) held[device] = 1, cuDevicePrimaryCtxRelease_v2(device);
  return OK;
}

/* --- code --------------------------------------------------------------------------------------------------------- */
typedef struct { char *image; u64 size; } Module;
typedef struct {
  char name[32];
  void *(*prepare)(void **, unsigned, unsigned, unsigned, int);
} Function;
API int cuModuleLoadData(Module **module, const void *image) {
  READY;
  const Elf64_Ehdr *elf = image;
  if (memcmp(elf->e_ident, ELFMAG, SELFMAG)) return INVALID_IMAGE;
  int abi = elf->e_ident[EI_ABIVERSION], major = gpu_of(current)->model->major, minor = gpu_of(current)->model->minor;
  /* Version 8 came with CUDA 13; what is for Blackwell had it before, and R570 takes that. */
  if (abi > 8 || (abi > 7 && RELEASE < (major >= 10 ? 570 : 580))) return INVALID_IMAGE;
  int arch = abi > 7 ? elf->e_flags >> 8 & 0xff : elf->e_flags & 0xff;
  if (arch / 10 != major || arch % 10 > minor) return NO_BINARY;
  u64 size = elf->e_shoff + (u64)elf->e_shnum * elf->e_shentsize;
  *module = malloc(sizeof **module);
  return **module = (Module){memcpy(malloc(size), image, size), size}, OK;
}
static void *kernels(const char *symbol) {
  static void *library;
  if (!library) library = dlopen(at("kernels.so"), RTLD_NOW | RTLD_LOCAL);
  return library ? dlsym(library, symbol) : NULL;
}
API int cuModuleGetFunction(Function **function, Module *module, const char *name) {
  READY;
  char symbol[64];
  snprintf(symbol, sizeof symbol, ".text.%s", name);
  if (!memmem(module->image, module->size, symbol, strlen(symbol) + 1)) return NOT_FOUND;
  snprintf(symbol, sizeof symbol, "prepare_%s", name);
  void *prepare = kernels(symbol);
  berth_run = kernels("berth_run");
  if (!prepare || !berth_run) return NOT_FOUND;
  *function = calloc(1, sizeof **function);
  (*function)->prepare = prepare;
  return snprintf((*function)->name, sizeof (*function)->name, "%s", name), OK;
}
API int cuLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared, void *stream, void **params, void **extra) {
  STREAM(stream);
  if (!gx || !gy || !gz || !bx || bx * by * bz > 1024 || gy > 65535 || gz > 65535) return INVALID;
  Op op = {.kind = KERNEL};
  snprintf(op.name, sizeof op.name, "%s", f->name);
  int product = !strncmp(f->name, "gemm_", 5);
  op.work = f->prepare(params, gx, gy, bx, product); /* products need whole blocks */
  if (!strcmp(f->name, "gate")) op.ms = 1; /* what does not wait for it has begun too early */
  if (!strcmp(f->name, "copy16")) op.ms = moving(32 * *(u64 *)params[2]);
  if (!strcmp(f->name, "read16") || !strcmp(f->name, "write16")) op.ms = moving(16 * *(u64 *)params[1]);
  if (product) {
    u64 side = *(unsigned *)params[3], depth = *(unsigned *)params[4];
    if (strcmp(f->name, "gemm_reference")) op.to = *(u64 *)params[2];
    op.ms = 2.0 * side * side * depth / rate("slow", gpu_of(current)->model->tflops) / 1e9;
  }
  return add(op, stream);
}

/* --- how functions are found: by name and by the CUDA version that the caller was built for ----------------------- */
API int cuGetExportTable(const void **table, const void *id) { return *table = NULL, NOT_FOUND; }
API int cuGetProcAddress_v2(const char *symbol, void **found, int version, u64 flags, int *status);
#define HAS(name, since) {#name, since, (void *)name}
#define HAS_V2(name, since) {#name, since, (void *)name##_v2}
static const struct { const char *name; int since; void *function; } table[] = {
    HAS(cuInit, 2000), HAS(cuDriverGetVersion, 2020), HAS(cuDeviceGetCount, 2000), HAS(cuDeviceGet, 2000),
    HAS(cuDeviceGetName, 2000), HAS(cuDeviceGetUuid, 9020), HAS_V2(cuDeviceGetUuid, 11040),
    HAS(cuDeviceGetAttribute, 2000), HAS(cuDevicePrimaryCtxRetain, 7000), HAS_V2(cuDevicePrimaryCtxRelease, 11000),
    HAS(cuCtxSetCurrent, 4000), HAS(cuStreamCreate, 2000), HAS_V2(cuStreamDestroy, 4000),
    HAS(cuStreamSynchronize, 2000), HAS_V2(cuMemGetInfo, 3020), HAS_V2(cuMemAlloc, 3020), HAS_V2(cuMemFree, 3020),
    HAS(cuMemHostAlloc, 2020), HAS(cuMemFreeHost, 2000), HAS_V2(cuMemHostGetDevicePointer, 3020),
    HAS(cuMemsetD8Async, 3020), HAS_V2(cuMemcpyHtoDAsync, 3020), HAS_V2(cuMemcpyDtoHAsync, 3020),
    HAS_V2(cuMemcpyDtoDAsync, 3020), HAS(cuEventCreate, 2000), HAS_V2(cuEventDestroy, 4000), HAS(cuEventRecord, 2000),
    HAS(cuEventSynchronize, 2000), HAS(cuEventElapsedTime, 2000), HAS(cuStreamWaitEvent, 3020),
#if RELEASE >= 570
    HAS_V2(cuEventElapsedTime, 12080),
#endif
    HAS(cuModuleLoadData, 2000), HAS(cuModuleGetFunction, 2000), HAS(cuLaunchKernel, 4000),
    HAS(cuDeviceCanAccessPeer, 4000), HAS(cuCtxEnablePeerAccess, 4000), HAS(cuMemcpyPeerAsync, 4000),
    HAS_V2(cuDevicePrimaryCtxReset, 11000), HAS(cuCtxGetDevice, 2000),
    HAS_V2(cuGetProcAddress, 12000),
};
/* The bindings of each CUDA ask for a function by the version that brought its present form. */
API int cuGetProcAddress_v2(const char *symbol, void **found, int version, u64 flags, int *status) {
  int missing = 1; /* as CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
  *found = NULL;
  for (unsigned i = 0; i < sizeof table / sizeof *table && version <= CUDA_OF_RELEASE; i++)
    if (!strcmp(table[i].name, symbol)) {
      if (table[i].since <= version) *found = table[i].function;
      else if (!*found) missing = 2; /* it is there, and not for a caller this old */
    }
  if (status) *status = *found ? 0 : missing;
  return *found ? OK : NOT_FOUND;
}
