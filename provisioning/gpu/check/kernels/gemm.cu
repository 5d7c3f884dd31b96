// Products on the ordinary cores: C[m][n] = sum over k of A[m][k] * B[n][k], all row-major. The integer one is
// the independent reference. M and N are multiples of 64, K of 16. Block: 256 threads.
#include "common.cuh"

#define SIDE 64
#define DEEP 16

template <class In, class Acc>
static __device__ __forceinline__ void product(const In* a, const In* b, Acc* c, u32 n, u32 k, Acc (*as)[SIDE + 1],
                                               Acc (*bs)[SIDE + 1]) {
  u64 row0 = (u64)blockIdx.y * SIDE, col0 = (u64)blockIdx.x * SIDE;
  u32 t = threadIdx.x, ty = t / 16, tx = t % 16;
  Acc acc[4][4];
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) acc[i][j] = 0;
  for (u32 k0 = 0; k0 < k; k0 += DEEP) {
    for (u32 e = t; e < SIDE * DEEP; e += 256) {
      u32 r = e / DEEP, d = e % DEEP;
      as[d][r] = (Acc)a[(row0 + r) * k + k0 + d];
      bs[d][r] = (Acc)b[(col0 + r) * k + k0 + d];
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < DEEP; d++) {
      Acc x[4], y[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        x[i] = OPERAND_A(as[d][ty * 4 + i]);
        y[i] = OPERAND_B(bs[d][tx + 16 * i]);
      }
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) acc[i][j] += x[i] * y[j];
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) c[(row0 + ty * 4 + i) * n + col0 + tx + 16 * j] = acc[i][j];
}

KERNEL gemm_reference(const long long* a, const long long* b, long long* c, u32 n, u32 k) {
  __shared__ long long as[DEEP][SIDE + 1], bs[DEEP][SIDE + 1];
  product<long long, long long>(a, b, c, n, k, as, bs);
}
HOST_KERNEL(gemm_reference)

KERNEL gemm_fp32(const float* a, const float* b, float* c, u32 n, u32 k, u32* where) {
  SIGN(where);
  __shared__ float as[DEEP][SIDE + 1], bs[DEEP][SIDE + 1];
  product<float, float>(a, b, c, n, k, as, bs);
}
HOST_KERNEL(gemm_fp32)

KERNEL gemm_fp64(const double* a, const double* b, double* c, u32 n, u32 k, u32* where) {
  SIGN(where);
  __shared__ double as[DEEP][SIDE + 1], bs[DEEP][SIDE + 1];
  product<double, double>(a, b, c, n, k, as, bs);
}
HOST_KERNEL(gemm_fp64)
