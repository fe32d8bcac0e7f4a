/* PTX of inline asm, as functions called by what rewrite.py makes of asm statements. */
#ifndef VLA_EMULATE_PTX_H
#define VLA_EMULATE_PTX_H
#include "tests/emulate/warp.h"

namespace emu
{
struct f16 {
    static float up(uint16_t x) { return half_to_float(x); }
    static constexpr int bits = 16;
};
struct bf16 {
    static float up(uint16_t x) { return bf16_to_float(x); }
    static constexpr int bits = 16;
};
struct tf32 {
    static float up(uint32_t x) { return __uint_as_float(x & 0xffffe000u); }
    static constexpr int bits = 32;
};

/* Rounding of a sum: nearest, or (EMU_MMA=rz) toward zero, as tensor cores are nearer to. */
extern bool truncate;
inline float round_sum(double x)
{
    float y = (float)x;
    if (truncate && std::fabs((double)y) > std::fabs(x)) y = nextafterf(y, 0.0f);
    return y;
}

struct mma_arg {
    uint32_t a[4], b[2];
    float c[4];
    float *d[4];
};
void mma_compute(const float (&A)[16][16], const float (&B)[16][8], const float (&C)[16][8], float (&D)[16][8], int K);

template <int K, typename T>
inline void mma(float &d0, float &d1, float &d2, float &d3, std::initializer_list<uint32_t> a,
                std::initializer_list<uint32_t> b, float c0, float c1, float c2, float c3)
{
    mma_arg m{};
    std::copy(a.begin(), a.end(), m.a), std::copy(b.begin(), b.end(), m.b);
    m.c[0] = c0, m.c[1] = c1, m.c[2] = c2, m.c[3] = c3;
    m.d[0] = &d0, m.d[1] = &d1, m.d[2] = &d2, m.d[3] = &d3;
    static const char *const tag = __PRETTY_FUNCTION__;
    collective(0xffffffffu, tag, &m, [](void **args, uint32_t here) {
        if (here != 0xffffffffu) die("mma with lanes that have ended");
        float A[16][16], B[16][8], C[16][8], D[16][8];
        for (int l = 0; l < 32; l++) {
            const mma_arg &x = *(mma_arg *)args[l];
            const int g = l / 4, t = l % 4;
            if constexpr (T::bits == 16) {
                for (int i = 0; i < K / 4; i++)
                    for (int j = 0; j < 2; j++)
                        A[g + i % 2 * 8][i / 2 * 8 + 2 * t + j] = T::up((uint16_t)(x.a[i] >> 16 * j));
                for (int i = 0; i < K / 8; i++)
                    for (int j = 0; j < 2; j++) B[i * 8 + 2 * t + j][g] = T::up((uint16_t)(x.b[i] >> 16 * j));
            } else {
                for (int i = 0; i < K / 2; i++) A[g + i % 2 * 8][i / 2 * 4 + t] = T::up(x.a[i]);
                for (int i = 0; i < K / 4; i++) B[i * 4 + t][g] = T::up(x.b[i]);
            }
            for (int i = 0; i < 4; i++) C[g + i / 2 * 8][2 * t + i % 2] = x.c[i];
        }
        mma_compute(A, B, C, D, K);
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++) *((mma_arg *)args[l])->d[i] = D[l / 4 + i / 2 * 8][2 * (l % 4) + i % 2];
    });
}

struct matrix_arg {
    uint32_t address;
    uint32_t x[4];
};
template <int N, bool TRANS> inline void ldmatrix(std::array<uint32_t *, N> d, uint32_t address)
{
    matrix_arg m{address, {}};
    collective(0xffffffffu, N == 4 ? TRANS ? "ldmatrix.x4.trans" : "ldmatrix.x4" : "ldmatrix", &m,
               [](void **args, uint32_t here) {
                   if (here != 0xffffffffu) die("ldmatrix with lanes that have ended");
                   for (int i = 0; i < N; i++) {
                       uint16_t M[8][8];
                       for (int r = 0; r < 8; r++) {
                           const uint32_t at = ((matrix_arg *)args[8 * i + r])->address;
                           if (at % 16) die("ldmatrix: address %u is not on 16 bytes", at);
                           memcpy(M[r], from_shared(at, 16), 16);
                       }
                       for (int l = 0; l < 32; l++) {
                           const int g = l / 4, t = l % 4;
                           ((matrix_arg *)args[l])->x[i] =
                               TRANS ? (uint32_t)M[2 * t][g] | (uint32_t)M[2 * t + 1][g] << 16
                                     : (uint32_t)M[g][2 * t] | (uint32_t)M[g][2 * t + 1] << 16;
                       }
                   }
               });
    for (int i = 0; i < N; i++) *d[i] = m.x[i];
}
template <int N, bool TRANS> inline void stmatrix(uint32_t address, std::array<uint32_t, N> x)
{
    matrix_arg m{address, {}};
    for (int i = 0; i < N; i++) m.x[i] = x[i];
    collective(0xffffffffu, TRANS ? "stmatrix.trans" : "stmatrix", &m, [](void **args, uint32_t here) {
        if (here != 0xffffffffu) die("stmatrix with lanes that have ended");
        for (int i = 0; i < N; i++) {
            uint16_t M[8][8];
            for (int l = 0; l < 32; l++) {
                const int g = l / 4, t = l % 4;
                const uint32_t v = ((matrix_arg *)args[l])->x[i];
                for (int j = 0; j < 2; j++) (TRANS ? M[2 * t + j][g] : M[g][2 * t + j]) = (uint16_t)(v >> 16 * j);
            }
            for (int r = 0; r < 8; r++) {
                const uint32_t at = ((matrix_arg *)args[8 * i + r])->address;
                if (at % 16) die("stmatrix: address %u is not on 16 bytes", at);
                memcpy(from_shared(at, 16), M[r], 16);
            }
        }
    });
}
inline void movmatrix(uint32_t &d, uint32_t x)
{
    matrix_arg m{0, {x}};
    collective(0xffffffffu, "movmatrix", &m, [](void **args, uint32_t) {
        uint16_t M[8][8];
        for (int l = 0; l < 32; l++)
            for (int j = 0; j < 2; j++) M[l / 4][l % 4 * 2 + j] = (uint16_t)(((matrix_arg *)args[l])->x[0] >> 16 * j);
        for (int l = 0; l < 32; l++)
            ((matrix_arg *)args[l])->x[0] = (uint32_t)M[l % 4 * 2][l / 4] | (uint32_t)M[l % 4 * 2 + 1][l / 4] << 16;
    });
    d = m.x[0];
}

/* wgmma, a warp's sixteen rows at a time: at once, or (late copies) at the wait. */
struct wgmma_arg {
    float *d[128]; /* of a lane */
    uint32_t a[4];
    uint64_t left, right;
    bool registers, add, turn_left, turn_right, bf;
    int n;
    float scale_a, scale_b;
};
void wgmma(wgmma_arg &a);
void wgmma_commit();
void wgmma_wait(int pending);

template <typename X> inline uint64_t address(X *p)
{
    return (uint64_t)p;
}
inline uint64_t address(uint64_t p)
{
    return p;
}
inline uint64_t address(int64_t p)
{
    return (uint64_t)p;
}
inline uint64_t address(unsigned long long p)
{
    return p;
}
inline uint64_t address(uint32_t p)
{
    return p;
}
inline uint64_t address(int p)
{
    return (uint32_t)p;
}

template <typename B, typename X> inline void put(X &x, const B &b)
{
    if constexpr (sizeof(B) == sizeof(X))
        memcpy(&x, &b, sizeof b);
    else
        x = (X)b;
}
template <typename B, typename X> inline B get(const X &x)
{
    if constexpr (sizeof(B) == sizeof(X)) {
        B b;
        memcpy(&b, &x, sizeof b);
        return b;
    } else
        return (B)x;
}
template <typename B> inline unsigned char *place(bool shared, uint64_t at, int n)
{
    if (at % (sizeof(B) * (size_t)n))
        die("access of %d bytes at %#llx is not aligned", (int)sizeof(B) * n, (unsigned long long)at);
    return shared ? from_shared((uint32_t)at, (uint32_t)(sizeof(B) * (size_t)n)) : (unsigned char *)at;
}
void before_load(bool acquire, bool relaxed);
template <typename B, bool SHARED, typename... X> inline void ld(uint64_t at, X &...x)
{
    const unsigned char *p = place<B>(SHARED, at, (int)sizeof...(X));
    (..., [&] {
        B b;
        memcpy(&b, p, sizeof b);
        p += sizeof b;
        put<B>(x, b);
    }());
}
template <typename B, bool SHARED, typename... X> inline void st(uint64_t at, const X &...x)
{
    unsigned char *p = place<B>(SHARED, at, (int)sizeof...(X));
    (..., [&] {
        const B b = get<B>(x);
        memcpy(p, &b, sizeof b);
        p += sizeof b;
    }());
}
template <typename B, bool SHARED, typename X> inline void red_add(uint64_t at, const X &x)
{
    unsigned char *p = place<B>(SHARED, at, 1);
    B b;
    memcpy(&b, p, sizeof b);
    b = (B)(b + get<B>(x));
    memcpy(p, &b, sizeof b);
    progress();
}
inline float ftz(float x)
{
    return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x;
}
inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t y = 0;
    for (int i = 0; i < 32; i += 16)
        y |= (uint32_t)float_to_bf16(
                 (float)((double)bf16_to_float((uint16_t)(a >> i)) * bf16_to_float((uint16_t)(b >> i)) +
                         bf16_to_float((uint16_t)(c >> i))))
             << i;
    return y;
}
inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t y = 0;
    for (int i = 0; i < 32; i += 16)
        y |= (uint32_t)float_to_half(
                 (float)((double)half_to_float((uint16_t)(a >> i)) * half_to_float((uint16_t)(b >> i)) +
                         half_to_float((uint16_t)(c >> i))))
             << i;
    return y;
}
template <typename T> inline uint32_t extreme2(uint32_t a, uint32_t b, bool most, bool nan)
{
    uint32_t y = 0;
    for (int i = 0; i < 32; i += 16) {
        const uint16_t p = (uint16_t)(a >> i), q = (uint16_t)(b >> i);
        const float x = T::up(p), z = T::up(q);
        const uint16_t r = x != x ? (nan ? 0x7fff : q) : z != z ? (nan ? 0x7fff : p) : (most ? x > z : x < z) ? p : q;
        y |= (uint32_t)r << i;
    }
    return y;
}
inline uint32_t cvt_tf32_rna(float x)
{
    const uint32_t b = __float_as_uint(x);
    return (b & 0x7f800000u) == 0x7f800000u ? b : (b + 0x1000u) & 0xffffe000u;
}
inline uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, int lut)
{
    uint32_t y = 0;
    for (int i = 0; i < 8; i++)
        if (lut >> i & 1) y |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return y;
}
} /* namespace emu */

#endif
