// A CUDA driver for tests, as a real libcuda.so.1: the real Python bindings load it, and the real kernel sources
// run in it, on the host. Calls are queued and run at the next synchronisation, as on a device. Time is computed
// from what a made-up device would need. $TMPDIR/fake-gpu.txt sets it up: lines of `name value`.
#include "common.cuh"

#include "memory.cu"
#include "scrub.cu"
#include "bandwidth.cu"
#include "operands.cu"
#include "gemm.cu"
#include "tensor.cu"
#include "fp4.cu"
#include "functions.cu"
#include "atomics.cu"
#include "cache.cu"
#include "hopper.cu"

#include <elf.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <deque>
#include <fstream>
#include <map>
#include <set>
#include <string>

#define API extern "C" __attribute__((visibility("default"))) int

namespace {
enum { OK = 0, INVALID = 1, OOM = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, BAD_IMAGE = 200, ECC = 214, NOT_FOUND = 500 };

std::map<std::string, std::string> setup;
double number(const char* name, double otherwise) {
  auto it = setup.find(name);
  return it == setup.end() ? otherwise : atof(it->second.c_str());
}
// Once, before anything is asked: the bindings look all functions up before they call the first.
void read_setup() {
  if (!setup.empty()) return;
  const char* dir = getenv("TMPDIR");
  std::ifstream in(std::string(dir ? dir : "/tmp") + "/fake-gpu.txt");
  std::string name, value;
  while (in >> name >> value) setup[name] = value;
}
std::string text(const char* name, const char* otherwise) {
  auto it = setup.find(name);
  return it == setup.end() ? otherwise : it->second;
}

char* arena;
u64 arena_size;
std::map<u64, u64> taken;      // address -> size, in the arena
std::map<u64, u64> small;      // addresses outside of it: what a context keeps for itself
std::deque<std::function<void()>> queue;
std::set<void*> copying;       // streams of which the queue has copies between devices
int current;                   // the device whose context is current
double now_ms;                 // the device's clock
int broken;                    // a sticky error
u64 syncs;

struct Kernel {
  void* (*prepare)(void**, u32, u32, u32, int);
  int whole;                   // needs its whole block, as fibres
};
#define K(name, whole) {#name, {prepare_##name, whole}}
const std::map<std::string, Kernel> kernels = {
    K(fill_mix, 0), K(check_mix, 0), K(fill_word, 0), K(invert_up, 0), K(invert_down, 0), K(check_word, 0),
    K(fill_walk, 0), K(check_walk, 0), K(fill_modulo, 0), K(check_modulo, 0), K(compare_words, 0), K(flip_bit, 0),
    K(count_nonzero, 0), K(or_reduce, 0), K(copy16, 0), K(read16, 0), K(write16, 0), K(check16, 0), K(gate, 0),
    K(fill_integers, 0), K(encode, 0), K(fill_random, 0), K(compare_f32, 0), K(compare_f64, 0),
    K(compare_i32, 0), K(fill_function, 0), K(check_function, 0), K(start_atomics, 0), K(run_atomics, 0),
    K(run_atomics_shared, 0), K(check_atomics, 0), K(test_shared, 0), K(read_shared, 0), K(check_l1, 0),
    K(check_l2, 0), K(invert_l2, 0),
    K(gemm_reference, 1), K(gemm_fp32, 1), K(gemm_fp64, 1), K(gemm_fp16, 1), K(gemm_bf16, 1), K(gemm_tf32, 1),
    K(gemm_fp8, 1), K(gemm_int8, 1), K(gemm_int8_wg, 1), K(gemm_fp4, 1), K(gemm_fp16_wg, 1), K(gemm_bf16_wg, 1), K(gemm_tf32_wg, 1), K(gemm_fp8_wg, 1),
};
struct Function {
  std::string name;
  Kernel kernel;
};
struct Module {
  std::string image;
};

bool starts(const std::string& s, const char* with) { return s.rfind(with, 0) == 0; }

// Faults of memory: a bit that is stuck, two words that are one, a bit that fades once it is left alone.
void memory_faults() {
  if (setup.count("stuck_word")) ((u64*)arena)[(u64)number("stuck_word", 0)] |= 1ull << (int)number("stuck_bit", 5);
  if (setup.count("alias_from"))
    ((u64*)arena)[(u64)number("alias_to", 0)] = ((u64*)arena)[(u64)number("alias_from", 0)];
}

void obey(const std::string& name) {
  if (text("hang", "") == name) {
    signal(SIGTERM, SIG_IGN);
    for (;;) usleep(1000);
  }
  if (text("kill", "") == name) raise(SIGKILL);
  if (text("ecc", "") == name) broken = ECC;
}

int drain() {
  if (broken) return broken;
  syncs++;
  while (!queue.empty()) {
    auto work = std::move(queue.front());
    queue.pop_front();
    work();
    if (broken) {
      queue.clear();
      return broken;
    }
  }
  copying.clear();
  return OK;
}

u64 take(u64 size) {
  size = (size + 255) / 256 * 256;
  if (size <= 65536) {
    u64 at = (u64)aligned_alloc(256, size);
    small[at] = size;
    return at;
  }
  u64 at = (u64)arena;
  for (auto& [address, length] : taken) {
    if (address - at >= size) break;
    at = address + length;
  }
  if (at + size > (u64)arena + arena_size) return 0;
  taken[at] = size;
  return at;
}
}  // namespace

API cuInit(unsigned) {
  read_setup();
  if (number("init_error", 0)) return (int)number("init_error", 0);
  if (arena) return number("no_device", 0) ? NO_DEVICE : OK;
  if (setup.count("dead_bit_a") || setup.count("dead_bit_b"))
    berth_break((u64)number("dead_bit_a", 0), 0, (u64)number("dead_bit_b", 0), 0, -1, -1);
  if (setup.count("dead_unit"))
    berth_break_unit((int)number("dead_unit", 0), (int)number("dead_unit_block", -1), 1ull << (int)number("dead_unit_bit", 0),
                     0, 0);
  arena_size = (u64)number("memory_mib", 16) * 1024 * 1024;
  arena = (char*)mmap(nullptr, arena_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (u64 i = 0; i < (u64)number("dirty_words", 0); i++) ((u64*)arena)[i * 7] = 1;
  return number("no_device", 0) ? NO_DEVICE : OK;
}
// 12040 is CUDA 12.4, of R550; 13000 is R580.
static int driver_version() { return (int)number("driver", 13000); }
API cuDriverGetVersion(int* v) { return *v = driver_version(), OK; }
API cuDeviceGetCount(int* n) { return *n = (int)number("devices", 1), OK; }
API cuDeviceGet(int* d, int ordinal) { return *d = ordinal, OK; }
API cuDeviceGetName(char* name, int size, int) { return snprintf(name, size, "%s", "Fake H200"), OK; }
API cuDeviceGetUuid(unsigned char* uuid, int device) {
  std::string hex = text("uuid", "00000000000000000000000000000001");
  for (int i = 0; i < 16; i++) uuid[i] = (unsigned char)strtol(hex.substr(2 * i, 2).c_str(), nullptr, 16);
  uuid[15] += device;
  return OK;
}
API cuDeviceGetAttribute(int* value, int which, int) {
  if (which == 75) *value = (int)number("major", 9);
  else if (which == 76) *value = (int)number("minor", 0);
  else if (which == 16) *value = (int)number("sms", 132);
  else if (which == 38) *value = 50 * 1024 * 1024;
  else return INVALID;
  return OK;
}
API cuDevicePrimaryCtxRetain(void** context, int device) {
  if (number("context_error", 0)) return (int)number("context_error", 0);
  return *context = (void*)(u64)(0x1000 + device), OK;
}
API cuDevicePrimaryCtxRelease(int) { return drain(); }
API cuCtxSetCurrent(void* context) { return current = (int)((u64)context - 0x1000), OK; }
static u64 streams = 0x2000; // of the second one a fault may be asked for: `beside_flip`
API cuStreamCreate(void** stream, unsigned) { return *stream = (void*)streams, streams += 0x1000, OK; }
static void beside(void* stream, void* to, size_t size) {
  if (stream > (void*)0x2000 && number("beside_flip", 0)) ((char*)to)[size / 2] ^= 4;
}
API cuStreamDestroy(void*) { return drain(); }
API cuStreamSynchronize(void*) { return drain(); }
API cuMemGetInfo(size_t* free_bytes, size_t* total) {
  u64 used = 0;
  for (auto& [address, size] : taken) used += size;
  *total = arena_size;
  *free_bytes = arena_size - used;
  return OK;
}
API cuMemAlloc(u64* address, size_t size) {
  if (broken) return broken;
  if (size > 65536 && number("out_of_memory", 0)) return OOM;
  if (size > 65536 && current && current == number("no_memory_on", 0)) return OOM;
  // Memory that somebody else still holds: free, but not to be had.
  if (size > 65536 && size > arena_size * number("largest_share", 1)) return OOM;
  *address = take(size);
  return *address ? OK : OOM;
}
API cuMemFree(u64 address) {
  int status = drain();
  if (small.erase(address)) free((void*)address);
  else if (!taken.erase(address)) return INVALID;
  return status;
}
API cuMemHostAlloc(void** p, size_t size, unsigned) { return *p = aligned_alloc(4096, (size + 4095) / 4096 * 4096), OK; }
API cuMemFreeHost(void* p) { return free(p), OK; }
API cuMemHostGetDevicePointer(u64* device, void* host, unsigned) { return *device = (u64)host, OK; }
API cuMemsetD8Async(u64 to, unsigned char value, size_t size, void*) {
  queue.push_back([=] {
    if (!number("no_memset", 0) || size <= 65536) memset((void*)to, value, size);
    memory_faults();
  });
  return broken;
}
static void moved(size_t size, double gb_s) { now_ms += size / gb_s / 1e6; }
API cuMemcpyHtoDAsync(u64 to, const void* from, size_t size, void* stream) {
  // Pageable memory is taken at once, as a driver does; pinned buffers are larger here.
  std::string data;
  if (size <= 65536) data.assign((const char*)from, size);
  queue.push_back([=] {
    memcpy((void*)to, size <= 65536 ? data.data() : from, size);
    moved(size, number("pcie_gb_s", 54));
    beside(stream, (void*)to, size);
    memory_faults();
  });
  return broken;
}
API cuMemcpyDtoHAsync(void* to, u64 from, size_t size, void*) {
  queue.push_back([=] {
    memcpy(to, (void*)from, size);
    moved(size, number("pcie_gb_s", 54));
    if (number("pcie_flip", 0) && size > 65536) ((char*)to)[size / 2] ^= 4;
  });
  return broken;
}
API cuMemcpyDtoDAsync(u64 to, u64 from, size_t size, void*) {
  queue.push_back([=] {
    obey("copy");
    memmove((void*)to, (void*)from, size);
    moved(2 * size, number("driver_copy_gb_s", 4300));
    memory_faults();
  });
  return broken;
}
API cuDeviceCanAccessPeer(int* can, int device, int peer) {
  bool apart = device == number("apart_from", -1) && peer == number("apart_to", -1);
  return *can = !number("no_peer", 0) && !apart, OK;
}
API cuCtxEnablePeerAccess(void*, unsigned) { return OK; }
// While more than two streams copy, a bit may be wrong from one device to another, and all may be slow.
API cuMemcpyPeerAsync(u64 to, void* target, u64 from, void* source, size_t size, void* stream) {
  copying.insert(stream);
  queue.push_back([=] {
    bool crowd = copying.size() > 2;
    memmove((void*)to, (void*)from, size);
    beside(stream, (void*)to, size);
    if (crowd && (u64)source == 0x1000 + number("crowd_from", -1) && (u64)target == 0x1000 + number("crowd_to", -1))
      ((char*)to)[size / 2] ^= 4;
    moved(size, number(crowd ? "crowd_gb_s" : "peer_gb_s", 390));
  });
  return broken;
}
API cuEventCreate(void** event, unsigned) { return *event = new double(-1), OK; }
API cuEventDestroy(void* event) {
  int status = drain();
  delete (double*)event;
  return status;
}
API cuEventRecord(void* event, void*) {
  queue.push_back([=] { *(double*)event = now_ms; });
  return broken;
}
API cuStreamWaitEvent(void*, void*, unsigned) { return broken; } // all is done in the order in which it came
API cuEventSynchronize(void*) { return drain(); }
API cuEventElapsedTime(float* ms, void* start, void* end) {
  return *ms = (float)(*(double*)end - *(double*)start), OK;
}
API cuModuleLoadData(void** module, const void* image) {
  auto* elf = (const Elf64_Ehdr*)image;
  if (memcmp(elf->e_ident, ELFMAG, SELFMAG) != 0) return BAD_IMAGE;
  // Version 8 of the ABI came with CUDA 13; only what is for Blackwell has had it since 12.8.
  if (elf->e_ident[EI_ABIVERSION] > 7 && driver_version() < (number("major", 9) >= 10 ? 12080 : 13000))
    return BAD_IMAGE;
  if (number("no_image", 0)) return BAD_IMAGE;
  u64 size = elf->e_shoff + (u64)elf->e_shnum * elf->e_shentsize;
  return *module = new Module{std::string((const char*)image, size)}, OK;
}
API cuModuleGetFunction(void** function, void* module, const char* name) {
  auto it = kernels.find(name);
  // The name has to be in the cubin, too: a kernel that this architecture lacks is not found.
  if (it == kernels.end() || ((Module*)module)->image.find(std::string(".text.") + name) == std::string::npos)
    return NOT_FOUND;
  return *function = new Function{it->first, it->second}, OK;
}
API cuLaunchKernel(void* f, u32 gx, u32 gy, u32, u32 bx, u32, u32, u32, void*, void** params, void**) {
  if (broken) return broken;
  auto* function = (Function*)f;
  const std::string name = function->name;
  if (!gx || !gy || bx > 1024) return INVALID;
  bool blind = number("blind", 0) && (starts(name, "check_") || starts(name, "compare_") || name == "count_nonzero");
  void* work = function->kernel.prepare(params, gx, gy, bx, function->kernel.whole);
  u64 moves = 0, square = 0;
  double flop = 0;
  void* result = nullptr;
  if (name == "copy16") moves = 32 * *(u64*)params[2];
  if (name == "read16") moves = 16 * *(u64*)params[1];
  if (name == "write16") moves = 16 * *(u64*)params[1];
  if (starts(name, "gemm_")) {
    u64 side = *(u32*)params[3], depth = *(u32*)params[4];
    int in_word = starts(name, "gemm_fp16") || starts(name, "gemm_bf16") ? 2 : starts(name, "gemm_fp8") || starts(name, "gemm_int8") ? 4
                  : starts(name, "gemm_fp4") ? 8 : 1;
    flop = 2.0 * side * side * depth * in_word;
    if (name != "gemm_reference") result = *(void**)params[2];
    square = side == depth * in_word ? side * side : 0;
  }
  queue.push_back([=] {
    obey(name);
    if (!blind) berth_run(work);
    if (moves) moved(moves, number("copy_gb_s", 4100));
    if (flop) now_ms += flop / number("tflops", 400) / 1e9;
    if (result && setup.count("product_word"))
      ((u32*)result)[(u64)number("product_word", 0)] ^= (u32)number("product_flip", 1);
    if (result && number("no_product", 0)) memset(result, 0xFF, 64);
    // Every product of random operands is wrong in the same way, each time: only they are square.
    if (result && square && setup.count("random_flip"))
      for (u64 i = 0; i < square; i++) ((u32*)result)[i] ^= (u32)number("random_flip", 0);
    memory_faults();
  });
  return OK;
}

// NVRTC asks a driver for private tables; this one has none.
API cuGetExportTable(const void** table, const void*) { return *table = nullptr, NOT_FOUND; }

#define ENTRY(name) {#name, (void*)name}
API cuGetProcAddress_v2(const char* symbol, void** found, int version, u64, int* status) {
  static const std::map<std::string, void*> table = {
      ENTRY(cuInit), ENTRY(cuDriverGetVersion), ENTRY(cuDeviceGetCount), ENTRY(cuDeviceGet), ENTRY(cuDeviceGetName),
      ENTRY(cuDeviceGetUuid), ENTRY(cuDeviceGetAttribute), ENTRY(cuDevicePrimaryCtxRetain),
      ENTRY(cuDevicePrimaryCtxRelease), ENTRY(cuCtxSetCurrent), ENTRY(cuStreamCreate), ENTRY(cuStreamDestroy),
      ENTRY(cuStreamSynchronize), ENTRY(cuMemGetInfo), ENTRY(cuMemAlloc), ENTRY(cuMemFree), ENTRY(cuMemHostAlloc),
      ENTRY(cuMemFreeHost), ENTRY(cuMemHostGetDevicePointer), ENTRY(cuMemsetD8Async), ENTRY(cuMemcpyHtoDAsync),
      ENTRY(cuMemcpyDtoHAsync), ENTRY(cuMemcpyDtoDAsync), ENTRY(cuDeviceCanAccessPeer), ENTRY(cuCtxEnablePeerAccess),
      ENTRY(cuMemcpyPeerAsync), ENTRY(cuEventCreate), ENTRY(cuEventDestroy), ENTRY(cuEventRecord), ENTRY(cuStreamWaitEvent),
      ENTRY(cuEventSynchronize), ENTRY(cuEventElapsedTime), ENTRY(cuModuleLoadData), ENTRY(cuModuleGetFunction),
      ENTRY(cuLaunchKernel), ENTRY(cuGetProcAddress_v2), {"cuGetProcAddress", (void*)cuGetProcAddress_v2},
  };
  read_setup();
  auto it = table.find(symbol);
  // What a driver has only had since a later CUDA: its second version of this one, and whatever a test takes away.
  bool later = !strcmp(symbol, "cuEventElapsedTime") && version >= 12080 && driver_version() < 12080;
  if (later || text("no_symbol", "") == symbol) it = table.end();
  *found = it == table.end() ? nullptr : it->second;
  if (status) *status = it == table.end() ? 1 : 0;
  return it == table.end() ? NOT_FOUND : OK;
}

// --- cuBLAS, as far as the check uses it: types and layout are looked at as the real one would ---
API cublasCreate_v2(void** handle) { return *handle = (void*)0x3000, 0; }
API cublasDestroy_v2(void*) { return 0; }
API cublasSetStream_v2(void*, void* stream) { return stream == (void*)0x2000 ? 0 : 7; }
API cublasGetVersion_v2(void*, int* version) { return *version = 130100, 0; }
API cublasGemmEx(void*, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int a_type, int lda,
                 const void* b, int b_type, int ldb, const void* beta, void* c, int c_type, int ldc, int compute,
                 int) {
  if (ta != 1 || tb != 0 || lda != k || ldb != k || ldc != m || a_type != b_type) return 7;
  bool wide = a_type == 1;
  if (wide ? *(const double*)alpha != 1 || *(const double*)beta : *(const float*)alpha != 1 || *(const float*)beta)
    return 7;
  if (compute != (wide ? 70 : 68) && !(compute == 77 && a_type == 0)) return 15;
  const char* name = wide ? "gemm_fp64" : a_type == 2 ? "gemm_fp16" : a_type == 14 ? "gemm_bf16"
                     : compute == 77 ? "gemm_tf32" : "gemm_fp32";
  bool plain = wide || !strcmp(name, "gemm_fp32");
  u32 side = m, inner = plain ? k : a_type == 0 ? k : k / 2;
  bool narrow = c_type == a_type && (a_type == 2 || a_type == 14);
  queue.push_back([=] {
    std::string sums(narrow ? (size_t)m * n * 4 : 0, 0);
    void* to = narrow ? sums.data() : c;
    // Column by column C is m x n with A^T first; row by row that is (B of the caller) times (A of the caller)^T.
    const void *first = b, *second = a;
    void* nowhere = nullptr;
    void* params[] = {&first, &second, &to, (void*)&side, (void*)&inner, &nowhere};
    u32 tiles = side / (plain ? 64 : 128);
    berth_run(kernels.at(name).prepare(params, tiles, tiles, 256, 1));
    for (size_t i = 0; narrow && i < (size_t)m * n; i++) ((unsigned short*)c)[i] = ((u32*)to)[i] >> 16;
    now_ms += 2.0 * m * n * k / (strcmp(name, "gemm_fp32") && !wide ? number("tflops", 400) * 2 : 60) / 1e9;
  });
  return 0;
}

// --- cuBLASLt: a product in FP8, its operands and layouts looked at as cublasLt.h has them ---
namespace {
struct LtProduct { int compute, scale, transa = 0; };
struct LtLayout { int type; u64 rows, columns; long long ld; };
}  // namespace
API cublasLtCreate(void** handle) { return *handle = (void*)0x4000, 0; }
API cublasLtMatmulDescCreate(LtProduct** made, int compute, int scale) {
  return *made = new LtProduct{compute, scale}, compute == 68 && scale == 0 ? 0 : 7;
}
API cublasLtMatmulDescSetAttribute(LtProduct* product, int which, const void* value, size_t size) {
  if (which != 3 || size != 4) return 7;
  return product->transa = *(const int*)value, 0;
}
API cublasLtMatrixLayoutCreate(LtLayout** made, int type, u64 rows, u64 columns, long long ld) {
  return *made = new LtLayout{type, rows, columns, ld}, 0;
}
API cublasLtMatmul(void* handle, LtProduct* product, const float* alpha, const void* a, LtLayout* la, const void* b,
                   LtLayout* lb, const float* beta, const void* c, LtLayout* lc, void* d, LtLayout* ld, const void* algo,
                   void*, size_t workspace, void* stream) {
  if (number("lt_status", 0)) return (int)number("lt_status", 0);
  if (handle != (void*)0x4000 || stream != (void*)0x2000 || algo || workspace || *alpha != 1 || *beta || c != d) return 7;
  // A is k by m and transposed, B is k by n, D is m by n: FP8 is offered in this form alone.
  if (product->transa != 1 || la->type != 28 || lb->type != 28 || lc->type != 0 || ld->type != 0) return 15;
  u64 m = ld->rows, n = ld->columns, k = la->rows;
  if (la->columns != m || lb->rows != k || lb->columns != n || m != n || m % 16 || k % 16) return 7;
  if (la->ld != (long long)k || lb->ld != (long long)k || ld->ld != (long long)m) return 7;
  queue.push_back([=] {
    const void *first = b, *second = a;
    u32 side = m, inner = k / 4;
    void *to = d, *nowhere = nullptr;
    void* params[] = {&first, &second, &to, (void*)&side, (void*)&inner, &nowhere};
    berth_run(kernels.at("gemm_fp8").prepare(params, side / 128, side / 128, 256, 1));
    if (number("lt_flip", 0)) ((u32*)d)[100] ^= (u32)number("lt_flip", 0);
    now_ms += 2.0 * m * n * k / (number("tflops", 400) * 4) / 1e9;
  });
  return 0;
}
