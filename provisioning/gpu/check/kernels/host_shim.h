// Lets the kernels be compiled by a C++ compiler and run on the host: for tests of their logic, never for a
// verdict on a device. A launch runs either as one thread that strides over everything, or with its whole
// block as fibres, one after another, which meet at __syncthreads() and inside a warp at each mma.
#pragma once
#include <ucontext.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define KERNEL extern "C" void

struct alignas(16) Words2 {
  u64 x, y;
};
struct Dim3 {
  u32 x, y, z;
};
static Dim3 threadIdx, blockIdx, blockDim, gridDim;

static inline u64 atomic_add(u64* p, u64 v) { u64 old = *p; *p = old + v; return old; }
static inline u64 atomic_min(u64* p, u64 v) { u64 old = *p; if (v < old) *p = v; return old; }
static inline u64 atomic_or(u64* p, u64 v) { u64 old = *p; *p = old | v; return old; }
static inline u64 atomic_xor(u64* p, u64 v) { u64 old = *p; *p = old ^ v; return old; }
static inline u64 now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (u64)t.tv_sec * 1000000000ull + t.tv_nsec;
}

namespace berth {
struct Fibre {
  ucontext_t context;
  std::vector<char> stack;
  bool done = false;
};
static ucontext_t scheduler;
static std::vector<Fibre> fibres;
static u32 current;
static std::function<void()> body;

static void enter() {
  body();
  fibres[current].done = true;
  swapcontext(&fibres[current].context, &scheduler);
}
// Every fibre runs up to its next meeting point before any goes on.
static inline void meet() {
  if (!fibres.empty()) swapcontext(&fibres[current].context, &scheduler);
}
static void run_block(u32 threads) {
  fibres.clear();
  fibres.resize(threads);
  for (auto& f : fibres) {
    f.stack.resize(64 * 1024);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = nullptr;
    makecontext(&f.context, enter, 0);
  }
  for (bool alive = true; alive;) {
    alive = false;
    for (current = 0; current < threads; current++) {
      if (fibres[current].done) continue;
      threadIdx = {current, 0, 0};
      swapcontext(&scheduler, &fibres[current].context);
      alive = alive || !fibres[current].done;
    }
  }
  fibres.clear();
}

struct Launch {
  std::function<void()> kernel;
  Dim3 grid;
  u32 threads;
  bool whole;
};
template <class... A, size_t... I>
static std::function<void()> closure(void (*k)(A...), void** params, std::index_sequence<I...>) {
  std::tuple<A...> values{*(A*)params[I]...};
  return [k, values] { std::apply(k, values); };
}
template <class... A>
static void* prepare(void (*k)(A...), void** params, u32 gx, u32 gy, u32 threads, int whole) {
  return new Launch{closure(k, params, std::index_sequence_for<A...>{}), {gx, gy, 1}, threads, whole != 0};
}
}  // namespace berth

#define __syncthreads() berth::meet()

// Binds a kernel's arguments, as a launch does; berth_run() below runs it.
#define HOST_KERNEL(name)                                                                              \
  extern "C" void* prepare_##name(void** params, u32 gx, u32 gy, u32 threads, int whole) {             \
    return berth::prepare(name, params, gx, gy, threads, whole);                                       \
  }

extern "C" inline __attribute__((used)) void berth_run(void* handle) {
  auto* l = (berth::Launch*)handle;
  if (l->whole) {
    gridDim = l->grid;
    blockDim = {l->threads, 1, 1};
    berth::body = l->kernel;
    for (u32 y = 0; y < l->grid.y; y++)
      for (u32 x = 0; x < l->grid.x; x++) {
        blockIdx = {x, y, 0};
        berth::run_block(l->threads);
      }
  } else {
    gridDim = {1, 1, 1};
    blockDim = {1, 1, 1};
    blockIdx = {0, 0, 0};
    threadIdx = {0, 0, 0};
    l->kernel();
  }
  delete l;
}

// The warp's matrix product as the PTX manual lays its fragments out: lane = 4 * group + quad holds of A the rows
// `group` and `group + 8`, of B the column `group`, and of each the words `quad` and `quad + 4` of a K step.
namespace berth {
static u32 warp_a[32][32][4], warp_b[32][32][2];

static inline float bits_to_float(u32 sign, int exponent, u32 mantissa, int ebits, int mbits) {
  int bias = (1 << (ebits - 1)) - 1;
  float v = exponent == 0 ? (float)mantissa / (1 << mbits) : 1.0f + (float)mantissa / (1 << mbits);
  int e = (exponent == 0 ? 1 : exponent) - bias;
  while (e > 0) { v *= 2; e--; }
  while (e < 0) { v /= 2; e++; }
  return sign ? -v : v;
}
template <int EBITS, int MBITS>
static inline float value(u32 word, int i) {
  const int bits = 1 + EBITS + MBITS;
  u32 v = bits == 32 ? word : (word >> (i * bits)) & ((1u << (bits & 31)) - 1);
  return bits_to_float(v >> (bits - 1), (int)(v >> MBITS & ((1u << EBITS) - 1)), v & ((1u << MBITS) - 1), EBITS, MBITS);
}
template <int EBITS, int MBITS>
struct Mma {
  static inline void mma(float* c, const u32* a, const u32* b) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, quad = lane % 4;
    u32 self = threadIdx.x;
    memcpy(warp_a[warp][lane], a, 16);
    memcpy(warp_b[warp][lane], b, 8);
    meet();
    const int per_word = 32 / (1 + EBITS + MBITS);
    for (int e = 0; e < 4; e++) {
      u32 column = quad * 2 + e % 2;
      float sum = 0;
      for (u32 q = 0; q < 4; q++)
        for (int half = 0; half < 2; half++)
          for (int i = 0; i < per_word; i++)
            sum += value<EBITS, MBITS>(warp_a[warp][group * 4 + q][half * 2 + e / 2], i) *
                   value<EBITS, MBITS>(warp_b[warp][column * 4 + q][half], i);
      c[e] += sum;
    }
    meet();
    threadIdx = {self, 0, 0};
  }
};
}  // namespace berth
typedef berth::Mma<5, 10> Fp16;
typedef berth::Mma<8, 7> Bf16;
typedef berth::Mma<8, 23> Tf32;
typedef berth::Mma<4, 3> Fp8;
