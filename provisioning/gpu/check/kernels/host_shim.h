// Compile the kernels with a C++ compiler and run them on the host, to test their logic, never to judge a
// device. A launch runs either as one thread that strides over everything, or with its whole block as fibres,
// one after another, which meet at __syncthreads() and inside a warp at each mma.
#pragma once
#include <ucontext.h>

#include <cmath>
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
// A made-up SM, different for each block of a small grid.
static inline u32 sm_id() { return blockIdx.x + 10 * blockIdx.y; }
static inline u64 now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (u64)t.tv_sec * 1000000000ull + t.tv_nsec;
}

// A broken multiplier, for tests of the comparison: bits of its first or second operand are stuck at 0 or at 1 (bits of
// the operand's own type), or one partial product (bit `cell_a` of one mantissa times bit `cell_b` of the other, from the
// lowest) is never added. The integer reference stays intact.
struct Broken {
  u64 clear_a, set_a, clear_b, set_b;
  int cell_a, cell_b;
};
static Broken broken_multiplier = {0, 0, 0, 0, -1, -1};
extern "C" __attribute__((visibility("default"))) void berth_break(u64 clear_a, u64 set_a, u64 clear_b, u64 set_b,
                                                                   int cell_a, int cell_b) {
  broken_multiplier = {clear_a, set_a, clear_b, set_b, cell_a, cell_b};
}
template <class Bits, class Value>
static inline Value stuck(Value v, u64 clear, u64 set) {
  Bits bits;
  memcpy(&bits, &v, sizeof bits);
  bits = (bits & ~(Bits)clear) | (Bits)set;
  memcpy(&v, &bits, sizeof bits);
  return v;
}
static inline long long operand(long long v, u64, u64) { return v; }
static inline float operand(float v, u64 clear, u64 set) { return stuck<u32>(v, clear, set); }
static inline double operand(double v, u64 clear, u64 set) { return stuck<u64>(v, clear, set); }
#define OPERAND_A(v) operand(v, broken_multiplier.clear_a, broken_multiplier.set_a)
#define OPERAND_B(v) operand(v, broken_multiplier.clear_b, broken_multiplier.set_b)

// A broken unit other than the multipliers, for tests of the comparison: bits of its results are stuck at 0 or at 1, or an
// address line of shared memory is dead. `block`: only in this block, as on one multiprocessor; -1: in all blocks.
enum { NO_UNIT, FUNCTIONS, ATOMICS, SHARED, L1, L2 };
static struct {
  int unit, block;
  u64 clear, set, dead_address;
} broken_unit = {NO_UNIT, -1, 0, 0, 0};
extern "C" __attribute__((visibility("default"))) void berth_break_unit(int unit, int block, u64 clear, u64 set,
                                                                        u64 dead_address) {
  broken_unit = {unit, block, clear, set, dead_address};
}
static inline bool is_broken(int unit) {
  return broken_unit.unit == unit && (broken_unit.block < 0 || broken_unit.block == (int)blockIdx.x);
}
static inline u64 from_unit(int unit, u64 v) { return is_broken(unit) ? (v & ~broken_unit.clear) | broken_unit.set : v; }
#define UNIT_RESULT(v) from_unit(FUNCTIONS, v)
#define SHARED_READ(v) from_unit(SHARED, v)
#define SHARED_AT(i) ((i) & ~(is_broken(SHARED) ? broken_unit.dead_address : 0))
static inline u64 load_l1(const u64* p) { return from_unit(L1, *p); }
static inline u64 load_l2(const u64* p) { return from_unit(L2, *p); }
static inline void store_l2(u64* p, u64 v) { *p = v; }
// As wide as the cell: a 32-bit operation uses the lower half of the broken bits.
template <class T>
static inline void keep(T* p, T v) {
  u64 bits = 0;
  memcpy(&bits, &v, sizeof v);
  bits = from_unit(ATOMICS, bits);
  memcpy(p, &bits, sizeof v);
}
template <class T> static inline void UNIT_ADD(T* p, T v) { keep<T>(p, *p + v); }
template <class T> static inline void UNIT_MIN(T* p, T v) { keep<T>(p, v < *p ? v : *p); }
template <class T> static inline void UNIT_MAX(T* p, T v) { keep<T>(p, v > *p ? v : *p); }
template <class T> static inline void UNIT_AND(T* p, T v) { keep<T>(p, *p & v); }
template <class T> static inline void UNIT_OR(T* p, T v) { keep<T>(p, *p | v); }
template <class T> static inline void UNIT_XOR(T* p, T v) { keep<T>(p, *p ^ v); }
template <class T> static inline void UNIT_CAS_ADD(T* p, T v) { keep<T>(p, *p + v); }
// As precise as a float, which is within the bounds of the approximations.
static inline float sin_of(float x) { return (float)std::sin((double)x); }
static inline float cos_of(float x) { return (float)std::cos((double)x); }
static inline float exp2_of(float x) { return (float)std::exp2((double)x); }
static inline float log2_of(float x) { return (float)std::log2((double)x); }
static inline float rsqrt_of(float x) { return (float)(1 / std::sqrt((double)x)); }
static inline float rcp_of(float x) { return 1 / x; }
static inline float sqrt_of(float x) { return std::sqrt(x); }
static inline float tanh_of(float x) { return (float)std::tanh((double)x); }
#define SQRT_ROUNDED(x) std::sqrt((float)(x))
#define DIV_ROUNDED(x, y) ((float)(x) / (float)(y))
#define RCP_ROUNDED(x) (1.0f / (float)(x))
#define SQRT_ROUNDED64(x) std::sqrt((double)(x))
#define DIV_ROUNDED64(x, y) ((double)(x) / (double)(y))

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
// Every fibre runs to its next meeting point before any of them continues.
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
  int how;
};
// How a launch runs: as one thread that strides over everything, with whole blocks, or with one thread for each block.
enum { ONE_THREAD, WHOLE_BLOCKS, THREAD_EACH };
template <class... A, size_t... I>
static std::function<void()> closure(void (*k)(A...), void** params, std::index_sequence<I...>) {
  std::tuple<A...> values{*(A*)params[I]...};
  return [k, values] { std::apply(k, values); };
}
template <class... A>
static void* prepare(void (*k)(A...), void** params, u32 gx, u32 gy, u32 threads, int how) {
  return new Launch{closure(k, params, std::index_sequence_for<A...>{}), {gx, gy, 1}, threads, how};
}
}  // namespace berth

#define __syncthreads() berth::meet()

// Binds a kernel's arguments, as a launch does; berth_run() below runs it.
#define HOST_KERNEL(name)                                                                              \
  extern "C" void* prepare_##name(void** params, u32 gx, u32 gy, u32 threads, int whole) {             \
    return berth::prepare(name, params, gx, gy, threads, whole ? berth::WHOLE_BLOCKS : berth::ONE_THREAD); \
  }
// For kernels in which each block does all of its work without other blocks.
#define HOST_BLOCKS(name)                                                                              \
  extern "C" void* prepare_##name(void** params, u32 gx, u32 gy, u32 threads, int whole) {             \
    return berth::prepare(name, params, gx, gy, threads, whole ? berth::WHOLE_BLOCKS : berth::THREAD_EACH); \
  }

extern "C" inline __attribute__((used)) void berth_run(void* handle) {
  auto* l = (berth::Launch*)handle;
  if (l->how != berth::ONE_THREAD) {
    u32 threads = l->how == berth::WHOLE_BLOCKS ? l->threads : 1;
    gridDim = l->grid;
    blockDim = {threads, 1, 1};
    berth::body = l->kernel;
    for (u32 y = 0; y < l->grid.y; y++)
      for (u32 x = 0; x < l->grid.x; x++) {
        blockIdx = {x, y, 0};
        threadIdx = {0, 0, 0};
        if (threads == 1) l->kernel();
        else berth::run_block(threads);
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
static float warp_a[32][32][4][8], warp_b[32][32][2][8];

static inline float bits_to_float(u32 sign, int exponent, u32 mantissa, int ebits, int mbits) {
  float v = (float)mantissa / (1 << mbits) + (exponent == 0 ? 0.0f : 1.0f);
  v = ldexpf(v, (exponent == 0 ? 1 : exponent) - (1 << (ebits - 1)) + 1);
  return sign ? -v : v;
}
// One element of a word. `UNREAD`: number of its last bits that are ignored, as TF32 ignores those of a float.
template <int EBITS, int MBITS, int UNREAD>
static inline float value(u32 word, int i, u64 clear, u64 set) {
  const int bits = 1 + EBITS + MBITS + UNREAD;
  u32 v = (bits == 32 ? word : (word >> (i * bits)) & ((1u << (bits & 31)) - 1)) >> UNREAD;
  v = (v & ~(u32)clear) | (u32)set;
  return bits_to_float(v >> (EBITS + MBITS), (int)(v >> MBITS & ((1u << EBITS) - 1)), v & ((1u << MBITS) - 1), EBITS,
                       MBITS);
}
// a * b without the broken partial product.
static inline float multiplied(float a, float b, int mantissa) {
  float whole = a * b;
  if (broken_multiplier.cell_a < 0 || whole == 0) return whole;
  int ea, eb;
  u32 ma = (u32)ldexp(frexp(fabs(a), &ea), mantissa), mb = (u32)ldexp(frexp(fabs(b), &eb), mantissa);
  if (!(ma >> broken_multiplier.cell_a & mb >> broken_multiplier.cell_b & 1)) return whole;
  float part = ldexp(1.0f, broken_multiplier.cell_a + broken_multiplier.cell_b + ea + eb - 2 * mantissa);
  return whole > 0 ? whole - part : whole + part;
}
template <int EBITS, int MBITS, int UNREAD = 0>
struct Mma {
  typedef float Sum;
  static inline void mma(float* c, const u32* a, const u32* b) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, quad = lane % 4;
    u32 self = threadIdx.x;
    const int per_word = 32 / (1 + EBITS + MBITS + UNREAD);
    const Broken& dead = broken_multiplier;
    for (int i = 0; i < per_word; i++) {
      for (int w = 0; w < 4; w++)
        warp_a[warp][lane][w][i] = value<EBITS, MBITS, UNREAD>(a[w], i, dead.clear_a, dead.set_a);
      for (int w = 0; w < 2; w++)
        warp_b[warp][lane][w][i] = value<EBITS, MBITS, UNREAD>(b[w], i, dead.clear_b, dead.set_b);
    }
    meet();
    for (int e = 0; e < 4; e++) {
      u32 column = quad * 2 + e % 2;
      float sum = 0;
      for (u32 q = 0; q < 4; q++)
        for (int half = 0; half < 2; half++)
          for (int i = 0; i < per_word; i++)
            sum += multiplied(warp_a[warp][group * 4 + q][half * 2 + e / 2][i], warp_b[warp][column * 4 + q][half][i],
                              MBITS + 1);
      c[e] += sum;
    }
    meet();
    threadIdx = {self, 0, 0};
  }
};

// One of the four bytes of a word as a signed integer.
static inline int integer(u32 word, int i, u64 clear, u64 set) {
  return (signed char)((word >> (8 * i) & ~(u32)clear) | (u32)set);
}
// a * b in two's complement without the broken partial product: that of a sign bit is negative.
static inline int multiplied(int a, int b) {
  int i = broken_multiplier.cell_a, j = broken_multiplier.cell_b, whole = a * b;
  if (i < 0 || !(a >> i & b >> j & 1)) return whole;
  int part = 1 << (i + j);
  return (i == 7) != (j == 7) ? whole + part : whole - part;
}
static int warp_ia[32][32][4][4], warp_ib[32][32][2][4];
struct MmaInt8 {
  typedef int Sum;
  static inline void mma(int* c, const u32* a, const u32* b) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, quad = lane % 4;
    u32 self = threadIdx.x;
    const Broken& dead = broken_multiplier;
    for (int i = 0; i < 4; i++) {
      for (int w = 0; w < 4; w++) warp_ia[warp][lane][w][i] = integer(a[w], i, dead.clear_a, dead.set_a);
      for (int w = 0; w < 2; w++) warp_ib[warp][lane][w][i] = integer(b[w], i, dead.clear_b, dead.set_b);
    }
    meet();
    for (int e = 0; e < 4; e++) {
      u32 column = quad * 2 + e % 2;
      for (u32 q = 0; q < 4; q++)
        for (int half = 0; half < 2; half++)
          for (int i = 0; i < 4; i++)
            c[e] += multiplied(warp_ia[warp][group * 4 + q][half * 2 + e / 2][i], warp_ib[warp][column * 4 + q][half][i]);
    }
    meet();
    threadIdx = {self, 0, 0};
  }
};

// The warpgroup's product of 64 rows of A and 128 of B, read from shared memory as hopper.cu lays them out: `COLUMN`
// words further is the next 16 bytes of the same row. A thread's results are of two rows and of 32 columns.
template <int EBITS, int MBITS, int UNREAD, int COLUMN>
struct Wgmma {
  typedef float Sum;
  static const int PER_WORD = 32 / (1 + EBITS + MBITS + UNREAD), K = 8 * PER_WORD;
  static void row_of(float* to, const u32* matrix, u32 row, u64 clear, u64 set) {
    for (int w = 0; w < 8; w++)
      for (int i = 0; i < PER_WORD; i++)
        to[w * PER_WORD + i] = value<EBITS, MBITS, UNREAD>(matrix[w / 4 * COLUMN + row * 4 + w % 4], i, clear, set);
  }
  static void step(float* d, const u32* a, const u32* b) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const Broken& dead = broken_multiplier;
    float rows[2][K], column[K];
    for (u32 h = 0; h < 2; h++) row_of(rows[h], a, warp * 16 + lane / 4 + 8 * h, dead.clear_a, dead.set_a);
    for (u32 j = 0; j < 16; j++)
      for (u32 e = 0; e < 2; e++) {
        row_of(column, b, j * 8 + lane % 4 * 2 + e, dead.clear_b, dead.set_b);
        for (u32 h = 0; h < 2; h++) {
          float sum = 0;
          for (int k = 0; k < K; k++) sum += multiplied(rows[h][k], column[k], MBITS + 1);
          d[j * 4 + h * 2 + e] += sum;
        }
      }
  }
};
template <int COLUMN>
struct WgmmaInt8 {
  typedef int Sum;
  static int at(const u32* matrix, u32 row, int k, u64 clear, u64 set) {
    return integer(matrix[k / 16 * COLUMN + row * 4 + k / 4 % 4], k % 4, clear, set);
  }
  static void step(int* d, const u32* a, const u32* b) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const Broken& dead = broken_multiplier;
    for (u32 j = 0; j < 16; j++)
      for (u32 e = 0; e < 2; e++)
        for (u32 h = 0; h < 2; h++)
          for (int k = 0; k < 32; k++)
            d[j * 4 + h * 2 + e] += multiplied(at(a, warp * 16 + lane / 4 + 8 * h, k, dead.clear_a, dead.set_a),
                                               at(b, j * 8 + lane % 4 * 2 + e, k, dead.clear_b, dead.set_b));
  }
};
}  // namespace berth
typedef berth::MmaInt8 Int8;
typedef berth::Mma<2, 1> Fp4;
typedef berth::Mma<5, 10> Fp16;
typedef berth::Mma<8, 7> Bf16;
typedef berth::Mma<8, 10, 13> Tf32;
typedef berth::Mma<4, 3> Fp8;
