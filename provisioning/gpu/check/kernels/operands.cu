// Operands and results of the matrix products. Types: 0 fp32, 1 fp16, 2 bf16, 3 fp8 (E4M3), 4 fp64, 5 tf32 (in
// 32-bit words whose last 13 bits are zero, which a tensor core does not read), 6 int8, 7 fp4 (E2M1, two in a byte,
// the first in its lower half).
#include "common.cuh"

// Integers of up to `bits` bits, of either sign, in rows of `depth`; with 0 bits one of -2, -1, 1, 2. All the bits
// of a mantissa take part, which powers of two alone would leave unread. One element in `gap` of a row is not zero,
// at another place in each row: so few that the sums stay exact where the products are long. A row is never zero
// as a whole, so that no sum is a negative zero, and a result can be compared bit by bit.
KERNEL fill_integers(long long* p, u64 n, u64 seed, u32 bits, u32 depth, u32 gap) {
  for (u64 i = THREAD; i < n; i += STRIDE) {
    u64 r = mix64(i, seed), mask = (1ull << bits) - 1, size = r & mask;
    if (bits == 0) size = 1 + (r & 1);
    if (size == 0) size = mask;
    long long v = r >> 63 ? -(long long)size : (long long)size;
    p[i] = (i / depth + i % depth) % gap ? 0 : v;
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
  if (type == 5) ((u32*)p)[i] = bits_of(v) & ~0x1FFFu;
  if (type == 6) ((signed char*)p)[i] = (signed char)(int)v;
}

static __device__ __forceinline__ void put_pair(void* p, u64 i, float first, float second) {
  ((unsigned char*)p)[i] = (unsigned char)(narrow(first, 2, 1) | narrow(second, 2, 1) << 4);
}

KERNEL encode(void* to, const long long* from, u64 n, u32 type) {
  if (type == 7) {
    for (u64 i = THREAD; i < n / 2; i += STRIDE) put_pair(to, i, (float)from[2 * i], (float)from[2 * i + 1]);
    return;
  }
  for (u64 i = THREAD; i < n; i += STRIDE) {
    if (type == 4)
      ((double*)to)[i] = (double)from[i];  // by way of a float it would lose bits
    else
      put(to, i, (float)from[i], type);
  }
}
HOST_KERNEL(encode)

// Even in (-1, 1); of int8 in (-128, 128), of fp4 in (-4, 4). Random, for zeros switch fewer transistors and run faster.
static __device__ __forceinline__ float random_of(u64 i, u64 seed) {
  return (float)(u32)(mix64(i, seed) >> 40) * (2.0f / 16777216.0f) - 1.0f;
}

KERNEL fill_random(void* to, u64 n, u64 seed, u32 type) {
  if (type == 7) {
    for (u64 i = THREAD; i < n / 2; i += STRIDE)
      put_pair(to, i, 4.0f * random_of(2 * i, seed), 4.0f * random_of(2 * i + 1, seed));
    return;
  }
  float scale = type == 6 ? 128.0f : 1.0f;
  for (u64 i = THREAD; i < n; i += STRIDE) put(to, i, scale * random_of(i, seed), type);
}
HOST_KERNEL(fill_random)

// The result against the exact integer result, bit by bit: no tolerance, no cast of the value under test.
KERNEL compare_f32(const u32* c, const long long* want, u64 n, ErrorLog* log) {
  for (u64 i = THREAD; i < n; i += STRIDE) {
    u32 w = bits_of((float)want[i]);
    if (c[i] != w) mismatch(log, i, c[i], w);
  }
}
HOST_KERNEL(compare_f32)

KERNEL compare_i32(const u32* c, const long long* want, u64 n, ErrorLog* log) {
  for (u64 i = THREAD; i < n; i += STRIDE) {
    u32 w = (u32)want[i];
    if (c[i] != w) mismatch(log, i, c[i], w);
  }
}
HOST_KERNEL(compare_i32)

KERNEL compare_f64(const u64* c, const long long* want, u64 n, ErrorLog* log) {
  for (u64 i = THREAD; i < n; i += STRIDE) {
    u64 w = bits_of((double)want[i]);
    if (c[i] != w) mismatch(log, i, c[i], w);
  }
}
HOST_KERNEL(compare_f64)
