// What all kernels share. The same source is compiled for devices by NVRTC and for the host by a C++
// compiler (with BERTH_HOST defined), so that its logic can be tested where there is no device.
#pragma once

typedef unsigned long long u64;
typedef unsigned int u32;

#ifdef BERTH_HOST
#include "host_shim.h"
#else
#define KERNEL extern "C" __global__ void
#define HOST_KERNEL(name)
#define HOST_BLOCKS(name)
// What a multiplier reads; on the host a test makes bits of it dead.
#define OPERAND_A(v) (v)
#define OPERAND_B(v) (v)
struct __align__(16) Words2 {
  u64 x, y;
};
static __device__ __forceinline__ u64 atomic_add(u64* p, u64 v) { return atomicAdd(p, v); }
static __device__ __forceinline__ u64 atomic_min(u64* p, u64 v) { return atomicMin(p, v); }
static __device__ __forceinline__ u64 atomic_or(u64* p, u64 v) { return atomicOr(p, v); }
static __device__ __forceinline__ u64 atomic_xor(u64* p, u64 v) { return atomicXor(p, v); }
static __device__ __forceinline__ u32 sm_id() {
  u32 id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}
static __device__ __forceinline__ u64 now_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
#endif

#define THREAD ((u64)blockIdx.x * blockDim.x + threadIdx.x)
#define STRIDE ((u64)gridDim.x * blockDim.x)
// Which multiprocessor has made a block's part of a product; `where` has a word for each block, or is null.
#define SIGN(where) \
  if (where && threadIdx.x == 0) where[blockIdx.y * gridDim.x + blockIdx.x] = sm_id()

// splitmix64 of the index: every word of a device's memory holds another value, so that an address line
// that is stuck or crossed cannot hide.
static __device__ __forceinline__ u64 mix64(u64 index, u64 seed) {
  u64 z = index * 0x9E3779B97F4A7C15ull + seed;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// What a checker reports. `first` starts as all ones; up to 16 mismatches are kept whole. All patterns are
// the check's own: no byte of a user ever reaches this log.
struct ErrorLog {
  u64 count;
  u64 first;
  u64 bits;
  u64 kept;
  u64 index[16];
  u64 got[16];
  u64 want[16];
};

static __device__ __forceinline__ void mismatch(ErrorLog* log, u64 index, u64 got, u64 want) {
  atomic_add(&log->count, 1);
  atomic_min(&log->first, index);
  atomic_or(&log->bits, got ^ want);
  u64 slot = atomic_add(&log->kept, 1);
  if (slot < 16) {
    log->index[slot] = index;
    log->got[slot] = got;
    log->want[slot] = want;
  }
}
