/* The logistic function of a scalar: beta and gates. */
#ifndef VLA_CPU_SIGMOID_H
#define VLA_CPU_SIGMOID_H
#include "kernels/cpu/simd.h"

/* 1/(1 + exp(-x)) */
INLINE real sigmoid(real x)
{
    const double e = exp(-fabs((double)x));
    return (real)((x < 0 ? e : 1) / (1 + e));
}

#endif
