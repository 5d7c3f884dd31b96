// Patterns for device memory. `base` is the index of p[0] in the whole tested memory, so that chunks that
// were allocated one by one still hold one unbroken sequence.
#include "common.cuh"

// --- a value of its own for every address ---------------------------------------------------------------
KERNEL fill_mix(u64* p, u64 n, u64 base, u64 seed, u64 flip) {
  for (u64 i = THREAD; i < n; i += STRIDE) p[i] = mix64(base + i, seed) ^ flip;
}
HOST_KERNEL(fill_mix)

KERNEL check_mix(const u64* p, u64 n, u64 base, u64 seed, u64 flip, ErrorLog* log) {
  for (u64 i = THREAD; i < n; i += STRIDE) {
    u64 want = mix64(base + i, seed) ^ flip, got = p[i];
    if (got != want) mismatch(log, base + i, got, want);
  }
}
HOST_KERNEL(check_mix)

// --- one pattern everywhere, inverted cell by cell (moving inversions) ----------------------------------
KERNEL fill_word(u64* p, u64 n, u64 pattern) {
  for (u64 i = THREAD; i < n; i += STRIDE) p[i] = pattern;
}
HOST_KERNEL(fill_word)

KERNEL invert_up(u64* p, u64 n, u64 base, u64 pattern, ErrorLog* log) {
  for (u64 i = THREAD; i < n; i += STRIDE) {
    u64 got = p[i];
    if (got != pattern) mismatch(log, base + i, got, pattern);
    p[i] = ~pattern;
  }
}
HOST_KERNEL(invert_up)

KERNEL invert_down(u64* p, u64 n, u64 base, u64 pattern, ErrorLog* log) {
  for (u64 k = THREAD; k < n; k += STRIDE) {
    u64 i = n - 1 - k, got = p[i];
    if (got != pattern) mismatch(log, base + i, got, pattern);
    p[i] = ~pattern;
  }
}
HOST_KERNEL(invert_down)

KERNEL check_word(const u64* p, u64 n, u64 base, u64 pattern, ErrorLog* log) {
  for (u64 i = THREAD; i < n; i += STRIDE) {
    u64 got = p[i];
    if (got != pattern) mismatch(log, base + i, got, pattern);
  }
}
HOST_KERNEL(check_word)

// --- a bit that walks: every cell holds each of the 64 bits alone, and its complement, over 64 steps ------
KERNEL fill_walk(u64* p, u64 n, u64 base, u64 step, u64 flip) {
  for (u64 i = THREAD; i < n; i += STRIDE) p[i] = (1ull << ((base + i + step) & 63)) ^ flip;
}
HOST_KERNEL(fill_walk)

KERNEL check_walk(const u64* p, u64 n, u64 base, u64 step, u64 flip, ErrorLog* log) {
  for (u64 i = THREAD; i < n; i += STRIDE) {
    u64 want = (1ull << ((base + i + step) & 63)) ^ flip, got = p[i];
    if (got != want) mismatch(log, base + i, got, want);
  }
}
HOST_KERNEL(check_walk)

// --- modulo 20: one cell in twenty is written once, its neighbours twice; only the one is read ------------
KERNEL fill_modulo(u64* p, u64 n, u64 base, u64 offset, u64 pattern, u64 others) {
  for (u64 i = THREAD; i < n; i += STRIDE) {
    bool mine = (base + i) % 20 == offset;
    if (mine != (others != 0)) p[i] = others ? ~pattern : pattern;
  }
}
HOST_KERNEL(fill_modulo)

KERNEL check_modulo(const u64* p, u64 n, u64 base, u64 offset, u64 pattern, ErrorLog* log) {
  for (u64 i = THREAD; i < n; i += STRIDE) {
    if ((base + i) % 20 != offset) continue;
    u64 got = p[i];
    if (got != pattern) mismatch(log, base + i, got, pattern);
  }
}
HOST_KERNEL(check_modulo)

// --- a sum over several devices: each has words of its own, and what they come to is known without adding them there.
// As whole words, which add up modulo 2^64; or, with `pair`, as two whole numbers in FP32, of 21 bits with their sign, so
// that the sums of up to 16 devices are exact in any order.
union Pair {
  float numbers[2];
  u64 word;
};
static __device__ __forceinline__ u64 part_of(u64 index, u64 seed, u64 rank) {
  return mix64(index, seed + rank * 0xD1B54A32D192ED03ull);
}
static __device__ __forceinline__ int number_of(u64 part, int half) {
  return (int)((part >> (32 * half)) & 0x1FFFFF) - 0x100000;
}

KERNEL fill_part(u64* p, u64 n, u64 seed, u64 rank, u64 pair) {
  for (u64 i = THREAD; i < n; i += STRIDE) {
    Pair made;
    made.word = part_of(i, seed, rank);
    if (pair) {
      int low = number_of(made.word, 0), high = number_of(made.word, 1);
      made.numbers[0] = (float)low;
      made.numbers[1] = (float)high;
    }
    p[i] = made.word;
  }
}
HOST_KERNEL(fill_part)

KERNEL check_sum(const u64* p, u64 n, u64 seed, u64 ranks, u64 pair, ErrorLog* log) {
  for (u64 i = THREAD; i < n; i += STRIDE) {
    u64 whole = 0;
    int low = 0, high = 0;
    for (u64 rank = 0; rank < ranks; rank++) {
      u64 part = part_of(i, seed, rank);
      whole += part;
      low += number_of(part, 0);
      high += number_of(part, 1);
    }
    Pair want;
    want.word = whole;
    if (pair) {
      want.numbers[0] = (float)low;
      want.numbers[1] = (float)high;
    }
    u64 got = p[i];
    if (got != want.word) mismatch(log, i, got, want.word);
  }
}
HOST_KERNEL(check_sum)

// --- comparison of two results, bit by bit ----------------------------------------------------------------
KERNEL compare_words(const u32* a, const u32* b, u64 n, ErrorLog* log) {
  for (u64 i = THREAD; i < n; i += STRIDE)
    if (a[i] != b[i]) mismatch(log, i, a[i], b[i]);
}
HOST_KERNEL(compare_words)

// --- the canary: one flipped bit, which the checker has to report at exactly this index -------------------
KERNEL flip_bit(u64* p, u64 index, u64 bit) {
  if (THREAD == 0) p[index] ^= 1ull << bit;
}
HOST_KERNEL(flip_bit)
