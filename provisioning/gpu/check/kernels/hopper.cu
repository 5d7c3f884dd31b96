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
#define WGMMA(shape, kind, after)                                                                        \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned." shape " {"    \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "  \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"  \
      "}, %64, %65, p" after ";\n}\n"                                                        \
      :                                                                                            \
        kind(d[0]), kind(d[1]), kind(d[2]), kind(d[3]), kind(d[4]), kind(d[5]), kind(d[6]), kind(d[7]), \
        kind(d[8]), kind(d[9]), kind(d[10]), kind(d[11]), kind(d[12]), kind(d[13]), kind(d[14]), kind(d[15]), \
        kind(d[16]), kind(d[17]), kind(d[18]), kind(d[19]), kind(d[20]), kind(d[21]), kind(d[22]), kind(d[23]), \
        kind(d[24]), kind(d[25]), kind(d[26]), kind(d[27]), kind(d[28]), kind(d[29]), kind(d[30]), kind(d[31]), \
        kind(d[32]), kind(d[33]), kind(d[34]), kind(d[35]), kind(d[36]), kind(d[37]), kind(d[38]), kind(d[39]), \
        kind(d[40]), kind(d[41]), kind(d[42]), kind(d[43]), kind(d[44]), kind(d[45]), kind(d[46]), kind(d[47]), \
        kind(d[48]), kind(d[49]), kind(d[50]), kind(d[51]), kind(d[52]), kind(d[53]), kind(d[54]), kind(d[55]), \
        kind(d[56]), kind(d[57]), kind(d[58]), kind(d[59]), kind(d[60]), kind(d[61]), kind(d[62]), kind(d[63]) \
      : "l"(descriptor(a)), "l"(descriptor(b)))
#define WARPGROUP(name, type, kind, shape, after)                                       \
  struct name {                                                                         \
    typedef type Sum;                                                                   \
    static __device__ __forceinline__ void step(type* d, const u32* a, const u32* b) {  \
      WGMMA(shape, kind, after);                                                        \
    }                                                                                   \
  };
#define IN_FLOAT(r) "+f"(r)
#define IN_INT(r) "+r"(r)
WARPGROUP(WgFp16, float, IN_FLOAT, "m64n128k16.f32.f16.f16", ", 1, 1, 0, 0")
WARPGROUP(WgBf16, float, IN_FLOAT, "m64n128k16.f32.bf16.bf16", ", 1, 1, 0, 0")
WARPGROUP(WgTf32, float, IN_FLOAT, "m64n128k8.f32.tf32.tf32", ", 1, 1")
WARPGROUP(WgFp8, float, IN_FLOAT, "m64n128k32.f32.e4m3.e4m3", ", 1, 1")
WARPGROUP(WgInt8, int, IN_INT, "m64n128k32.s32.s8.s8", "")
#else
static inline void publish() {}
static inline void begin() {}
static inline void finish() {}
typedef berth::Wgmma<5, 10, 0, COLUMN> WgFp16;
typedef berth::Wgmma<8, 7, 0, COLUMN> WgBf16;
typedef berth::Wgmma<8, 10, 13, COLUMN> WgTf32;
typedef berth::Wgmma<4, 3, 0, COLUMN> WgFp8;
typedef berth::WgmmaInt8<COLUMN> WgInt8;
#endif

template <class Op>
static __device__ __forceinline__ void warpgroups(const u32* a, const u32* b, typename Op::Sum* c, u32 n, u32 words,
                                                  u32* as, u32* bs) {
  u64 row0 = (u64)blockIdx.y * WG_TILE, col0 = (u64)blockIdx.x * WG_TILE;
  u32 t = threadIdx.x, group = t / 128, warp = t / 32 % 4, lane = t % 32;
  typename Op::Sum d[64];
#pragma unroll
  for (int i = 0; i < 64; i++) d[i] = 0;

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
  KERNEL name(const u32* a, const u32* b, Op::Sum* c, u32 n, u32 words, u32* where) { \
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
HOPPER_KERNEL(gemm_int8_wg, WgInt8)
