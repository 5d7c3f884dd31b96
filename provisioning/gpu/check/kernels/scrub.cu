// What is left in memory between two tenants. Only a count and an OR leave the device, never contents.
#include "common.cuh"

extern "C" __global__ void count_nonzero(const unsigned long long* p, unsigned long long n,
                                         unsigned long long* out) {
  u64 mine = 0;
  for (u64 i = THREAD; i < n; i += STRIDE) mine += p[i] != 0;
  if (mine) atomic_add(out, mine);
}
HOST_KERNEL(count_nonzero)

extern "C" __global__ void or_reduce(const unsigned long long* p, unsigned long long n,
                                     unsigned long long* out) {
  u64 mine = 0;
  for (u64 i = THREAD; i < n; i += STRIDE) mine |= p[i];
  if (mine) atomic_or(out, mine);
}
HOST_KERNEL(or_reduce)
