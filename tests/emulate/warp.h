/* What the threads of a warp or a block do together. */
#ifndef VLA_EMULATE_WARP_H
#define VLA_EMULATE_WARP_H
#include "tests/emulate/intrinsics.h"

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
inline unsigned __reduce_max_sync(unsigned mask, unsigned x)
{
    return emu::reduce<unsigned, emu::greater<unsigned>>(mask, x);
}
inline int __reduce_max_sync(unsigned mask, int x)
{
    return emu::reduce<int, emu::greater<int>>(mask, x);
}

#endif
