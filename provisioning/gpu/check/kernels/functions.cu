// Special functions. Each argument is a function of its index, so that the CPU knows it too. Functions 0 to 7 are the
// approximations of the special function units, whose error PTX bounds; 8 to 12 are rounded correctly by IEEE 754, so
// that every bit of them is known. Results are words of 64 bits, of which 32-bit functions use the lower half.
#include "common.cuh"

enum { SIN, COS, EXP2, LOG2, RSQRT, RCP, SQRT, TANH, SQRT_RN, RCP_RN, DIV_RN, SQRT_RN64, DIV_RN64 };

union Single {
  u32 bits;
  float value;
};
union Double {
  u64 bits;
  double value;
};

// Exact by construction: a 24-bit integer times a power of two, or a mantissa with an exponent.
static __device__ __forceinline__ float even(u64 r, float unit) { return (float)((int)(r >> 40) - 0x800000) * unit; }
static __device__ __forceinline__ float positive(u64 r) {
  Single x;
  x.bits = (u32)(67 + (r >> 32) % 120) << 23 | (u32)(r & 0x7FFFFF);
  return x.value;
}
static __device__ __forceinline__ double positive64(u64 r) {
  Double x;
  x.bits = (u64)(963 + (r >> 56) % 120) << 52 | (r & 0xFFFFFFFFFFFFFull);
  return x.value;
}

#ifndef BERTH_HOST
#define APPROXIMATE(name, text)                                \
  static __device__ __forceinline__ float name(float x) {      \
    float y;                                                   \
    asm volatile(text " %0, %1;" : "=f"(y) : "f"(x));          \
    return y;                                                  \
  }
APPROXIMATE(sin_of, "sin.approx.f32")
APPROXIMATE(cos_of, "cos.approx.f32")
APPROXIMATE(exp2_of, "ex2.approx.f32")
APPROXIMATE(log2_of, "lg2.approx.f32")
APPROXIMATE(rsqrt_of, "rsqrt.approx.f32")
APPROXIMATE(rcp_of, "rcp.approx.f32")
APPROXIMATE(sqrt_of, "sqrt.approx.f32")
#if __CUDA_ARCH__ >= 750
APPROXIMATE(tanh_of, "tanh.approx.f32")
#else
static __device__ __forceinline__ float tanh_of(float x) { return tanhf(x); }
#endif
#define SQRT_ROUNDED(x) __fsqrt_rn(x)
#define DIV_ROUNDED(x, y) __fdiv_rn(x, y)
#define RCP_ROUNDED(x) __frcp_rn(x)
#define SQRT_ROUNDED64(x) __dsqrt_rn(x)
#define DIV_ROUNDED64(x, y) __ddiv_rn(x, y)
#define UNIT_RESULT(v) (v)
#endif

static __device__ __forceinline__ u64 result_of(u64 i, u64 seed, u32 function) {
  u64 r = mix64(i, seed), s = mix64(i, ~seed);
  Single y;
  Double wide;
  switch (function) {
    case SIN: y.value = sin_of(even(r, 1.0f / 2097152.0f)); break;  // within 4
    case COS: y.value = cos_of(even(r, 1.0f / 2097152.0f)); break;
    case EXP2: y.value = exp2_of(even(r, 1.0f / 131072.0f)); break;  // within 64
    case LOG2: y.value = log2_of(positive(r)); break;
    case RSQRT: y.value = rsqrt_of(positive(r)); break;
    case RCP: y.value = rcp_of(positive(r)); break;
    case SQRT: y.value = sqrt_of(positive(r)); break;
    case TANH: y.value = tanh_of(even(r, 1.0f / 2097152.0f)); break;
    case SQRT_RN: y.value = SQRT_ROUNDED(positive(r)); break;
    case RCP_RN: y.value = RCP_ROUNDED(positive(r)); break;
    case DIV_RN: y.value = DIV_ROUNDED(positive(r), positive(s)); break;
    case SQRT_RN64: wide.value = SQRT_ROUNDED64(positive64(r)); return UNIT_RESULT(wide.bits);
    case DIV_RN64: wide.value = DIV_ROUNDED64(positive64(r), positive64(s)); return UNIT_RESULT(wide.bits);
    default: y.bits = 0;
  }
  return UNIT_RESULT((u64)y.bits);
}

KERNEL fill_function(u64* to, u64 n, u64 seed, u32 function) {
#pragma unroll 1  // each turn holds all functions
  for (u64 i = THREAD; i < n; i += STRIDE) to[i] = result_of(i, seed, function);
}
HOST_KERNEL(fill_function)

// Every block computes all values again, each on other threads than the block before it. An index is that of the value
// plus `n` times that of the block. Units of one device are alike, so each bit has to be the same on all of them.
KERNEL check_function(const u64* want, u32 n, u64 seed, u32 function, ErrorLog* log, u32* where) {
  SIGN(where);
#pragma unroll 1
  for (u32 k = threadIdx.x; k < n; k += blockDim.x) {
    u32 i = (k + blockIdx.x) % n;
    u64 got = result_of(i, seed, function);
    if (got != want[i]) mismatch(log, (u64)blockIdx.x * n + i, got, want[i]);
  }
}
HOST_BLOCKS(check_function)
