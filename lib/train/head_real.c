/* The backward pass of one head behind one signature (head_code.h). */
#include "lib/train/head_code.h"
#include "lib/train/attention.h"

static const attention *const operators[VLA_OPS] = {&KERNEL(attention_softmax), &KERNEL(attention_linear),
                                                    &KERNEL(attention_delta),   &KERNEL(attention_decay),
                                                    &KERNEL(attention_vla),     &KERNEL(attention_rls)};

static attention_shape shape_of(const vla_problem *p)
{
    return (attention_shape){.op = p->op,
                             .len = p->T,
                             .dk = p->dk,
                             .dv = p->dv,
                             .features = p->features,
                             .key_features = p->features,
                             .qk_l2 = p->qk_l2,
                             .one_gate = p->gate == VLA_GATE_TOKEN,
                             .ratio = p->op == VLA_LINEAR || (p->op == VLA_VLA && p->output == VLA_RATIO),
                             .floor = (real)VLA_RATIO_EPS,
                             .lambda0 = (real)p->lambda0,
                             .refresh_period = p->refresh_period,
                             .refresh_eps = (real)p->refresh_eps};
}

static int64_t scratch_size(const vla_problem *p)
{
    const attention_shape s = shape_of(p);
    return PAD(operators[p->op]->scratch(&s)) + PAD(p->T * p->dk); /* the second for du where u is k */
}

static void backward(const vla_problem *p, const head_call *call, void *memory)
{
    const attention_shape s = shape_of(p);
    real *scratch = memory, *own = scratch + PAD(operators[p->op]->scratch(&s));
    const bool shared = p->op == VLA_VLA && !call->u; /* u is k: their gradients add */
    const attention_rows rows = {.q = call->q,
                                 .k = call->k,
                                 .v = call->v,
                                 .u = p->op != VLA_VLA ? NULL
                                      : shared         ? call->k
                                                       : call->u,
                                 .g = call->g,
                                 .stride = p->dk,
                                 .v_stride = p->dv,
                                 .u_stride = p->dk,
                                 .g_stride = p->op == VLA_DECAY && p->gate == VLA_GATE_ROW ? p->dv : 1,
                                 .o_stride = p->dv};
    const attention_gradients d = {.o = call->grad_o,
                                   .q = call->grad_q,
                                   .k = call->grad_k,
                                   .v = call->grad_v,
                                   .u = shared ? own : call->grad_u,
                                   .g = call->grad_g};
    operators[p->op]->backward(&s, &rows, &d, scratch);
    for (int64_t i = 0; shared && i < p->T * p->dk; i++) d.k[i] += own[i];
}

extern const head_code KERNEL(head);
const head_code KERNEL(head) = {VLA_REAL_BITS == 64 ? VLA_F64 : VLA_F32,
                                VLA_VEC_BYTES == 64   ? VLA_ISA_AVX512
                                : VLA_VEC_BYTES == 32 ? VLA_ISA_AVX2
                                                      : VLA_ISA_BASE,
                                scratch_size, backward};
