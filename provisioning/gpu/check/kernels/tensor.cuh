// Products on the tensor cores by mma.sync, the same for every input type: a step along K is eight 32-bit words
// (16 half, 8 TF32, 32 FP8 or INT8, 64 FP4 values) of a row of A and of a row of B (B is stored [n][k]). `Op` multiplies
// and accumulates in its type `Sum`: fp32, or int32 for integers. M and N are multiples of 128, K of 16 words.
// Block: 256 threads = 8 warps, 2 x 4, each 64 x 32 of C.
#pragma once
#include "common.cuh"

#define TILE 128
#define WORDS 16
#define PITCH 20  // 16 words and 4 of padding: the eight rows a warp reads at once fall into different banks

template <class Op>
static __device__ __forceinline__ void tensor(const u32* a, const u32* b, typename Op::Sum* c, u32 n, u32 words,
                                              u32 (*as)[PITCH], u32 (*bs)[PITCH]) {
  u64 row0 = (u64)blockIdx.y * TILE, col0 = (u64)blockIdx.x * TILE;
  u32 t = threadIdx.x, lane = t % 32, warp = t / 32, group = lane / 4, quad = lane % 4;
  u32 wr = (warp / 4) * 64, wc = (warp % 4) * 32;
  typename Op::Sum acc[4][4][4];
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) acc[i][j][e] = 0;

  // Each thread carries eight words of A and of B: half of a row of the tile.
  u32 lr = t / 2, lw = (t % 2) * 8;
  const u32* ap = a + (row0 + lr) * words + lw;
  const u32* bp = b + (col0 + lr) * words + lw;
  Words2 na0 = *(const Words2*)ap, na1 = *(const Words2*)(ap + 4);
  Words2 nb0 = *(const Words2*)bp, nb1 = *(const Words2*)(bp + 4);
  for (u32 w0 = 0; w0 < words; w0 += WORDS) {
    *(Words2*)&as[lr][lw] = na0;
    *(Words2*)&as[lr][lw + 4] = na1;
    *(Words2*)&bs[lr][lw] = nb0;
    *(Words2*)&bs[lr][lw + 4] = nb1;
    __syncthreads();
    if (w0 + WORDS < words) {  // the next tile is on its way while this one is multiplied
      na0 = *(const Words2*)(ap + w0 + WORDS);
      na1 = *(const Words2*)(ap + w0 + WORDS + 4);
      nb0 = *(const Words2*)(bp + w0 + WORDS);
      nb1 = *(const Words2*)(bp + w0 + WORDS + 4);
    }
#pragma unroll
    for (int s = 0; s < WORDS; s += 8) {
      u32 fa[4][4], fb[4][2];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32 r = wr + i * 16 + group;
        fa[i][0] = as[r][s + quad];
        fa[i][1] = as[r + 8][s + quad];
        fa[i][2] = as[r][s + quad + 4];
        fa[i][3] = as[r + 8][s + quad + 4];
      }
#pragma unroll
      for (int j = 0; j < 4; j++) {
        u32 r = wc + j * 8 + group;
        fb[j][0] = bs[r][s + quad];
        fb[j][1] = bs[r][s + quad + 4];
      }
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) Op::mma(acc[i][j], fa[i], fb[j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      u64 r = row0 + wr + i * 16 + group, col = col0 + wc + j * 8 + quad * 2;
      c[r * n + col] = acc[i][j][0];
      c[r * n + col + 1] = acc[i][j][1];
      c[(r + 8) * n + col] = acc[i][j][2];
      c[(r + 8) * n + col + 1] = acc[i][j][3];
    }
}

#define TENSOR_KERNEL(name, Op)                                                     \
  KERNEL name(const u32* a, const u32* b, Op::Sum* c, u32 n, u32 words, u32* where) { \
    __shared__ __align__(16) u32 as[TILE][PITCH];                                   \
    __shared__ __align__(16) u32 bs[TILE][PITCH];                                   \
    SIGN(where);                                                                    \
    tensor<Op>(a, b, c, n, words, as, bs);                                          \
  }                                                                                 \
  HOST_KERNEL(name)
