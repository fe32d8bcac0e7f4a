#include "lib/measure/variant.h"
#include "lib/op/work.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void vla_variants_free(vla_variants *variants)
{
    free(variants->items);
    *variants = (vla_variants){0};
}

static bool same_variant(const vla_case *a, const vla_case *b)
{
    const vla_problem *p = &a->problem, *q = &b->problem;
    return p->op == q->op && a->form == b->form && a->backend == b->backend && a->dtype == b->dtype &&
           a->mode == b->mode && a->backward == b->backward && a->threads == b->threads && p->B == q->B &&
           p->H == q->H && p->dk == q->dk && p->dv == q->dv && p->chunk == q->chunk && p->segments == q->segments;
}

static vla_variant_history *find(const vla_variants *variants, const vla_case *c)
{
    for (int i = 0; i < variants->count; i++)
        if (same_variant(&variants->items[i].c, c)) return &variants->items[i];
    return NULL;
}

static vla_variant_history *find_or_add(vla_variants *variants, const vla_case *c)
{
    vla_variant_history *h = find(variants, c);
    if (h) return h;
    if (variants->count == variants->capacity) {
        const int capacity = variants->capacity ? 2 * variants->capacity : 32;
        vla_variant_history *items = realloc(variants->items, (size_t)capacity * sizeof *items);
        if (!items) return NULL; /* only foresight is lost */
        variants->items = items;
        variants->capacity = capacity;
    }
    h = &variants->items[variants->count++];
    *h = (vla_variant_history){.c = *c};
    return h;
}

double vla_check_work(const vla_case *c, bool full)
{
    const vla_problem *p = &c->problem;
    const double heads = (double)p->B * (double)p->H, compared = full || heads < 4 ? heads : 4;
    if (p->op == VLA_SOFTMAX && c->mode == VLA_PREFILL && !full && p->T > 66)
        return compared * 66 * (double)p->T * (double)(p->dk + p->dv);
    return vla_work_flops(p) / heads * compared;
}

void vla_variants_ran(vla_variants *variants, const vla_bench *b)
{
    vla_variant_history *h = find_or_add(variants, &b->c);
    if (!h || h->ended) return;
    h->c = b->c;
    h->ran = true;
    h->run_seconds = b->run_seconds;
    h->run_flops = vla_work_flops(&b->c.problem);
    h->check_seconds = b->check.seconds;
    h->check_work = vla_check_work(&b->c, !strcmp(b->check.checked, "all"));
}

void vla_variants_end(vla_variants *variants, const vla_case *c, vla_row_status status, const char *reason)
{
    if (status == VLA_ROW_OK || status == VLA_ROW_FAIL) return;
    vla_variant_history *h = find_or_add(variants, c);
    if (!h || h->ended) return;
    h->ended = true;
    h->ended_at = vla_case_x(c);
    h->end = status;
    snprintf(h->reason, sizeof h->reason, "%s", reason ? reason : "");
}

bool vla_variants_ended(const vla_variants *variants, const vla_case *c, vla_row_status *status, char *reason,
                        size_t size)
{
    const vla_variant_history *h = find(variants, c);
    if (!h || !h->ended || vla_case_x(c) < h->ended_at) return false;
    *status = h->end;
    snprintf(reason, size, "ended at %s %lld: %s", c->mode == VLA_DECODE ? "L" : "T", (long long)h->ended_at,
             h->reason);
    return true;
}

double vla_variants_foresee(const vla_variants *variants, const vla_case *c, bool check_full)
{
    const double threads = c->threads > 1 ? c->threads : 1, optimistic = 2e11 * threads,
                 optimistic_naive = 5e9 * threads;
    const vla_variant_history *h = find(variants, c);
    const double flops = vla_work_flops(&c->problem), judged = vla_check_work(c, check_full);
    double run = flops / (c->backend == VLA_CUDA ? 1e15 : optimistic), check = judged / optimistic_naive;
    if (h && h->ran && h->run_flops > 0) run = h->run_seconds * flops / h->run_flops;
    if (h && h->ran && h->check_work > 0) check = h->check_seconds * judged / h->check_work;
    return check + 4 * run;
}
