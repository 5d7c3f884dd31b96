// Memory inside the chip: shared memory, and the caches L1 and L2. All words have another value, and each check reads
// them in several orders, so that every bank and every line is reached from several threads.
#include "common.cuh"

#define SHARED_WORDS 6144  // 48 KiB
#define SHARED_HALVES (2 * SHARED_WORDS)
#define ORDERS 8

#ifndef BERTH_HOST
#define SHARED_AT(i) (i)
#define SHARED_READ(v) (v)
static __device__ __forceinline__ u64 load_l1(const u64* p) {
  u64 v;
  asm volatile("ld.global.ca.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
static __device__ __forceinline__ u64 load_l2(const u64* p) {
  u64 v;
  asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
static __device__ __forceinline__ void store_l2(u64* p, u64 v) {
  asm volatile("st.global.cg.u64 [%0], %1;" : : "l"(p), "l"(v) : "memory");
}
#endif

// The `i`-th place of an order over `n` places, a multiple of 32. Orders 0 to 5 go in steps of 1, 2, 4 to 32, so that as
// many lanes of a warp meet in one bank; 6 goes backwards; 7 spreads by a step without a factor in common with `n`.
static __device__ __forceinline__ u32 place_of(u32 i, u32 n, u32 order) {
  if (order < 6) {
    u32 rows = n >> order;
    return i % rows << order | i / rows;
  }
  return order == 6 ? n - 1 - i : i * 31 % n;
}

static __device__ __forceinline__ void check_shared(const volatile u64* words, u64 seed, u64 flip, u32 order, ErrorLog* log) {
  const volatile u32* halves = (const volatile u32*)words;
#pragma unroll 1  // short code: speed is not measured here
  for (u32 i = threadIdx.x; i < SHARED_HALVES; i += blockDim.x) {
    u32 place = place_of(i, SHARED_HALVES, order), word = place / 2;
    u32 shift = place % 2 * 32;
    u64 want = (mix64(word, seed) ^ flip) >> shift & 0xFFFFFFFF;
    u64 got = SHARED_READ((u64)halves[2 * SHARED_AT(word) + place % 2] << shift) >> shift;
    if (got != want) mismatch(log, (u64)blockIdx.x * SHARED_WORDS + word, got << shift, want << shift);
  }
}

// Address pattern in all orders, its complement, then moving inversions. With `flip_at` below SHARED_WORDS, a canary: the
// first block flips that bit of its pattern, and it is read once. An index is that of the word plus SHARED_WORDS times
// that of the block.
KERNEL test_shared(u64 seed, u64 flip_at, u64 flip_bit, ErrorLog* log, u32* where) {
  __shared__ u64 storage[SHARED_WORDS];
  volatile u64* words = storage;
  SIGN(where);
  u64 own = seed + blockIdx.x * 0xD1B54A32D192ED03ull;
#pragma unroll 1
  for (u32 complement = 0; complement < 2; complement++) {
    u64 flip = complement ? ~0ull : 0;
    for (u32 i = threadIdx.x; i < SHARED_WORDS; i += blockDim.x) words[SHARED_AT(i)] = mix64(i, own) ^ flip;
    __syncthreads();
    if (flip_at < SHARED_WORDS) {
      if (blockIdx.x == 0 && threadIdx.x == 0) words[flip_at] ^= 1ull << flip_bit;
      __syncthreads();
      check_shared(words, own, flip, 0, log);
      return;
    }
#pragma unroll 1
    for (u32 order = 0; order < ORDERS; order++) check_shared(words, own, flip, order, log);
    __syncthreads();
  }
#pragma unroll 1
  for (u32 step = 0; step < 4; step++) {  // 0s, 1s, and alternating bits both ways
    u64 pattern = step == 0 ? 0 : step == 1 ? ~0ull : step == 2 ? 0xAAAAAAAAAAAAAAAAull : 0x5555555555555555ull;
    for (u32 i = threadIdx.x; i < SHARED_WORDS; i += blockDim.x) words[SHARED_AT(i)] = pattern;
    __syncthreads();
#pragma unroll 1
    for (u32 down = 0; down < 2; down++) {
#pragma unroll 1
      for (u32 k = threadIdx.x; k < SHARED_WORDS; k += blockDim.x) {
        u32 i = down ? SHARED_WORDS - 1 - k : k;
        u64 want = down ? ~pattern : pattern, got = SHARED_READ(words[SHARED_AT(i)]);
        if (got != want) mismatch(log, (u64)blockIdx.x * SHARED_WORDS + i, got, want);
        words[SHARED_AT(i)] = ~want;
      }
      __syncthreads();
    }
  }
}
HOST_BLOCKS(test_shared)

// For its speed: all words of a block `rounds` times, without conflicts. `never` is not the XOR of what is read.
KERNEL read_shared(u64 rounds, u64 never, u64* out) {
  __shared__ u64 storage[SHARED_WORDS];
  volatile u64* words = storage;
  for (u32 i = threadIdx.x; i < SHARED_WORDS; i += blockDim.x) words[i] = i;
  __syncthreads();
  u64 x = 0;
  for (u64 r = 0; r < rounds; r++)
    for (u32 i = threadIdx.x; i < SHARED_WORDS; i += blockDim.x) x ^= words[i];
  if (x == never) *out = x;
}
HOST_BLOCKS(read_shared)

// Each block reads its own `window` words in all orders: the first time into L1, afterwards from it.
KERNEL check_l1(const u64* p, u32 n, u32 window, u64 seed, u32 orders, ErrorLog* log, u32* where) {
  SIGN(where);
  u32 base = blockIdx.x % (n / window) * window;
#pragma unroll 1
  for (u32 order = 0; order < orders; order++)
#pragma unroll 1
    for (u32 i = threadIdx.x; i < window; i += blockDim.x) {
      u32 place = place_of(i, window, order);
      u64 want = mix64(base + place, seed), got = load_l1(p + base + place);
      if (got != want) mismatch(log, (u64)blockIdx.x * window + place, got, want);
    }
}
HOST_BLOCKS(check_l1)

// `ahead`: each thread starts so many words further (below `n`), so that every multiprocessor reads what others have read.
KERNEL check_l2(const u64* p, u64 n, u64 seed, u64 flip, u64 ahead, ErrorLog* log) {
#pragma unroll 1
  for (u64 k = THREAD; k < n; k += STRIDE) {
    u64 i = k + ahead < n ? k + ahead : k + ahead - n, want = mix64(i, seed) ^ flip, got = load_l2(p + i);
    if (got != want) mismatch(log, i, got, want);
  }
}
HOST_KERNEL(check_l2)

KERNEL invert_l2(u64* p, u64 n, u64 seed, u64 flip, u64 down, ErrorLog* log) {
#pragma unroll 1
  for (u64 k = THREAD; k < n; k += STRIDE) {
    u64 i = down ? n - 1 - k : k, want = mix64(i, seed) ^ flip, got = load_l2(p + i);
    if (got != want) mismatch(log, i, got, want);
    store_l2(p + i, ~want);
  }
}
HOST_KERNEL(invert_l2)
