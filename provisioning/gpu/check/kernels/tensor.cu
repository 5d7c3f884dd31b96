// Products on the tensor cores: one kernel for each input type (see tensor.cuh).
#include "tensor.cuh"

#ifndef BERTH_HOST
#define MMA4(text)                                                                             \
  asm volatile(text " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                   \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

struct Fp16 {
  typedef float Sum;
  static __device__ __forceinline__ void mma(float* c, const u32* a, const u32* b) {
#if __CUDA_ARCH__ >= 800
    MMA4("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32");
#else
    for (int h = 0; h < 2; h++)
      asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                   : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                   : "r"(a[2 * h]), "r"(a[2 * h + 1]), "r"(b[h]));
#endif
  }
};
#if __CUDA_ARCH__ >= 800
struct Bf16 {
  typedef float Sum;
  static __device__ __forceinline__ void mma(float* c, const u32* a, const u32* b) {
    MMA4("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32");
  }
};
struct Tf32 {
  typedef float Sum;
  static __device__ __forceinline__ void mma(float* c, const u32* a, const u32* b) {
    MMA4("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32");
  }
};
#endif
#if __CUDA_ARCH__ >= 890
struct Fp8 {
  typedef float Sum;
  static __device__ __forceinline__ void mma(float* c, const u32* a, const u32* b) {
    MMA4("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32");
  }
};
#endif
// Integers have no rounding: any sum below 2^31 is exact.
struct Int8 {
  typedef int Sum;
  static __device__ __forceinline__ void mma(int* c, const u32* a, const u32* b) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    for (int i = 0; i < 4; i++)
      asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                   : "+r"(c[i % 2 * 2]), "+r"(c[i % 2 * 2 + 1])
                   : "r"(a[i]), "r"(b[i / 2]));
#endif
  }
};
#define HAS_BF16 (__CUDA_ARCH__ >= 800)
#define HAS_FP8 (__CUDA_ARCH__ >= 890)
#else
#define HAS_BF16 1
#define HAS_FP8 1
#endif

TENSOR_KERNEL(gemm_fp16, Fp16)
TENSOR_KERNEL(gemm_int8, Int8)
#if HAS_BF16
TENSOR_KERNEL(gemm_bf16, Bf16)
TENSOR_KERNEL(gemm_tf32, Tf32)
#endif
#if HAS_FP8
TENSOR_KERNEL(gemm_fp8, Fp8)
#endif
