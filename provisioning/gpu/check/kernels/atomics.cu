// Atomic operations of many threads on few cells, in global and in shared memory. Their order is not known, their result
// is: sums, extremes and bit operations are the same in any order, and the numbers in floating point are small integers,
// whose sums are exact. A cell has 64 bits; 32-bit operations use both of its halves.
#include "common.cuh"

enum { ADD64, ADD32, MIN64, MAX64, MIN32, MAX32, AND64, OR64, XOR64, CAS64, CAS32, ADD_F32, ADD_F64 };
#define SHARED_CELLS 256

union Cell {
  u64 word;
  u32 half[2];
  float number[2];
  double wide;
};

#ifndef BERTH_HOST
template <class T>
static __device__ __forceinline__ void add_by_cas(T* p, T v) {
  T seen = *(volatile T*)p, before;
  do {
    before = seen;
    seen = atomicCAS(p, before, before + v);
  } while (seen != before);
}
#define UNIT_ADD(p, v) atomicAdd(p, v)
#define UNIT_MIN(p, v) atomicMin(p, v)
#define UNIT_MAX(p, v) atomicMax(p, v)
#define UNIT_AND(p, v) atomicAnd(p, v)
#define UNIT_OR(p, v) atomicOr(p, v)
#define UNIT_XOR(p, v) atomicXor(p, v)
#define UNIT_CAS_ADD(p, v) add_by_cas(p, v)
#endif

static __device__ __forceinline__ int small_of(u64 v, int half) { return (int)(v >> (32 * half) & 15) - 8; }
// What the `i`-th operation brings to its cell. With AND and OR some bits stay as the cell's own pattern has them.
static __device__ __forceinline__ u64 operand_of(u64 i, u64 cell, u64 seed, u32 op) {
  u64 r = mix64(i, seed);
  if (op == AND64) return r | mix64(cell, ~seed);
  if (op == OR64) return r & mix64(cell, ~seed);
  return r;
}
static __device__ __forceinline__ u64 start_of(u32 op) {
  if (op == MIN64 || op == AND64) return ~0ull;
  return op == MIN32 ? 0x7FFFFFFF7FFFFFFFull : 0;
}
static __device__ __forceinline__ void apply(Cell* cell, u64 v, u32 op) {
  u32 low = (u32)v, high = (u32)(v >> 32);
  switch (op) {
    case ADD64: UNIT_ADD(&cell->word, v); break;
    case ADD32: UNIT_ADD(&cell->half[0], low); UNIT_ADD(&cell->half[1], high); break;
    case MIN64: UNIT_MIN(&cell->word, v); break;
    case MAX64: UNIT_MAX(&cell->word, v); break;
    case MIN32: UNIT_MIN((int*)&cell->half[0], (int)low); UNIT_MIN((int*)&cell->half[1], (int)high); break;
    case MAX32: UNIT_MAX(&cell->half[0], low); UNIT_MAX(&cell->half[1], high); break;
    case AND64: UNIT_AND(&cell->word, v); break;
    case OR64: UNIT_OR(&cell->word, v); break;
    case XOR64: UNIT_XOR(&cell->word, v); break;
    case CAS64: UNIT_CAS_ADD(&cell->word, v); break;
    case CAS32: UNIT_CAS_ADD(&cell->half[0], low); UNIT_CAS_ADD(&cell->half[1], high); break;
    case ADD_F32: UNIT_ADD(&cell->number[0], (float)small_of(v, 0)); UNIT_ADD(&cell->number[1], (float)small_of(v, 1)); break;
    case ADD_F64: UNIT_ADD(&cell->wide, (double)small_of(v, 0)); break;
  }
}
// The same on ordinary registers.
struct Total {
  u64 word;
  u32 low, high;
  long long first, second;
};
static __device__ __forceinline__ void gather(Total* t, u64 v, u32 op) {
  u32 low = (u32)v, high = (u32)(v >> 32);
  t->first += small_of(v, 0);
  t->second += small_of(v, 1);
  switch (op) {
    case MIN64: t->word = v < t->word ? v : t->word; break;
    case MAX64: t->word = v > t->word ? v : t->word; break;
    case MIN32: t->low = (int)low < (int)t->low ? low : t->low; t->high = (int)high < (int)t->high ? high : t->high; break;
    case MAX32: t->low = low > t->low ? low : t->low; t->high = high > t->high ? high : t->high; break;
    case AND64: t->word &= v; break;
    case OR64: t->word |= v; break;
    case XOR64: t->word ^= v; break;
    default: t->word += v; t->low += low; t->high += high;
  }
}
static __device__ __forceinline__ u64 word_of(const Total& t, u32 op) {
  Cell c;
  c.word = t.word;
  if (op == ADD32 || op == MIN32 || op == MAX32 || op == CAS32) c.half[0] = t.low, c.half[1] = t.high;
  if (op == ADD_F32) c.number[0] = (float)t.first, c.number[1] = (float)t.second;
  if (op == ADD_F64) c.wide = (double)t.first;
  return c.word;
}
static __device__ __forceinline__ u64 seed_of(u64 seed, u64 block) { return seed + block * 0xD1B54A32D192ED03ull; }

KERNEL start_atomics(u64* cells, u64 count, u32 op) {
  for (u64 i = THREAD; i < count; i += STRIDE) cells[i] = start_of(op);
}
HOST_KERNEL(start_atomics)

// `group` neighbours in a row use the same cell: 32 is a whole warp on one.
KERNEL run_atomics(u64* cells, u32 count, u32 n, u64 seed, u32 op, u32 group) {
#pragma unroll 1  // the loops of this file hold all operations: unrolled they would be many times as long
  for (u32 i = THREAD; i < n; i += STRIDE) {
    u32 cell = i / group % count;
    apply((Cell*)cells + cell, operand_of(i, cell, seed, op), op);
  }
}
HOST_KERNEL(run_atomics)

// Each block has cells of its own; afterwards they lie in `cells` one block after another.
KERNEL run_atomics_shared(u64* cells, u32 n, u64 seed, u32 op, u32 group, u32* where) {
  __shared__ Cell mine[SHARED_CELLS];
  SIGN(where);
  for (u32 c = threadIdx.x; c < SHARED_CELLS; c += blockDim.x) mine[c].word = start_of(op);
  __syncthreads();
#pragma unroll 1
  for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
    u32 cell = i / group % SHARED_CELLS;
    apply(mine + cell, operand_of(i, cell, seed_of(seed, blockIdx.x), op), op);
  }
  __syncthreads();
  for (u32 c = threadIdx.x; c < SHARED_CELLS; c += blockDim.x) cells[(u64)blockIdx.x * SHARED_CELLS + c] = mine[c].word;
}
HOST_BLOCKS(run_atomics_shared)

// `per`: cells of each block. `seen` becomes 1 by an ordinary store, for the log itself is written by atomic operations.
KERNEL check_atomics(const u64* cells, u32 count, u32 per, u32 n, u64 seed, u32 op, u32 group, u64* seen, ErrorLog* log) {
#pragma unroll 1
  for (u32 at = THREAD; at < count; at += STRIDE) {
    u32 cell = at % per;
    u64 own = seed_of(seed, at / per);
    Total total = {start_of(op), (u32)start_of(op), (u32)(start_of(op) >> 32), 0, 0};
#pragma unroll 1
    for (u32 first = cell * group; first < n; first += per * group)
#pragma unroll 1
      for (u32 i = first; i < first + group && i < n; i++) gather(&total, operand_of(i, cell, own, op), op);
    u64 want = word_of(total, op), got = cells[at];
    if (got != want) {
      *seen = 1;
      mismatch(log, at, got, want);
    }
  }
}
HOST_KERNEL(check_atomics)
