/* Small matrix products for the chunkwise forms: a chunk's rows against a cache-resident state.
 *
 * Tokens come in blocks of BLOCK = 8 rows; a chunk of C tokens is padded with zero rows to a whole number of blocks,
 * and zero rows change nothing (a zero direction leaves A alone, a zero key writes nothing). Row widths are PAD()ed
 * with zeros. Every product keeps its tile of the result in registers, reads the wide operand by whole vectors along
 * its rows and broadcasts the other, so no sum crosses lanes. Panels of tokens are also kept transposed
 * ([width][tokens]), which makes broadcasts contiguous and lets Gram products put tokens in lanes.
 */
#ifndef VLA_CPU_PANEL_H
#define VLA_CPU_PANEL_H
#include "kernels/cpu/features.h"

enum { BLOCK = 8 };
/* n rounded up to whole blocks; within PAD(n). */
#define BLOCKS(n) (((int64_t)(n) + BLOCK - 1) / BLOCK * BLOCK)
#if VLA_VEC_REGISTERS >= 32
enum { TILE_ROWS = 8 };
#else
enum { TILE_ROWS = 4 };
#endif
enum { TILE_VECS = 2 };

/* Transposes move square blocks of SQUARE lanes: a half vector of 16 floats, else a whole vector. */
#define SQUARE_BYTES (VLA_VEC_BYTES / (int)sizeof(real) > 8 ? VLA_VEC_BYTES / 2 : VLA_VEC_BYTES)
enum { SQUARE = SQUARE_BYTES / (int)sizeof(real) };
typedef real square_vec __attribute__((vector_size(SQUARE_BYTES)));
typedef real square_vecu __attribute__((vector_size(SQUARE_BYTES), aligned(sizeof(real)), may_alias));

/* Swaps the off-diagonal blocks of `size` lanes of rows a (upper) and b (lower). */
#define SWAP_BLOCKS(a, b, ...)                                                   \
    do {                                                                         \
        const square_vec swap_a = (a), swap_b = (b);                             \
        (a) = __builtin_shufflevector(swap_a, swap_b, SWAP_UPPER_##__VA_ARGS__); \
        (b) = __builtin_shufflevector(swap_a, swap_b, SWAP_LOWER_##__VA_ARGS__); \
    } while (0)
#define SWAP_UPPER_2_1 0, 2
#define SWAP_LOWER_2_1 1, 3
#define SWAP_UPPER_4_1 0, 4, 2, 6
#define SWAP_LOWER_4_1 1, 5, 3, 7
#define SWAP_UPPER_4_2 0, 1, 4, 5
#define SWAP_LOWER_4_2 2, 3, 6, 7
#define SWAP_UPPER_8_1 0, 8, 2, 10, 4, 12, 6, 14
#define SWAP_LOWER_8_1 1, 9, 3, 11, 5, 13, 7, 15
#define SWAP_UPPER_8_2 0, 1, 8, 9, 4, 5, 12, 13
#define SWAP_LOWER_8_2 2, 3, 10, 11, 6, 7, 14, 15
#define SWAP_UPPER_8_4 0, 1, 2, 3, 8, 9, 10, 11
#define SWAP_LOWER_8_4 4, 5, 6, 7, 12, 13, 14, 15

INLINE void square_transpose(square_vec x[SQUARE])
{
#if VLA_VEC_BYTES / (VLA_REAL_BITS / 8) >= 8
    UNROLL
    for (int i = 0; i < 4; i++) SWAP_BLOCKS(x[i], x[i + 4], 8_4);
    UNROLL
    for (int i = 0; i < 4; i++) SWAP_BLOCKS(x[i / 2 * 4 + i % 2], x[i / 2 * 4 + i % 2 + 2], 8_2);
    UNROLL
    for (int i = 0; i < 4; i++) SWAP_BLOCKS(x[2 * i], x[2 * i + 1], 8_1);
#elif VLA_VEC_BYTES / (VLA_REAL_BITS / 8) == 4
    SWAP_BLOCKS(x[0], x[2], 4_2);
    SWAP_BLOCKS(x[1], x[3], 4_2);
    SWAP_BLOCKS(x[0], x[1], 4_1);
    SWAP_BLOCKS(x[2], x[3], 4_1);
#else
    SWAP_BLOCKS(x[0], x[1], 2_1);
#endif
}

/* to[j * ldt + i] = from[i * ldf + j] for i < rows, j < width; both multiples of SQUARE. */
INLINE void panel_transpose(const real *from, int64_t ldf, int64_t rows, int64_t width, real *to, int64_t ldt)
{
    for (int64_t i = 0; i < rows; i += SQUARE) {
        for (int64_t j = 0; j < width; j += SQUARE) {
            square_vec x[SQUARE];
            UNROLL
            for (int r = 0; r < SQUARE; r++) x[r] = *(const square_vecu *)(from + (i + r) * ldf + j);
            square_transpose(x);
            UNROLL
            for (int r = 0; r < SQUARE; r++) *(square_vecu *)(to + (j + r) * ldt + i) = x[r];
        }
    }
}

/* One tile of left . right: element (r, k) of left is left[r * lr + k * lk]; right is [depth][..] with vectors along
 * its rows. */
INLINE void tile_product(const real *left, int64_t lr, int64_t lk, const real *right, int64_t ldr, int64_t depth,
                         real *out, int64_t ldo, const int vecs)
{
    vec sum[TILE_ROWS][TILE_VECS];
    UNROLL
    for (int r = 0; r < TILE_ROWS; r++) {
        UNROLL
        for (int j = 0; j < vecs; j++) sum[r][j] = vset(0);
    }
    for (int64_t k = 0; k < depth; k++) {
        vec x[TILE_VECS];
        UNROLL
        for (int j = 0; j < vecs; j++) x[j] = vload(right + k * ldr + j * LANES);
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            const vec y = vset(left[r * lr + k * lk]);
            UNROLL
            for (int j = 0; j < vecs; j++) sum[r][j] += y * x[j];
        }
    }
    UNROLL
    for (int r = 0; r < TILE_ROWS; r++) {
        UNROLL
        for (int j = 0; j < vecs; j++) vstore(out + r * ldo + j * LANES, sum[r][j]);
    }
}

INLINE void product_strided(const real *left, int64_t lr, int64_t lk, int64_t rows, const real *right, int64_t ldr,
                            int64_t depth, int64_t width, real *out, int64_t ldo)
{
    int64_t j = 0;
    for (; j + TILE_VECS * LANES <= width; j += TILE_VECS * LANES)
        for (int64_t r = 0; r < rows; r += TILE_ROWS)
            tile_product(left + r * lr, lr, lk, right + j, ldr, depth, out + r * ldo + j, ldo, TILE_VECS);
    for (; j < width; j += LANES)
        for (int64_t r = 0; r < rows; r += TILE_ROWS)
            tile_product(left + r * lr, lr, lk, right + j, ldr, depth, out + r * ldo + j, ldo, 1);
}

/* out [rows][width] = left^T right, left given transposed: [depth][ldl]. rows is a multiple of BLOCK, width of LANES.
 */
static __attribute__((noinline, unused)) void panel_product(const real *left, int64_t ldl, int64_t rows,
                                                            const real *right, int64_t ldr, int64_t depth,
                                                            int64_t width, real *out, int64_t ldo)
{
    product_strided(left, 1, ldl, rows, right, ldr, depth, width, out, ldo);
}

/* out [rows][tokens] = x panel: x [rows][ldx] by rows, panel [depth][ldp] with tokens in lanes. */
static __attribute__((noinline, unused)) void panel_gram(const real *x, int64_t ldx, int64_t rows, const real *panel,
                                                         int64_t ldp, int64_t depth, int64_t tokens, real *out,
                                                         int64_t ldo)
{
    product_strided(x, ldx, 1, rows, panel, ldp, depth, tokens, out, ldo);
}

/* One tile of m = scale m + sign x^T y, x [count][ldx], y [count][ldy]. */
INLINE void tile_update(real *m, int64_t ldm, const real *x, int64_t ldx, const real *y, int64_t ldy, int64_t count,
                        const int rows, const int vecs, const int sign, const real *scale)
{
    vec sum[BLOCK][4];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int j = 0; j < vecs; j++) {
            sum[r][j] = vload(m + r * ldm + j * LANES);
            if (scale) sum[r][j] *= *scale;
        }
    }
    for (int64_t block = 0; block < count; block += BLOCK) {
        UNROLL
        for (int c = 0; c < BLOCK; c++) {
            vec b[4];
            UNROLL
            for (int j = 0; j < vecs; j++) b[j] = vload(y + (block + c) * ldy + j * LANES);
            UNROLL
            for (int r = 0; r < rows; r++) {
                const vec a = vset(x[(block + c) * ldx + r]);
                UNROLL
                for (int j = 0; j < vecs; j++) {
                    if (sign > 0)
                        sum[r][j] += a * b[j];
                    else
                        sum[r][j] -= a * b[j];
                }
            }
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int j = 0; j < vecs; j++) vstore(m + r * ldm + j * LANES, sum[r][j]);
    }
}

INLINE void update_tiles(real *m, int64_t ldm, int64_t rows, int64_t width, const real *x, int64_t ldx, const real *y,
                         int64_t ldy, int64_t count, const int sign, const real *scale)
{
    if (VLA_VEC_REGISTERS >= 32 && width % (4 * LANES) == 0) { /* fewer, longer streams of rows */
        for (int64_t r = 0; r < rows; r += 4)
            for (int64_t j = 0; j < width; j += 4 * LANES)
                tile_update(m + r * ldm + j, ldm, x + r, ldx, y + j, ldy, count, 4, 4, sign, scale);
        return;
    }
    for (int64_t r = 0; r < rows; r += TILE_ROWS) {
        int64_t j = 0;
        for (; j + TILE_VECS * LANES <= width; j += TILE_VECS * LANES)
            tile_update(m + r * ldm + j, ldm, x + r, ldx, y + j, ldy, count, TILE_ROWS, TILE_VECS, sign, scale);
        for (; j < width; j += LANES)
            tile_update(m + r * ldm + j, ldm, x + r, ldx, y + j, ldy, count, TILE_ROWS, 1, sign, scale);
    }
}

/* m [rows][width] += x^T y over `count` tokens, a multiple of BLOCK. */
static __attribute__((noinline, unused)) void panel_update(real *m, int64_t ldm, int64_t rows, int64_t width,
                                                           const real *x, int64_t ldx, const real *y, int64_t ldy,
                                                           int64_t count)
{
    update_tiles(m, ldm, rows, width, x, ldx, y, ldy, count, 1, NULL);
}

/* m -= w^T w; the result is symmetric to the last bit, as tiles (i, j) and (j, i) add the same products in one order.
 */
static __attribute__((noinline, unused)) void panel_downdate(real *m, int64_t ldm, int64_t rows, int64_t width,
                                                             const real *w, int64_t ldw, int64_t count)
{
    update_tiles(m, ldm, rows, width, w, ldw, w, ldw, count, -1, NULL);
}

/* m = scale m + x^T y. */
static __attribute__((noinline, unused)) void panel_update_scaled(real *m, int64_t ldm, int64_t rows, int64_t width,
                                                                  const real *x, int64_t ldx, const real *y,
                                                                  int64_t ldy, int64_t count, real scale)
{
    update_tiles(m, ldm, rows, width, x, ldx, y, ldy, count, 1, &scale);
}

/* m += x^T y with Kahan's compensation: carry holds what rounding took from m so far (subtracted from it). */
INLINE void tile_update_carry(real *m, real *carry, int64_t ldm, const real *x, int64_t ldx, const real *y, int64_t ldy,
                              int64_t count, const int vecs)
{
    vec sum[TILE_ROWS][TILE_VECS];
    UNROLL
    for (int r = 0; r < TILE_ROWS; r++) {
        UNROLL
        for (int j = 0; j < vecs; j++) sum[r][j] = vload(carry + r * ldm + j * LANES);
    }
    for (int64_t c = 0; c < count; c++) {
        vec b[TILE_VECS];
        UNROLL
        for (int j = 0; j < vecs; j++) b[j] = vload(y + c * ldy + j * LANES);
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            const vec a = vset(x[c * ldx + r]);
            UNROLL
            for (int j = 0; j < vecs; j++) sum[r][j] += a * b[j];
        }
    }
    UNROLL
    for (int r = 0; r < TILE_ROWS; r++) {
        UNROLL
        for (int j = 0; j < vecs; j++) {
            const vec old = vload(m + r * ldm + j * LANES), new = old + sum[r][j];
            vstore(carry + r * ldm + j * LANES, sum[r][j] - (new - old));
            vstore(m + r * ldm + j * LANES, new);
        }
    }
}

static __attribute__((noinline, unused)) void panel_update_carry(real *m, real *carry, int64_t ldm, int64_t rows,
                                                                 int64_t width, const real *x, int64_t ldx,
                                                                 const real *y, int64_t ldy, int64_t count)
{
    for (int64_t r = 0; r < rows; r += TILE_ROWS) {
        int64_t j = 0;
        for (; j + TILE_VECS * LANES <= width; j += TILE_VECS * LANES)
            tile_update_carry(m + r * ldm + j, carry + r * ldm + j, ldm, x + r, ldx, y + j, ldy, count, TILE_VECS);
        for (; j < width; j += LANES)
            tile_update_carry(m + r * ldm + j, carry + r * ldm + j, ldm, x + r, ldx, y + j, ldy, count, 1);
    }
}

/* x = L^-1 x in place, x [tokens][ldx]: row t loses coef(t, s) x_s for s < t, then is scaled by scale[t]. The
 * coefficient (t, s) is coef[t * ct + s * cs]. Entries at s >= t are never read into a product, so they may be NaN. */
INLINE void solve_lower(real *x, int64_t ldx, int64_t tokens, int64_t width, const real *coef, int64_t ct, int64_t cs,
                        const real *scale)
{
    for (int64_t block = 0; block < tokens; block += BLOCK) {
        const real *c = coef + block * ct;
        for (int64_t j = 0; j < width; j += LANES) {
            vec row[BLOCK];
            UNROLL
            for (int t = 0; t < BLOCK; t++) row[t] = vload(x + (block + t) * ldx + j);
            for (int64_t s = 0; s < block; s++) {
                const vec y = vload(x + s * ldx + j);
                UNROLL
                for (int t = 0; t < BLOCK; t++) row[t] -= c[t * ct + s * cs] * y;
            }
            UNROLL
            for (int s = 0; s < BLOCK; s++) {
                if (scale) row[s] *= scale[block + s];
                vstore(x + (block + s) * ldx + j, row[s]);
                UNROLL
                for (int t = s + 1; t < BLOCK; t++) row[t] -= c[t * ct + (block + s) * cs] * row[s];
            }
        }
    }
}

/* y_t += sign coef(t, s) x_s for all s <= t. */
INLINE void apply_lower(real *y, int64_t ldy, const real *x, int64_t ldx, int64_t tokens, int64_t width,
                        const real *coef, int64_t ct, int64_t cs, const int sign)
{
    for (int64_t block = 0; block < tokens; block += BLOCK) {
        const real *c = coef + block * ct;
        for (int64_t j = 0; j < width; j += LANES) {
            vec row[BLOCK];
            UNROLL
            for (int t = 0; t < BLOCK; t++) row[t] = vload(y + (block + t) * ldy + j);
            for (int64_t s = 0; s < block; s++) {
                const vec b = (real)sign * vload(x + s * ldx + j);
                UNROLL
                for (int t = 0; t < BLOCK; t++) row[t] += c[t * ct + s * cs] * b;
            }
            UNROLL
            for (int s = 0; s < BLOCK; s++) {
                const vec b = (real)sign * vload(x + (block + s) * ldx + j);
                UNROLL
                for (int t = s; t < BLOCK; t++) row[t] += c[t * ct + (block + s) * cs] * b;
            }
            UNROLL
            for (int t = 0; t < BLOCK; t++) vstore(y + (block + t) * ldy + j, row[t]);
        }
    }
}

/* Cholesky factor of I + g for the symmetric g [tokens][ldg], of which g[s * ldg + t] with t >= s is read:
 * lower [tokens][tokens] gets L below its diagonal, inverse 1/diag(L). Pivots are 1 + u.z with A positive definite, so
 * at least 1: what rounding takes below is put back (by a select: NaN stays). */
INLINE void cholesky_fixed(const real *g, int64_t ldg, int64_t tokens, real *lower, real *inverse)
{
    for (int64_t s = 0; s < tokens; s++) {
        real pivot = g[s * ldg + s] + 1;
        for (int64_t r = 0; r < s; r++) pivot -= lower[s * tokens + r] * lower[s * tokens + r];
        pivot = pivot < 1 ? 1 : pivot;
        const real scale = 1 / (real)sqrt((double)pivot);
        inverse[s] = scale;
        for (int64_t t = s + 1; t < tokens; t++) {
            real x = g[s * ldg + t];
            for (int64_t r = 0; r < s; r++) x -= lower[t * tokens + r] * lower[s * tokens + r];
            lower[t * tokens + s] = x * scale;
        }
    }
}

static __attribute__((unused)) void cholesky(const real *g, int64_t ldg, int64_t tokens, real *lower, real *inverse)
{
    if (tokens == BLOCK)
        cholesky_fixed(g, ldg, BLOCK, lower, inverse);
    else
        cholesky_fixed(g, ldg, tokens, lower, inverse);
}

/* x -= y over `count` elements, a multiple of LANES. */
INLINE void subtract_rows(real *x, const real *y, int64_t count)
{
    for (int64_t i = 0; i < count; i += LANES) vstore(x + i, vload(x + i) - vload(y + i));
}

/* Stores the first `count` elements of a padded row. */
INLINE void row_store(real *to, const real *from, int64_t count)
{
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) vstore(to + i, vload(from + i));
    if (i < count) memcpy(to + i, from + i, (size_t)(count - i) * sizeof(real));
}

INLINE real row_dot(const real *x, const real *y, int64_t width)
{
    vec sum = vset(0);
    for (int64_t i = 0; i < width; i += LANES) sum += vload(x + i) * vload(y + i);
    return vsum(sum);
}

/* St [kp][vp], zero-padded, from S [dv][dk], or zero where S is NULL. */
static __attribute__((unused)) void state_load(real *st, int64_t kp, int64_t vp, const real *S, int64_t dk, int64_t dv)
{
    memset(st, 0, (size_t)(kp * vp) * sizeof(real));
    if (!S) return;
    for (int64_t i = 0; i < dk; i++)
        for (int64_t j = 0; j < dv; j++) st[i * vp + j] = S[j * dk + i];
}

static __attribute__((unused)) void state_store(real *S, int64_t dk, int64_t dv, const real *st, int64_t vp)
{
    for (int64_t j = 0; j < dv; j++)
        for (int64_t i = 0; i < dk; i++) S[j * dk + i] = st[i * vp + j];
}

/* Square A [kp][kp], zero-padded, from A [dk][dk], or diagonal where A is NULL. */
static __attribute__((unused)) void matrix_load(real *a, int64_t kp, const real *A, int64_t dk, real diagonal)
{
    memset(a, 0, (size_t)(kp * kp) * sizeof(real));
    for (int64_t i = 0; i < dk; i++) {
        if (A)
            memcpy(a + i * kp, A + i * dk, (size_t)dk * sizeof(real));
        else
            a[i * kp + i] = diagonal;
    }
}

static __attribute__((unused)) void matrix_store(real *A, int64_t dk, const real *a, int64_t kp)
{
    for (int64_t i = 0; i < dk; i++) memcpy(A + i * dk, a + i * kp, (size_t)dk * sizeof(real));
}

#endif
