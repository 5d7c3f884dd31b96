// Streams of 16 bytes a thread; four loads are in flight before the first store. Also the gate, which
// holds a stream until everything behind it has been queued, so that queueing is not measured.
#include "common.cuh"

KERNEL copy16(Words2* to, const Words2* from, u64 n) {
  u64 s = STRIDE, i = THREAD;
  for (; i + 3 * s < n; i += 4 * s) {
    Words2 a = from[i], b = from[i + s], c = from[i + 2 * s], d = from[i + 3 * s];
    to[i] = a;
    to[i + s] = b;
    to[i + 2 * s] = c;
    to[i + 3 * s] = d;
  }
  for (; i < n; i += s) to[i] = from[i];
}
HOST_KERNEL(copy16)

// The XOR of all words goes to *out, so that no load can be left out. One atomic a block: with one a thread the
// device did nothing else (82 GB/s of 3350 on an H100).
KERNEL read16(const Words2* from, u64 n, u64* out) {
  __shared__ u64 parts[256];
  u64 s = STRIDE, i = THREAD, x = 0;
  for (; i + 3 * s < n; i += 4 * s) {
    Words2 a = from[i], b = from[i + s], c = from[i + 2 * s], d = from[i + 3 * s];
    x ^= a.x ^ a.y ^ b.x ^ b.y ^ c.x ^ c.y ^ d.x ^ d.y;
  }
  for (; i < n; i += s) x ^= from[i].x ^ from[i].y;
  u32 t = threadIdx.x;
  parts[t] = x;
  __syncthreads();
  for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
    if (t < half) parts[t] ^= parts[t + half];
    __syncthreads();
  }
  if (t == 0) atomic_xor(out, parts[0]);
}
HOST_KERNEL(read16)

KERNEL write16(Words2* to, u64 n, u64 value) {
  Words2 w;
  w.x = value;
  w.y = ~value;
  for (u64 i = THREAD; i < n; i += STRIDE) to[i] = w;
}
HOST_KERNEL(write16)

KERNEL check16(const Words2* p, u64 n, u64 value, ErrorLog* log) {
  for (u64 i = THREAD; i < n; i += STRIDE) {
    if (p[i].x != value) mismatch(log, 2 * i, p[i].x, value);
    if (p[i].y != ~value) mismatch(log, 2 * i + 1, p[i].y, ~value);
  }
}
HOST_KERNEL(check16)

// Waits for *open, for at most `max_ns`: a gate must never be the thing that hangs. out[0] becomes 1 when the
// gate was opened, 2 when it gave up (the measurement behind it is then worth nothing).
KERNEL gate(const volatile u32* open, u64 max_ns, volatile u32* out) {
  if (THREAD != 0) return;
  u64 start = now_ns();
  while (*open == 0) {
    if (now_ns() - start > max_ns) {
      *out = 2;
      return;
    }
  }
  *out = 1;
}
HOST_KERNEL(gate)
