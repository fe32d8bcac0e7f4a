/* Warp matrix products m16n8k16 with float32 accumulation, and the register layouts that let one product feed the next.
 *
 * Lane l has g = l / 4, t = l % 4. A result C (16 x 8): {C[g][2t], C[g][2t+1], C[g+8][2t], C[g+8][2t+1]}.
 * A tile of 16 x 16 is kept as a `frag`, four registers of two halves: x[0] = [g][2t..], x[1] = [g+8][2t..],
 * x[2] = [g][8+2t..], x[3] = [g+8][8+2t..]. A frag of X serves
 *   as the left operand X,
 *   as the right operand X^T: columns 0-7 of it are {x[0], x[2]}, columns 8-15 {x[1], x[3]},
 * and two neighbouring results packed are a frag. Tiles in global memory are stored frag by frag, 16 bytes a lane, so
 * that every load and store is coalesced and needs no shuffling. */
#ifndef VLA_CUDA_MMA_CUH
#define VLA_CUDA_MMA_CUH
#include "kernels/cuda/common.cuh"

struct __align__(16) frag
{
    uint32_t x[4];
};

struct f16_arithmetic {
};
struct bf16_arithmetic {
};

__device__ __forceinline__ uint32_t pack(f16_arithmetic, float lo, float hi)
{
    const __half2 h = __floats2half2_rn(lo, hi);
    return *(const uint32_t *)&h;
}

__device__ __forceinline__ uint32_t pack(bf16_arithmetic, float lo, float hi)
{
    const __nv_bfloat162 h = __floats2bfloat162_rn(lo, hi);
    return *(const uint32_t *)&h;
}

__device__ __forceinline__ float2 unpack(f16_arithmetic, uint32_t x)
{
    return __half22float2(*(const __half2 *)&x);
}
__device__ __forceinline__ float2 unpack(bf16_arithmetic, uint32_t x)
{
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
}

__device__ __forceinline__ void mma(f16_arithmetic, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma(bf16_arithmetic, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* c += a for a 16 x 16 tile, by products of half the depth with the unit matrix (the first word of unit_tile). */
__device__ __forceinline__ void add_tile(bf16_arithmetic, float (&c)[2][4], const frag &a, uint32_t unit)
{
#pragma unroll
    for (int h = 0; h < 2; h++)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
            : "+f"(c[h][0]), "+f"(c[h][1]), "+f"(c[h][2]), "+f"(c[h][3])
            : "r"(a.x[2 * h]), "r"(a.x[2 * h + 1]), "r"(unit));
}

/* d = c + a b: the result elsewhere than the accumulator. */
__device__ __forceinline__ void mma_to(bf16_arithmetic, float (&d)[4], const float (&c)[4], const uint32_t (&a)[4],
                                       uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

/* c += a b^T for a 16 x 16 right side given as a frag of b. */
template <typename M> __device__ __forceinline__ void mma_t(float (&c)[2][4], const frag &a, const frag &b)
{
    mma(M{}, c[0], a.x, b.x[0], b.x[2]);
    mma(M{}, c[1], a.x, b.x[1], b.x[3]);
}

/* A right operand's frag in the order 0, 2, 1, 3: the two halves are register pairs, which spares moving them. Such are
 * what load_plain gives with turned_offset and load_turned with plain_offset. c += a b^T. */
__device__ __forceinline__ frag right_order(const frag &f)
{
    return {{f.x[0], f.x[2], f.x[1], f.x[3]}};
}
template <typename M> __device__ __forceinline__ void mma_r(float (&c)[2][4], const frag &a, const frag &b)
{
    mma(M{}, c[0], a.x, b.x[0], b.x[1]);
    mma(M{}, c[1], a.x, b.x[2], b.x[3]);
}

template <typename M> __device__ __forceinline__ frag pack_tile(const float (&c0)[4], const float (&c1)[4])
{
    frag f;
    f.x[0] = pack(M{}, c0[0], c0[1]), f.x[1] = pack(M{}, c0[2], c0[3]);
    f.x[2] = pack(M{}, c1[0], c1[1]), f.x[3] = pack(M{}, c1[2], c1[3]);
    return f;
}

template <typename M> __device__ __forceinline__ void unpack_tile(float (&c)[2][4], const frag &f)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 v = unpack(M{}, f.x[i]);
        c[i / 2][(i % 2) * 2] = v.x, c[i / 2][(i % 2) * 2 + 1] = v.y;
    }
}

/* The unit matrix: an operand that adds a tile as it is, on the tensor cores instead of by unpacking it. */
template <typename M> __device__ __forceinline__ frag unit_tile(int lane)
{
    const int g = lane / 4, t = lane % 4;
    frag f;
    f.x[0] = f.x[3] = pack(M{}, g == 2 * t ? 1.0f : 0.0f, g == 2 * t + 1 ? 1.0f : 0.0f);
    f.x[1] = f.x[2] = 0;
    return f;
}

/* What rounding to the high part left out. */
template <typename M>
__device__ __forceinline__ frag pack_rest(const float (&c0)[4], const float (&c1)[4], const frag &high)
{
    float h[2][4], r[2][4];
    unpack_tile<M>(h, high);
#pragma unroll
    for (int i = 0; i < 4; i++) r[0][i] = c0[i] - h[0][i], r[1][i] = c1[i] - h[1][i];
    return pack_tile<M>(r[0], r[1]);
}

__device__ __forceinline__ uint32_t transpose8(uint32_t x)
{
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

__device__ __forceinline__ frag transpose(const frag &f)
{
    frag y;
    y.x[0] = transpose8(f.x[0]), y.x[1] = transpose8(f.x[2]);
    y.x[2] = transpose8(f.x[1]), y.x[3] = transpose8(f.x[3]);
    return y;
}

__device__ __forceinline__ frag negate(frag f)
{
#pragma unroll
    for (int i = 0; i < 4; i++) f.x[i] ^= 0x80008000u;
    return f;
}

/* By shared-memory address, which is cheaper to step than a pointer: that of this lane's part of a tile is the tile's
 * plus plain_offset (frag of the tile) or turned_offset (frag of its transpose); rows are `pitch` halves apart. */
__device__ __forceinline__ uint32_t plain_offset(int pitch, int lane)
{
    return 2u * (uint32_t)((lane % 16) * pitch + (lane / 16) * 8);
}
__device__ __forceinline__ uint32_t turned_offset(int pitch, int lane)
{
    return 2u * (uint32_t)((lane % 8 + lane / 16 * 8) * pitch + (lane / 8 % 2) * 8);
}
__device__ __forceinline__ frag load_plain(uint32_t address)
{
    frag f;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3])
                 : "r"(address)
                 : "memory");
    return f;
}
__device__ __forceinline__ frag load_turned(uint32_t address)
{
    frag f;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3])
                 : "r"(address)
                 : "memory");
    return f;
}

/* frag of a 16 x 16 tile of halves in shared memory at `tile`, rows `pitch` halves apart (rows 16-byte aligned). */
__device__ __forceinline__ frag load_tile(const __half *tile, int pitch, int lane)
{
    frag f;
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(tile + (lane % 16) * pitch + (lane / 16) * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3])
                 : "r"(address)
                 : "memory");
    return f;
}

/* frag of the transpose of that tile. */
__device__ __forceinline__ frag load_tile_transposed(const __half *tile, int pitch, int lane)
{
    frag f;
    const int row = (lane % 8) + (lane / 16) * 8, column = (lane / 8 % 2) * 8;
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(tile + row * pitch + column);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3])
                 : "r"(address)
                 : "memory");
    return f;
}

__device__ __forceinline__ void store_tile(__half *tile, int pitch, int lane, const frag &f)
{
    const int g = lane / 4, t = lane % 4;
    *(uint32_t *)(tile + g * pitch + 2 * t) = f.x[0];
    *(uint32_t *)(tile + (g + 8) * pitch + 2 * t) = f.x[1];
    *(uint32_t *)(tile + g * pitch + 8 + 2 * t) = f.x[2];
    *(uint32_t *)(tile + (g + 8) * pitch + 8 + 2 * t) = f.x[3];
}

__device__ __forceinline__ frag load_frag(uint32_t address)
{
    frag f;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3])
                 : "r"(address)
                 : "memory");
    return f;
}

/* By address: a frag to the tile with plain_offset, to the tile of its transpose with turned_offset. */
template <bool TURNED> __device__ __forceinline__ void store_frag(uint32_t address, const frag &f)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (TURNED)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(f.x[0]),
                     "r"(f.x[1]), "r"(f.x[2]), "r"(f.x[3])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(f.x[0]),
                     "r"(f.x[1]), "r"(f.x[2]), "r"(f.x[3])
                     : "memory");
#else /* lane l has the address of row l % 8 of matrix l / 8 */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t row = __shfl_sync(FULL_WARP, address, 8 * i + (int)threadIdx.x % 32 / 4);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(row + threadIdx.x % 4 * 4),
                     "r"(TURNED ? transpose8(f.x[i]) : f.x[i])
                     : "memory");
    }
    __syncwarp();
#endif
}

/* 16 x 16 float32 scratch of one warp; the pitch keeps rows in different banks. */
constexpr int SMALL = 16, SMALL_PITCH = 17;
typedef float small_matrix[SMALL * SMALL_PITCH];

__device__ __forceinline__ void small_store(float *m, const float (&c)[2][4], int lane)
{
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        m[g * SMALL_PITCH + 8 * h + 2 * t] = c[h][0], m[g * SMALL_PITCH + 8 * h + 2 * t + 1] = c[h][1];
        m[(g + 8) * SMALL_PITCH + 8 * h + 2 * t] = c[h][2], m[(g + 8) * SMALL_PITCH + 8 * h + 2 * t + 1] = c[h][3];
    }
}

__device__ __forceinline__ void small_load_transposed(float (&c)[2][4], const float *m, int lane)
{
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        c[h][0] = m[(8 * h + 2 * t) * SMALL_PITCH + g], c[h][1] = m[(8 * h + 2 * t + 1) * SMALL_PITCH + g];
        c[h][2] = m[(8 * h + 2 * t) * SMALL_PITCH + g + 8], c[h][3] = m[(8 * h + 2 * t + 1) * SMALL_PITCH + g + 8];
    }
}

/* Row elimination of a 16 x 16 matrix in place by one warp, lane r + 16 h holding columns 8h.. of row r: I + the strict
 * lower part of the matrix becomes its inverse. The upper part is not read and comes back zero. One pivot a step: about
 * 55 cycles each. */
__device__ __forceinline__ void small_invert(float *m, int lane)
{
    const int r = lane % 16, half = lane / 16;
    float a[8];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int c = 8 * half + i;
        a[i] = c >= r ? 0.0f : m[r * SMALL_PITCH + c];
    }
#pragma unroll
    for (int j = 0; j < 15; j++) {
        const float own = __shfl_sync(FULL_WARP, a[j % 8], r + (j / 8) * 16);
        const float f = r > j ? own : 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float row = __shfl_sync(FULL_WARP, a[i], j + 16 * half);
            const float updated = fmaf(-f, row, a[i]);
            if (i == j % 8)
                a[i] = half != j / 8 ? updated : r > j ? -f : a[i];
            else
                a[i] = updated;
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int c = 8 * half + i;
        m[r * SMALL_PITCH + c] = c < r ? a[i] : c == r ? 1.0f : 0.0f;
    }
    __syncwarp();
}

#endif
