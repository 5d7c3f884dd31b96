// Operands and results of the matrix products. Types: 0 fp32 (also for TF32), 1 fp16, 2 bf16, 3 fp8 (E4M3),
// 4 fp64.
#include "common.cuh"

// One of -2, -1, 1, 2. No zero: then no product is a negative zero, and a result can be compared bit by bit.
KERNEL fill_integers(signed char* p, u64 n, u64 seed) {
  for (u64 i = THREAD; i < n; i += STRIDE) {
    int v = (int)(mix64(i, seed) >> 62);
    p[i] = (signed char)(v < 2 ? v - 2 : v - 1);
  }
}
HOST_KERNEL(fill_integers)

static __device__ __forceinline__ u32 bits_of(float v) {
  union {
    float f;
    u32 u;
  } c;
  c.f = v;
  return c.u;
}

static __device__ __forceinline__ u64 bits_of(double v) {
  union {
    double f;
    u64 u;
  } c;
  c.f = v;
  return c.u;
}

// Rounds towards zero; what is too small for the type becomes zero. Exact for the integers used here.
static __device__ __forceinline__ u32 narrow(float v, int exponent_bits, int mantissa_bits) {
  u32 b = bits_of(v), sign = b >> 31;
  int e = (int)((b >> 23) & 255) - 127 + (1 << (exponent_bits - 1)) - 1;
  if (e <= 0 || v == 0.0f) return sign << (exponent_bits + mantissa_bits);
  return sign << (exponent_bits + mantissa_bits) | (u32)e << mantissa_bits |
         (b & 0x7FFFFFu) >> (23 - mantissa_bits);
}

static __device__ __forceinline__ void put(void* p, u64 i, float v, u32 type) {
  if (type == 0) ((float*)p)[i] = v;
  if (type == 1) ((unsigned short*)p)[i] = (unsigned short)narrow(v, 5, 10);
  if (type == 2) ((unsigned short*)p)[i] = (unsigned short)narrow(v, 8, 7);
  if (type == 3) ((unsigned char*)p)[i] = (unsigned char)narrow(v, 4, 3);
  if (type == 4) ((double*)p)[i] = (double)v;
}

KERNEL encode(void* to, const signed char* from, u64 n, u32 type) {
  for (u64 i = THREAD; i < n; i += STRIDE) put(to, i, (float)from[i], type);
}
HOST_KERNEL(encode)

// Even in (-1, 1). Random, for zeros switch fewer transistors and run faster.
KERNEL fill_random(void* to, u64 n, u64 seed, u32 type) {
  for (u64 i = THREAD; i < n; i += STRIDE) {
    float v = (float)(u32)(mix64(i, seed) >> 40) * (2.0f / 16777216.0f) - 1.0f;
    put(to, i, v, type);
  }
}
HOST_KERNEL(fill_random)

// The result against the exact integer result, bit by bit: no tolerance, no cast of the value under test.
KERNEL compare_f32(const u32* c, const int* want, u64 n, ErrorLog* log) {
  for (u64 i = THREAD; i < n; i += STRIDE) {
    u32 w = bits_of((float)want[i]);
    if (c[i] != w) mismatch(log, i, c[i], w);
  }
}
HOST_KERNEL(compare_f32)

KERNEL compare_f64(const u64* c, const int* want, u64 n, ErrorLog* log) {
  for (u64 i = THREAD; i < n; i += STRIDE) {
    u64 w = bits_of((double)want[i]);
    if (c[i] != w) mismatch(log, i, c[i], w);
  }
}
HOST_KERNEL(compare_f64)
