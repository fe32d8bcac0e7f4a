/* Warp matrix products m16n8k8 on tf32 operands with float32 accumulation, and the register layouts that let one
 * product feed the next.
 *
 * TERMS 1: operands rounded to tf32 (10 bits of fraction). TERMS 3: every operand split in two tf32 numbers, x = high +
 * low, and high high + high low + low high summed: an error of about 2^-20 a product. TERMS 4: the split to nearest,
 * and low low as well: 2^-22.
 *
 * Lane l has g = l / 4, t = l % 4. A result C (16 x 8): {C[g][2t], C[g][2t+1], C[g+8][2t], C[g+8][2t+1]}. The index
 * that is summed over may be permuted alike in both operands: with its places t and t + 4 standing for 2t and 2t + 1, a
 * result X (16 x 8) serves
 *   as the left operand X as it is,
 *   as the right operand X^T: columns 0-7 of it are {C[0], C[1]}, columns 8-15 {C[2], C[3]},
 * and a right operand Y^T is two neighbours of row g of Y, Y[g][2t] and Y[g][2t+1]. */
#ifndef VLA_CUDA_TF32_CUH
#define VLA_CUDA_TF32_CUH
#include "kernels/cuda/factor.cuh"

namespace tf32
{
__device__ __forceinline__ uint32_t rounded(float x)
{
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

/* N registers of an operand. The low part of the split is exact; of it the product sees the leading bits. */
template <int TERMS, int N> struct operand {
    uint32_t high[N], low[TERMS >= 3 ? N : 1];
    __device__ __forceinline__ void set(int i, float x)
    {
        if (TERMS >= 3) { /* to nearest with 4: a NaN that the sum takes for 0 stays one in the low part */
            high[i] = (__float_as_uint(x) + (TERMS == 4 ? 0x1000u : 0u)) & 0xffffe000u;
            low[TERMS >= 3 ? i : 0] = __float_as_uint(x - __uint_as_float(high[i]));
        } else {
            high[i] = rounded(x);
        }
    }
};
template <int TERMS> using left_t = operand<TERMS, 4>;
template <int TERMS> using right_t = operand<TERMS, 2>;

/* Of a 16 x 8 result, as left operand. */
template <int TERMS> __device__ __forceinline__ left_t<TERMS> left(const float (&c)[4])
{
    left_t<TERMS> y;
    y.set(0, c[0]), y.set(1, c[2]), y.set(2, c[1]), y.set(3, c[3]);
    return y;
}

template <int TERMS> __device__ __forceinline__ right_t<TERMS> right(float x, float y)
{
    right_t<TERMS> z;
    z.set(0, x), z.set(1, y);
    return z;
}

__device__ __forceinline__ void product(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* c += a b */
template <int TERMS> __device__ __forceinline__ void mma(float (&c)[4], const left_t<TERMS> &a, const right_t<TERMS> &b)
{
    if constexpr (TERMS == 4) product(c, a.low, b.low);
    if constexpr (TERMS >= 3) {
        product(c, a.low, b.high);
        product(c, a.high, b.low);
    }
    product(c, a.high, b.high);
}

/* A sum of many products in TERMS chains that do not wait for each other. */
template <int TERMS> struct sum_t {
    float part[TERMS][4] = {};
    __device__ __forceinline__ void add(const left_t<TERMS> &a, const right_t<TERMS> &b)
    {
        product(part[0], a.high, b.high);
        if constexpr (TERMS >= 3) {
            product(part[1], a.low, b.high);
            product(part[2], a.high, b.low);
        }
        if constexpr (TERMS == 4) product(part[3], a.low, b.low);
    }
    __device__ __forceinline__ void take(float (&c)[4]) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            c[i] = part[0][i];
            if constexpr (TERMS == 3) c[i] += part[1][i] + part[2][i];
            if constexpr (TERMS == 4) c[i] += (part[1][i] + part[2][i]) + part[3][i];
        }
    }
};

/* G = L L^T, 8 x 8 symmetric with eigenvalues of at least 1, lane (g, t) holding G[g][2t] and G[g][2t+1], becomes L^-1
 * with zeros above; the pivot of row g, the square of L[g][g], is returned. Row elimination of two pivots a, c at a
 * time, which a lane's two columns are: for the rows below, the inverse of {{a, b}, {b, c}} takes the reciprocal of its
 * determinant. The next pair is in lanes that keep no multiplier yet, so that it goes on before the multipliers are put
 * in place. */
__device__ __forceinline__ float factor8(float (&x)[2], int lane)
{
    const int g = lane / 4, t = lane % 4;
    const auto get = [](float value, int from) { return __shfl_sync(FULL_WARP, value, from); };
    float diagonal = 1, kept0 = x[0], kept1 = x[1];
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        const int from = g * 4 + j / 2, first = j * 4, second = first + 4;
        const float a = get(x[0], first + j / 2), c = get(x[1], second + j / 2), b = get(x[0], second + j / 2);
        const float own0 = get(x[0], from), own1 = get(x[1], from);
        const float row0 = get(kept0, first + t), row1 = get(kept1, first + t);
        const float next0 = get(kept0, second + t), next1 = get(kept1, second + t);
        const float determinant = fmaf(a, c, -b * b), inverse = quick_reciprocal(determinant),
                    by_a = quick_reciprocal(a);
        const bool below = g > j + 1, other = g == j + 1;
        const float f0 = below   ? fmaf(own0, c, -own1 * b) * inverse
                         : other ? b * by_a
                                 : 0.0f,
                    f1 = below ? fmaf(own1, a, -own0 * b) * inverse : 0.0f;
        diagonal = g == j ? a : other ? determinant * by_a : diagonal;
        x[0] = fmaf(-f1, next0, fmaf(-f0, row0, kept0)), x[1] = fmaf(-f1, next1, fmaf(-f0, row1, kept1));
        kept0 = t == j / 2 && g > j ? -f0 : x[0];
        kept1 = t == j / 2 && below ? -f1 : x[1];
    }
    const float scale = quick_rsqrt(diagonal);
    x[0] = 2 * t < g ? kept0 * scale : 2 * t == g ? scale : 0.0f;
    x[1] = 2 * t + 1 < g ? kept1 * scale : 2 * t + 1 == g ? scale : 0.0f;
    return diagonal;
}
} /* namespace tf32 */

#endif
