// Products of FP4 (E2M1) by the block-scaled instruction of architectures 12.0 and 12.1. All scales are 1, so that the
// result is the plain product.
#include "tensor.cuh"

#ifndef BERTH_HOST
struct Fp4 {
  typedef float Sum;
  static __device__ __forceinline__ void mma(float* c, const u32* a, const u32* b) {
    const u32 one = 0x7F7F7F7Fu;  // 2^0 in UE8M0, in each of its bytes
    asm volatile(
        "mma.sync.aligned.kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, %10, {0,0}, %10, {0,0};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(one));
  }
};
#endif

TENSOR_KERNEL(gemm_fp4, Fp4)
