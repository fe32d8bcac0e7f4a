/* Products of the emulator: mma, and wgmma out of shared memory. */
#include "tests/emulate/parts.h"

namespace emu
{
static uint64_t mmas = 0;

void mma_compute(const float (&A)[16][16], const float (&B)[16][8], const float (&C)[16][8], float (&D)[16][8], int K)
{
    mmas++;
    double b[16][8];
    for (int k = 0; k < K; k++)
        for (int n = 0; n < 8; n++) b[k][n] = B[k][n];
    for (int r = 0; r < 16; r++) {
        double acc[8];
        for (int n = 0; n < 8; n++) acc[n] = C[r][n];
        for (int k = 0; k < K; k++) {
            const double a = A[r][k];
            for (int n = 0; n < 8; n++) acc[n] += a * b[k][n];
        }
        for (int n = 0; n < 8; n++) D[r][n] = round_sum(acc[n]);
    }
}

static uint32_t swizzle(uint32_t at, int kind)
{
    if (kind == 1) return at ^ (at >> 3 & 0x70);
    if (kind == 2) return at ^ (at >> 3 & 0x30);
    if (kind == 3) return at ^ (at >> 3 & 0x10);
    return at;
}
/* Element (r, k) of an operand, r along m or n. */
static uint16_t element(Block *b, uint64_t d, bool turned, int r, int k)
{
    const uint32_t start = (uint32_t)(d & 0x3fff) << 4, lead = (uint32_t)(d >> 16 & 0x3fff) << 4,
                   stride = (uint32_t)(d >> 32 & 0x3fff) << 4;
    const int kind = (int)(d >> 62 & 3);
    if (d >> 49 & 7) die("wgmma: base offset is not emulated");
    uint32_t at;
    if (kind == 0)
        at = turned ? (uint32_t)(r / 8) * stride + (uint32_t)(r % 8) * 2 + (uint32_t)(k % 8) * 16 +
                          (uint32_t)(k / 8) * lead
                    : (uint32_t)(r / 8) * stride + (uint32_t)(r % 8) * 16 + (uint32_t)(k % 8) * 2 +
                          (uint32_t)(k / 8) * lead;
    else {
        const int width = kind == 1 ? 64 : kind == 2 ? 32 : 16; /* elements a row */
        at = turned ? (uint32_t)(r / width) * lead + (uint32_t)(r % width) * 2 +
                          (uint32_t)(k % 8) * (uint32_t)(2 * width) + (uint32_t)(k / 8) * stride
                    : (uint32_t)(r / 8) * stride + (uint32_t)(r % 8) * (uint32_t)(2 * width) + (uint32_t)k * 2;
    }
    uint16_t x;
    memcpy(&x, shared_of(b, swizzle(start + at, kind), 2), 2);
    return x;
}
static void compute(Block *b, int warp, wgmma_arg *const *args)
{
    const wgmma_arg &one = *args[0];
    const auto up = [&](uint16_t x) { return one.bf ? bf16_to_float(x) : half_to_float(x); };
    float A[16][16];
    if (one.registers) {
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 2; j++)
                    A[l / 4 + i % 2 * 8][i / 2 * 8 + 2 * (l % 4) + j] = up((uint16_t)(args[l]->a[i] >> 16 * j));
    } else {
        for (int r = 0; r < 16; r++)
            for (int k = 0; k < 16; k++) A[r][k] = up(element(b, one.left, one.turn_left, 16 * (warp % 4) + r, k));
    }
    for (int n0 = 0; n0 < one.n; n0 += 8) {
        float B[16][8], C[16][8], D[16][8];
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 8; n++)
                B[k][n] = one.scale_b * one.scale_a * up(element(b, one.right, one.turn_right, n0 + n, k));
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++)
                C[l / 4 + i / 2 * 8][2 * (l % 4) + i % 2] = one.add ? *args[l]->d[n0 / 2 + i] : 0.0f;
        mma_compute(A, B, C, D, 16);
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++) *args[l]->d[n0 / 2 + i] = D[l / 4 + i / 2 * 8][2 * (l % 4) + i % 2];
    }
}
static void run_wgmma(void **args, uint32_t here)
{
    if (here != 0xffffffffu) die("wgmma with lanes that have ended");
    const wgmma_arg &one = *(wgmma_arg *)args[0];
    for (int l = 1; l < 32; l++) {
        const wgmma_arg &x = *(wgmma_arg *)args[l];
        if (x.n != one.n || x.right != one.right || x.left != one.left || x.add != one.add)
            die("wgmma: lanes have different descriptors");
    }
    if (copies_mode == 0) {
        compute(cur->block, cur->warp->index, (wgmma_arg **)args);
        return;
    }
    auto p = std::make_unique<Product>();
    for (int l = 0; l < 32; l++) p->arg[l] = *(wgmma_arg *)args[l];
    cur->warp->products.push_back(std::move(p));
}
void wgmma(wgmma_arg &a)
{
    collective(0xffffffffu, "wgmma", &a, run_wgmma);
}
void wgmma_commit()
{
    collective(0xffffffffu, "wgmma.commit", nullptr, [](void **, uint32_t) {
        cur->warp->product_groups.push_back(std::move(cur->warp->products));
        cur->warp->products.clear();
    });
}
void wgmma_wait(int left)
{
    int n = left;
    collective(0xffffffffu, "wgmma.wait", &n, [](void **args, uint32_t) {
        Warp *w = cur->warp;
        const int keep = *(int *)args[cur->lane];
        while ((int)w->product_groups.size() > keep) {
            for (auto &p : w->product_groups.front()) {
                wgmma_arg *a[32];
                for (int l = 0; l < 32; l++) a[l] = &p->arg[l];
                compute(cur->block, w->index, a);
            }
            w->product_groups.pop_front();
        }
    });
}
uint64_t mma_count()
{
    return mmas;
}
} /* namespace emu */
