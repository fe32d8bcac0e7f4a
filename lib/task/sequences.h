/* Token sequences of the trained tasks, made from a seed: the same on every machine, whatever the thread count.
 *
 *   mqar paper    k1 v1 .. kn vn SEP q1 .. qm: n distinct keys, values and queries drawn with replacement; the value of
 *                 the key is asked at every query; m = T - 2n - 1. Keys and values of [0, vocab - 2], SEP = vocab - 1
 *   mqar zoology  (Arora et al. 2023) n pairs, keys of [1, vocab/2), values of [vocab/2, vocab); then every key once
 *                 more after a random gap drawn without replacement from a power law, asked there; other places hold
 *                 random tokens
 *   copy          m random tokens, SEP, the same m, T = 2m + 1; token i is asked at position m + i
 *   copy own      the same sequence; token i is asked at position m + 1 + i, where it is the input itself
 *
 * Splits never share a sample: a sample belongs to the split that a hash of its tokens names, and is drawn again until
 * it does. */
#ifndef VLA_TASK_SEQUENCES_H
#define VLA_TASK_SEQUENCES_H
#include "lib/vla.h"

typedef enum vla_task_kind { VLA_MQAR, VLA_MQAR_ZOOLOGY, VLA_COPY, VLA_COPY_OWN, VLA_TASK_KINDS } vla_task_kind;
typedef enum vla_split { VLA_TRAIN, VLA_VALIDATE, VLA_TEST } vla_split;

typedef struct vla_sequences {
    vla_task_kind kind;
    int64_t vocab, n, T; /* n: pairs; copy: not used */
    uint64_t seed;
} vla_sequences;

bool vla_sequences_is_copy(vla_task_kind kind);
/* T = 3n + 1 (paper), 4n or more and even (zoology), 63 (copy) unless given. */
int64_t vla_sequences_length(vla_task_kind kind, int64_t n);
/* Names the size at fault. */
vla_status vla_sequences_check(const vla_sequences *sequences, vla_error *error);
/* Samples first .. first + B - 1 of a split: tokens and targets [B, T], -1 where nothing is asked. */
vla_status vla_sequences_make(const vla_sequences *sequences, vla_split split, int64_t first, int64_t B,
                              int32_t *tokens, int32_t *targets, vla_error *error);
/* The split a sample of T tokens belongs to. */
vla_split vla_split_of(const int32_t *tokens, int64_t T);

#endif
