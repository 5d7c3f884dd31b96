// Products by the warpgroup instructions of Hopper (wgmma, for sm_90a alone): what libraries use there, on data types
// for which mma.sync is emulated (FP8) or reaches half of the speed. The layout of operands is that of tensor.cu;
// in shared memory a step along K is four columns of 16 bytes, each with all rows one after another, so that eight
// rows of a column are one core matrix (PTX manual, "Shared memory matrix layout", without swizzling).
// M and N are multiples of 128, K of 16 words. Block: 256 threads = 2 warpgroups, each 64 x 128 of C.
#include "common.cuh"

#define WG_TILE 128
#define WG_WORDS 16
#define COLUMN (WG_TILE * 4)  // words: 16 bytes of each row
#define OPERAND (2 * COLUMN)  // words that one instruction takes along K: 32 bytes of each row

#ifndef BERTH_HOST
// Where a matrix begins, and how far its core matrices lie apart: along K by a column, along M or N by 128 bytes.
static __device__ __forceinline__ u64 descriptor(const u32* matrix) {
  u64 address = __cvta_generic_to_shared(matrix);
  return (address & 0x3FFFF) >> 4 | (u64)(COLUMN * 4 >> 4) << 16 | (u64)(128 >> 4) << 32;
}
// What ordinary stores have put into shared memory is to be seen by the tensor cores.
static __device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
static __device__ __forceinline__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void finish() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
#define WGMMA(shape, after)                                                                        \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned." shape " {"    \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "  \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"  \
      "}, %64, %65, p, 1, 1" after ";\n}\n"                                                        \
      :                                                                                            \
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]) \
      : "l"(descriptor(a)), "l"(descriptor(b)))
#define WARPGROUP(name, shape, after)                                                   \
  struct name {                                                                         \
    static __device__ __forceinline__ void step(float* d, const u32* a, const u32* b) { \
      WGMMA(shape, after);                                                              \
    }                                                                                   \
  };
WARPGROUP(WgFp16, "m64n128k16.f32.f16.f16", ", 0, 0")
WARPGROUP(WgBf16, "m64n128k16.f32.bf16.bf16", ", 0, 0")
WARPGROUP(WgTf32, "m64n128k8.f32.tf32.tf32", "")
WARPGROUP(WgFp8, "m64n128k32.f32.e4m3.e4m3", "")
#else
static inline void publish() {}
static inline void begin() {}
static inline void finish() {}
typedef berth::Wgmma<5, 10, 0, COLUMN> WgFp16;
typedef berth::Wgmma<8, 7, 0, COLUMN> WgBf16;
typedef berth::Wgmma<8, 10, 13, COLUMN> WgTf32;
typedef berth::Wgmma<4, 3, 0, COLUMN> WgFp8;
#endif

template <class Op>
static __device__ __forceinline__ void warpgroups(const u32* a, const u32* b, float* c, u32 n, u32 words, u32* as,
                                                  u32* bs) {
  u64 row0 = (u64)blockIdx.y * WG_TILE, col0 = (u64)blockIdx.x * WG_TILE;
  u32 t = threadIdx.x, group = t / 128, warp = t / 32 % 4, lane = t % 32;
  float d[64];
#pragma unroll
  for (int i = 0; i < 64; i++) d[i] = 0.0f;

  // Each thread carries two columns of a row of A and of B.
  u32 row = t / 2, column = t % 2 * 2, to = column * COLUMN + row * 4;
  const u32* ap = a + (row0 + row) * words + column * 4;
  const u32* bp = b + (col0 + row) * words + column * 4;
  Words2 na0 = *(const Words2*)ap, na1 = *(const Words2*)(ap + 4);
  Words2 nb0 = *(const Words2*)bp, nb1 = *(const Words2*)(bp + 4);
  for (u32 w0 = 0; w0 < words; w0 += WG_WORDS) {
    *(Words2*)&as[to] = na0;
    *(Words2*)&as[to + COLUMN] = na1;
    *(Words2*)&bs[to] = nb0;
    *(Words2*)&bs[to + COLUMN] = nb1;
    publish();
    __syncthreads();
    if (w0 + WG_WORDS < words) {  // the next step is on its way while this one is multiplied
      na0 = *(const Words2*)(ap + w0 + WG_WORDS);
      na1 = *(const Words2*)(ap + w0 + WG_WORDS + 4);
      nb0 = *(const Words2*)(bp + w0 + WG_WORDS);
      nb1 = *(const Words2*)(bp + w0 + WG_WORDS + 4);
    }
    begin();
#pragma unroll
    for (int s = 0; s < 2; s++) Op::step(d, as + s * OPERAND + group * 64 * 4, bs + s * OPERAND);
    finish();
    __syncthreads();
  }
  u64 r = row0 + group * 64 + warp * 16 + lane / 4, col = col0 + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < 16; j++) {
    c[r * n + col + j * 8] = d[j * 4];
    c[r * n + col + j * 8 + 1] = d[j * 4 + 1];
    c[(r + 8) * n + col + j * 8] = d[j * 4 + 2];
    c[(r + 8) * n + col + j * 8 + 1] = d[j * 4 + 3];
  }
}

#define HOPPER_KERNEL(name, Op)                                                     \
  KERNEL name(const u32* a, const u32* b, float* c, u32 n, u32 words, u32* where) { \
    __shared__ __align__(128) u32 as[WG_TILE * WG_WORDS];                           \
    __shared__ __align__(128) u32 bs[WG_TILE * WG_WORDS];                           \
    SIGN(where);                                                                    \
    warpgroups<Op>(a, b, c, n, words, as, bs);                                      \
  }                                                                                 \
  HOST_KERNEL(name)

HOPPER_KERNEL(gemm_fp16_wg, WgFp16)
HOPPER_KERNEL(gemm_bf16_wg, WgBf16)
HOPPER_KERNEL(gemm_tf32_wg, WgTf32)
HOPPER_KERNEL(gemm_fp8_wg, WgFp8)
