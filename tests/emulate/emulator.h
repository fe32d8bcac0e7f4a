/* CPU emulation of what the CUDA kernels use: types, intrinsics, PTX of inline asm (as functions called by what
 * rewrite.py makes of asm statements), and the runtime's host calls. */
#ifndef VLA_EMULATOR_H
#define VLA_EMULATOR_H
#include <algorithm>
#include <array>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <immintrin.h>
#include <initializer_list>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;

/* ---- vector types */
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct float3 {
    float x, y, z;
};
struct alignas(16) double2 {
    double x, y;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct uint3 {
    unsigned x, y, z;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};
struct alignas(16) longlong2 {
    long long x, y;
};
struct alignas(4) ushort2 {
    unsigned short x, y;
};
struct alignas(8) ushort4 {
    unsigned short x, y, z, w;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
inline float2 make_float2(float x, float y)
{
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
inline double2 make_double2(double x, double y)
{
    return {x, y};
}
inline int2 make_int2(int x, int y)
{
    return {x, y};
}
inline int4 make_int4(int x, int y, int z, int w)
{
    return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y)
{
    return {x, y};
}

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

/* ---- runtime of the emulator */
namespace emu
{
[[noreturn]] void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
int64_t env(const char *name, int64_t otherwise);
bool env_is(const char *name, const char *value);

struct Warp;
struct Block;
struct Grid;
struct Copy {
    void *to;
    const void *from;
    uint32_t bytes, zeros;
};
struct Fiber {
    void *sp = nullptr;
    char *stack = nullptr;
    uint3 tid{};
    int lane = 0;
    Warp *warp = nullptr;
    Block *block = nullptr;
    const char *why = "";
    std::vector<Copy> open;               /* cp.async not committed */
    std::deque<std::vector<Copy>> groups; /* committed */
    std::vector<Copy> stores;             /* bulk copies out of shared memory, by groups below */
    std::deque<std::vector<Copy>> store_groups;
    unsigned relaxed = 0;
};
extern Fiber *cur;

typedef void run_function(void **args, uint32_t here);
void collective(uint32_t mask, const char *tag, void *arg, run_function *run);
void yield(const char *why);
void barrier_sync(int id, int count, bool wait); /* count < 0: all live threads */
void progress();
void *block_static(const void *key, size_t bytes);
unsigned char *block_dynamic();
uint32_t to_shared(const void *p);
unsigned char *from_shared(uint32_t address, uint32_t bytes);
void grid_wait();
void grid_release();
int warp_in_block();
unsigned warp_slot();
int sms();

void copy_async(uint32_t to, const void *from, uint32_t bytes, uint32_t valid);
void copy_commit();
void copy_wait(int pending);
void copy_arrive(uint32_t barrier, bool increments);
void copy_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier);
void store_bulk(void *to, uint32_t from, uint32_t bytes);
void store_commit();
void store_wait(int pending);
void mbarrier_init(uint32_t barrier, uint32_t count);
uint64_t mbarrier_arrive(uint32_t barrier, uint32_t count, int64_t bytes);
void mbarrier_expect(uint32_t barrier, int64_t bytes);
bool mbarrier_test(uint32_t barrier, uint32_t parity, bool wait);

void launch(dim3 grid, dim3 block, size_t shared, bool early, const void *kernel, std::function<void()> body);
void finish();
} /* namespace emu */

/* ---- bits and 16-bit types */
inline float __uint_as_float(uint32_t x)
{
    float y;
    memcpy(&y, &x, 4);
    return y;
}
inline uint32_t __float_as_uint(float x)
{
    uint32_t y;
    memcpy(&y, &x, 4);
    return y;
}
inline int __float_as_int(float x)
{
    return (int)__float_as_uint(x);
}
inline float __int_as_float(int x)
{
    return __uint_as_float((uint32_t)x);
}
inline double __longlong_as_double(long long x)
{
    double y;
    memcpy(&y, &x, 8);
    return y;
}
inline long long __double_as_longlong(double x)
{
    long long y;
    memcpy(&y, &x, 8);
    return y;
}

struct __half;
struct __nv_bfloat16;
namespace emu
{
inline float half_to_float(uint16_t x)
{
    return _cvtsh_ss(x);
}
inline uint16_t float_to_half(float x)
{
    if (x != x) return 0x7fff;
    return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
}
inline float bf16_to_float(uint16_t x)
{
    return __uint_as_float((uint32_t)x << 16);
}
inline uint16_t float_to_bf16(float x)
{
    if (x != x) return 0x7fff;
    const uint32_t b = __float_as_uint(x);
    return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
} // namespace emu
struct alignas(2) __half {
    uint16_t x;
    __half() = default;
    explicit __half(float f) : x(emu::float_to_half(f)) {}
    explicit operator float() const { return emu::half_to_float(x); }
};
struct alignas(2) __nv_bfloat16 {
    uint16_t x;
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float f) : x(emu::float_to_bf16(f)) {}
    explicit operator float() const { return emu::bf16_to_float(x); }
};
typedef __half half;
typedef __nv_bfloat16 nv_bfloat16;
struct alignas(4) __half2 {
    __half x, y;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
typedef __half2 half2;
inline float __half2float(__half h)
{
    return (float)h;
}
inline __half __float2half_rn(float f)
{
    return __half(f);
}
inline __half __float2half(float f)
{
    return __half(f);
}
inline float __bfloat162float(__nv_bfloat16 h)
{
    return (float)h;
}
inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    return __nv_bfloat16(f);
}
inline __nv_bfloat16 __float2bfloat16(float f)
{
    return __nv_bfloat16(f);
}
inline __half2 __floats2half2_rn(float x, float y)
{
    return {__half(x), __half(y)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return {__nv_bfloat16(x), __nv_bfloat16(y)};
}
inline float2 __half22float2(__half2 h)
{
    return {(float)h.x, (float)h.y};
}
inline float2 __bfloat1622float2(__nv_bfloat162 h)
{
    return {(float)h.x, (float)h.y};
}
inline __half2 __float22half2_rn(float2 f)
{
    return {__half(f.x), __half(f.y)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 f)
{
    return {__nv_bfloat16(f.x), __nv_bfloat16(f.y)};
}
inline __half2 __halves2half2(__half x, __half y)
{
    return {x, y};
}
inline __half2 __half2half2(__half x)
{
    return {x, x};
}
inline __half2 __float2half2_rn(float x)
{
    return {__half(x), __half(x)};
}
inline unsigned short __half_as_ushort(__half h)
{
    return h.x;
}
inline __half __ushort_as_half(unsigned short x)
{
    __half h;
    h.x = x;
    return h;
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h)
{
    return h.x;
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x)
{
    __nv_bfloat16 h;
    h.x = x;
    return h;
}
inline __half __hmul(__half a, __half b)
{
    return __half((float)a * (float)b);
}
inline __half __hadd(__half a, __half b)
{
    return __half((float)a + (float)b);
}
inline __half2 __hmul2(__half2 a, __half2 b)
{
    return {__hmul(a.x, b.x), __hmul(a.y, b.y)};
}
inline __half2 __hadd2(__half2 a, __half2 b)
{
    return {__hadd(a.x, b.x), __hadd(a.y, b.y)};
}
inline __half __hsub(__half a, __half b)
{
    return __half((float)a - (float)b);
}
inline __half2 __hsub2(__half2 a, __half2 b)
{
    return {__hsub(a.x, b.x), __hsub(a.y, b.y)};
}
inline __half __hneg(__half a)
{
    a.x ^= 0x8000;
    return a;
}
inline __half2 __hneg2(__half2 a)
{
    return {__hneg(a.x), __hneg(a.y)};
}
inline __half __habs(__half a)
{
    a.x &= 0x7fff;
    return a;
}
inline __half2 __habs2(__half2 a)
{
    return {__habs(a.x), __habs(a.y)};
}
inline __half __hmax(__half a, __half b)
{
    const float x = (float)a, y = (float)b;
    return x != x ? b : y != y ? a : x > y ? a : b;
}
inline __half __hmin(__half a, __half b)
{
    const float x = (float)a, y = (float)b;
    return x != x ? b : y != y ? a : x < y ? a : b;
}
inline __half2 __hmax2(__half2 a, __half2 b)
{
    return {__hmax(a.x, b.x), __hmax(a.y, b.y)};
}
inline __half2 __hmin2(__half2 a, __half2 b)
{
    return {__hmin(a.x, b.x), __hmin(a.y, b.y)};
}
inline __half __hfma(__half a, __half b, __half c)
{
    return __half((float)((double)(float)a * (float)b + (float)c));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c)
{
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
inline __nv_bfloat16 __hmul(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return __nv_bfloat16((float)a * (float)b);
}
inline __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b)
{
    return {__hmul(a.x, b.x), __hmul(a.y, b.y)};
}
inline __half __low2half(__half2 h)
{
    return h.x;
}
inline __half __high2half(__half2 h)
{
    return h.y;
}
inline float __low2float(__half2 h)
{
    return (float)h.x;
}
inline float __high2float(__half2 h)
{
    return (float)h.y;
}

/* ---- plain intrinsics */
inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
inline float __fdividef(float a, float b)
{
    return a / b;
}
inline float __expf(float x)
{
    return expf(x);
}
inline float __logf(float x)
{
    return logf(x);
}
inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
inline float __frsqrt_rn(float x)
{
    return 1.0f / sqrtf(x);
}
inline float __fmul_rn(float a, float b)
{
    volatile float c = a * b;
    return c;
}
inline float __fadd_rn(float a, float b)
{
    volatile float c = a + b;
    return c;
}
inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
inline unsigned __brev(unsigned x)
{
    unsigned y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1u) << (31 - i);
    return y;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s)
{
    const uint64_t v = (uint64_t)b << 32 | a;
    unsigned y = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned n = s >> 4 * i & 15u;
        unsigned byte = (unsigned)(v >> 8 * (n & 7)) & 0xffu;
        if (n & 8) byte = byte & 0x80 ? 0xff : 0;
        y |= byte << 8 * i;
    }
    return y;
}
inline unsigned __vmaxu2(unsigned a, unsigned b)
{
    const unsigned l = max(a & 0xffffu, b & 0xffffu), h = max(a >> 16, b >> 16);
    return h << 16 | l;
}
inline unsigned __vminu2(unsigned a, unsigned b)
{
    const unsigned l = min(a & 0xffffu, b & 0xffffu), h = min(a >> 16, b >> 16);
    return h << 16 | l;
}
inline int __mul24(int a, int b)
{
    return a * b;
}
inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
inline int __float2int_rn(float x)
{
    return (int)lrintf(x);
}
inline unsigned umin(unsigned a, unsigned b)
{
    return a < b ? a : b;
}
inline unsigned umax(unsigned a, unsigned b)
{
    return a > b ? a : b;
}
template <typename T> inline T __ldg(const T *p)
{
    return *p;
}
template <typename T> inline T __ldcg(const T *p)
{
    return *p;
}
template <typename T> inline T __ldcs(const T *p)
{
    return *p;
}
template <typename T> inline T __ldca(const T *p)
{
    return *p;
}
template <typename T> inline T __ldcv(const T *p)
{
    emu::yield("ldcv");
    return *p;
}
template <typename T> inline void __stcg(T *p, T x)
{
    *p = x;
}
template <typename T> inline void __stcs(T *p, T x)
{
    *p = x;
}
template <typename T> inline void __stwt(T *p, T x)
{
    *p = x;
}
inline void __nanosleep(unsigned)
{
    emu::yield("nanosleep");
}
inline void __threadfence()
{
}
inline void __threadfence_block()
{
}
inline void __threadfence_system()
{
}
inline void __trap()
{
    emu::die("__trap");
}
inline long long clock64()
{
    static long long c;
    return ++c;
}
inline size_t __cvta_generic_to_shared(const void *p)
{
    return emu::to_shared(p);
}
template <typename T> inline T atomicAdd(T *p, T x)
{
    const T y = *p;
    *p = (T)(y + x);
    emu::progress();
    return y;
}
template <typename T> inline T atomicMin(T *p, T x)
{
    const T y = *p;
    *p = x < y ? x : y;
    return y;
}
template <typename T> inline T atomicMax(T *p, T x)
{
    const T y = *p;
    *p = x > y ? x : y;
    return y;
}
template <typename T> inline T atomicOr(T *p, T x)
{
    const T y = *p;
    *p = y | x;
    return y;
}
template <typename T> inline T atomicAnd(T *p, T x)
{
    const T y = *p;
    *p = y & x;
    return y;
}
template <typename T> inline T atomicExch(T *p, T x)
{
    const T y = *p;
    *p = x;
    emu::progress();
    return y;
}
template <typename T> inline T atomicCAS(T *p, T c, T x)
{
    const T y = *p;
    if (y == c) *p = x, emu::progress();
    return y;
}

/* ---- collectives of a warp */
inline void __syncthreads()
{
    emu::barrier_sync(0, -1, true);
}
inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    emu::collective(mask, "syncwarp", nullptr, [](void **, uint32_t) {});
}
namespace emu
{
template <typename T> struct shuffle_arg {
    T in, out;
    int from;
};
template <typename T> inline T shuffle(unsigned mask, T x, int from)
{
    shuffle_arg<T> a{x, x, from};
    collective(mask, "shfl", &a, [](void **args, uint32_t here) {
        for (int l = 0; l < 32; l++)
            if (here >> l & 1) {
                auto &m = *(shuffle_arg<T> *)args[l];
                if (here >> m.from & 1) m.out = ((shuffle_arg<T> *)args[m.from])->in;
            }
    });
    return a.out;
}
struct vote_arg {
    uint32_t in, out;
};
inline uint32_t ballot(unsigned mask, bool x)
{
    vote_arg a{x, 0};
    collective(mask, "vote", &a, [](void **args, uint32_t here) {
        uint32_t bits = 0;
        for (int l = 0; l < 32; l++)
            if (here >> l & 1) bits |= (((vote_arg *)args[l])->in ? 1u : 0u) << l;
        for (int l = 0; l < 32; l++)
            if (here >> l & 1) ((vote_arg *)args[l])->out = bits;
    });
    return a.out;
}
template <typename T, typename F> inline T reduce(unsigned mask, T x)
{
    shuffle_arg<T> a{x, x, 0};
    collective(mask, "redux", &a, [](void **args, uint32_t here) {
        bool first = true;
        T y{};
        for (int l = 0; l < 32; l++)
            if (here >> l & 1) {
                const T z = ((shuffle_arg<T> *)args[l])->in;
                y = first ? z : F()(y, z);
                first = false;
            }
        for (int l = 0; l < 32; l++)
            if (here >> l & 1) ((shuffle_arg<T> *)args[l])->out = y;
    });
    return a.out;
}
template <typename T> struct greater {
    T operator()(T a, T b) const { return a > b ? a : b; }
};
template <typename T> struct lesser {
    T operator()(T a, T b) const { return a < b ? a : b; }
};
template <typename T> struct both {
    T operator()(T a, T b) const { return a & b; }
};
template <typename T> struct either {
    T operator()(T a, T b) const { return a | b; }
};
template <typename T> struct sum {
    T operator()(T a, T b) const { return a + b; }
};
} /* namespace emu */
template <typename T> inline T __shfl_sync(unsigned mask, T x, int from, int width = 32)
{
    const int lane = emu::cur->lane;
    return emu::shuffle(mask, x, (lane & ~(width - 1)) | (from & (width - 1)));
}
template <typename T> inline T __shfl_xor_sync(unsigned mask, T x, int by, int width = 32)
{
    const int lane = emu::cur->lane, from = lane ^ by;
    return emu::shuffle(mask, x, from < ((lane & ~(width - 1)) + width) ? from : lane);
}
template <typename T> inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    const int lane = emu::cur->lane, from = lane - (int)by;
    return emu::shuffle(mask, x, from >= (lane & ~(width - 1)) ? from : lane);
}
template <typename T> inline T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    const int lane = emu::cur->lane, from = lane + (int)by;
    return emu::shuffle(mask, x, from < (lane & ~(width - 1)) + width ? from : lane);
}
inline unsigned __ballot_sync(unsigned mask, int x)
{
    return emu::ballot(mask, x);
}
inline int __all_sync(unsigned mask, int x)
{
    return emu::ballot(mask, !x) == 0;
}
inline int __any_sync(unsigned mask, int x)
{
    return emu::ballot(mask, x) != 0;
}
inline unsigned __activemask()
{
    return 0xffffffffu;
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned x)
{
    return emu::reduce<unsigned, emu::greater<unsigned>>(mask, x);
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned x)
{
    return emu::reduce<unsigned, emu::lesser<unsigned>>(mask, x);
}
inline int __reduce_max_sync(unsigned mask, int x)
{
    return emu::reduce<int, emu::greater<int>>(mask, x);
}
inline int __reduce_min_sync(unsigned mask, int x)
{
    return emu::reduce<int, emu::lesser<int>>(mask, x);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned x)
{
    return emu::reduce<unsigned, emu::both<unsigned>>(mask, x);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned x)
{
    return emu::reduce<unsigned, emu::either<unsigned>>(mask, x);
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned x)
{
    return emu::reduce<unsigned, emu::sum<unsigned>>(mask, x);
}
inline int __syncthreads_or(int)
{
    emu::die("__syncthreads_or is not emulated");
}
inline int __syncthreads_and(int)
{
    emu::die("__syncthreads_and is not emulated");
}
inline int __syncthreads_count(int)
{
    emu::die("__syncthreads_count is not emulated");
}

/* ---- PTX */
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

/* ---- host calls */
typedef int cudaError_t;
enum { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorInvalidValue = 1 };
typedef struct emu_stream *cudaStream_t;
typedef struct emu_event *cudaEvent_t;
typedef struct emu_graph *cudaGraph_t;
typedef struct emu_exec *cudaGraphExec_t;
#define cudaStreamLegacy ((cudaStream_t)1)
enum { cudaStreamNonBlocking = 1, cudaStreamCaptureModeThreadLocal = 1 };
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount,
    cudaDevAttrComputeCapabilityMajor,
    cudaDevAttrComputeCapabilityMinor,
    cudaDevAttrMaxSharedMemoryPerBlockOptin,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor,
    cudaDevAttrReservedSharedMemoryPerBlock,
    cudaDevAttrMaxThreadsPerMultiProcessor,
    cudaDevAttrL2CacheSize,
    cudaDevAttrClockRate,
    cudaDevAttrMaxBlocksPerMultiprocessor
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum cudaLaunchAttributeID {
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributePriority = 8
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    union {
        int programmaticStreamSerializationAllowed;
        struct {
            unsigned x, y, z;
        } clusterDim;
        int priority;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes = 0;
    cudaStream_t stream = nullptr;
    cudaLaunchAttribute *attrs = nullptr;
    unsigned numAttrs = 0;
};
struct cudaFuncAttributes {
    size_t sharedSizeBytes;
    int numRegs, maxThreadsPerBlock;
};
struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount, l2CacheSize;
    size_t totalGlobalMem, sharedMemPerBlockOptin;
};
cudaError_t cudaGetDevice(int *d);
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr a, int d);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int d);
cudaError_t cudaDeviceGetPCIBusId(char *s, int n, int d);
cudaError_t cudaDriverGetVersion(int *v);
cudaError_t cudaRuntimeGetVersion(int *v);
cudaError_t cudaMemGetInfo(size_t *l, size_t *t);
cudaError_t cudaMalloc(void **p, size_t n);
template <typename T> inline cudaError_t cudaMalloc(T **p, size_t n)
{
    return cudaMalloc((void **)p, n);
}
cudaError_t cudaFree(void *p);
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind k);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind k, cudaStream_t s);
cudaError_t cudaMemsetAsync(void *to, int b, size_t n, cudaStream_t s);
cudaError_t cudaMemset(void *to, int b, size_t n);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned f);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaEventCreate(cudaEvent_t *e);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b);
cudaError_t cudaStreamBeginCapture(cudaStream_t s, int mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, int f);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e);
cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s);
inline cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}
inline cudaError_t cudaPeekAtLastError()
{
    return cudaSuccess;
}
inline const char *cudaGetErrorString(cudaError_t)
{
    return "emulated error";
}
namespace emu
{
void set_shared(const void *kernel, size_t bytes);
int occupancy(size_t shared, int threads);
} // namespace emu
template <typename K> inline cudaError_t cudaFuncSetAttribute(K *kernel, cudaFuncAttribute a, int v)
{
    if (a == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (v > 227 * 1024) return cudaErrorInvalidValue;
        emu::set_shared((const void *)kernel, (size_t)v);
    }
    return cudaSuccess;
}
template <typename K> inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, K *)
{
    *a = {0, 128, 1024};
    return cudaSuccess;
}
template <typename K>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, K *, int threads, size_t shared)
{
    *n = emu::occupancy(shared, threads);
    return cudaSuccess;
}
template <typename... P, typename... A>
inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...), A &&...args)
{
    bool early = false;
    for (unsigned i = 0; i < c->numAttrs; i++) {
        if (c->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
            early = c->attrs[i].val.programmaticStreamSerializationAllowed;
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension &&
            c->attrs[i].val.clusterDim.x * c->attrs[i].val.clusterDim.y * c->attrs[i].val.clusterDim.z > 1)
            emu::die("clusters are not emulated");
    }
    std::tuple<std::decay_t<P>...> held(args...);
    emu::launch(c->gridDim, c->blockDim, c->dynamicSmemBytes, early, (const void *)kernel,
                [=] { std::apply(kernel, held); });
    return cudaSuccess;
}
namespace emu
{
/* kernel<<<..>>>(args) */
struct config {
    dim3 grid, block;
    size_t shared;
    config(dim3 g, dim3 b, size_t s = 0, cudaStream_t = nullptr) : grid(g), block(b), shared(s) {}
};
template <typename... P, typename... A> inline void launch_plain(const config &c, void (*kernel)(P...), A &&...args)
{
    std::tuple<std::decay_t<P>...> held((std::decay_t<P>)args...);
    launch(c.grid, c.block, c.shared, false, (const void *)kernel, [=] { std::apply(kernel, held); });
}
} /* namespace emu */
#endif
