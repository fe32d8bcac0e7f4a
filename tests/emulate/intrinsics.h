/* Intrinsics of one thread. */
#ifndef VLA_EMULATE_INTRINSICS_H
#define VLA_EMULATE_INTRINSICS_H
#include "tests/emulate/numbers.h"

inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
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
inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
template <typename T> inline T __ldcg(const T *p)
{
    return *p;
}
inline void __nanosleep(unsigned)
{
    emu::yield("nanosleep");
}
inline void __threadfence()
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

#endif
