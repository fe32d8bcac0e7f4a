/* Cases for the emulated chunkwise kernels, judged by the naive float64 form on the inputs rounded to the dtype. */
#include "tests/emulate/emulator.h"
#include <string>
#include <time.h>
extern "C" {
#include "kernels/kernel.h"
#include "lib/base/random.h"
#include "lib/tensor/npy.h"
#include "lib/tensor/tensor.h"
extern const vla_variant vla_naive_cpu, delta_naive_cpu, vla_chunk_cuda_bf16, vla_chunk_cuda_f16, delta_chunk_cuda_bf16,
    delta_chunk_cuda_f16, linear_naive_cpu, linear_chunk_cuda_bf16, linear_chunk_cuda_f16, linear_scan_cuda_tf32;
}
namespace emu
{
void configure();
uint64_t mma_count();
} // namespace emu

struct test {
    std::string op = "vla", dtype = "bf16", kind = "normal", back = "auto";
    int64_t T = 256, H = 2, d = 64, dv = 0, split = 0, sms = 132, per = 0, budget = 0;
    bool ratio = true;
    double lambda0 = 0.1;
    bool no_u = false;
    std::string features = "elu1";
    bool qk_l2 = false;
};
/* Of the tensors in memory. */
static vla_dtype dtype_of(const test &c)
{
    return c.dtype == "tf32" ? VLA_F32 : c.dtype == "f16" ? VLA_F16 : VLA_BF16;
}
static size_t element_of(const test &c)
{
    return c.dtype == "tf32" ? 4 : 2;
}

struct host {
    std::vector<double> q, k, v, u, b, o, S, A, n;
};

static int failures = 0;
static std::string data_folder = "tests/data";

static bool load(std::vector<double> &to, const std::string &path, int64_t H, int64_t T, int64_t d, int64_t from)
{
    vla_tensor t;
    vla_error e;
    memset(&t, 0, sizeof t);
    if (vla_npy_read(&t, path.c_str(), VLA_F64, &e) != VLA_OK) {
        fprintf(stderr, "%s\n", e.message);
        return false;
    }
    const int64_t D = t.shape[t.rank - 1], N = t.shape[t.rank - 2], heads = t.count / D / N;
    to.assign((size_t)(H * T * d), 0);
    for (int64_t h = 0; h < H; h++)
        for (int64_t i = 0; i < T; i++)
            for (int64_t j = 0; j < d; j++) /* wider than the tensor: the next head's columns */
                to[(size_t)((h * T + i) * d + j)] =
                    ((double *)t.data)[(((h + j / D) % heads) * N + (from + i) % N) * D + j % D];
    vla_tensor_destroy(&t);
    return true;
}

static bool make(const test &c, host &x)
{
    const int64_t rows = c.H * c.T, dk = c.d, dv = c.dv ? c.dv : c.d;
    vla_rng rng = vla_rng_seed(42, 1);
    const auto fill = [&](std::vector<double> &to, int64_t n) {
        to.resize((size_t)n);
        for (auto &y : to) y = vla_rng_normal(&rng);
    };
    fill(x.q, rows * dk), fill(x.k, rows * dk), fill(x.v, rows * dv), fill(x.u, rows * dk), fill(x.b, rows);
    const auto row = [&](std::vector<double> &m, int64_t h, int64_t t) { return &m[(size_t)((h * c.T + t) * dk)]; };
    if (c.kind == "normal") {
    } else if (c.kind == "equal") { /* all keys and u equal */
        for (int64_t h = 0; h < c.H; h++)
            for (int64_t t = 0; t < c.T; t++)
                for (int64_t j = 0; j < dk; j++)
                    row(x.k, h, t)[j] = row(x.k, h, 0)[j], row(x.u, h, t)[j] = row(x.u, h, 0)[j];
    } else if (c.kind == "near") { /* nearly equal */
        for (int64_t h = 0; h < c.H; h++)
            for (int64_t t = 1; t < c.T; t++)
                for (int64_t j = 0; j < dk; j++)
                    row(x.k, h, t)[j] = row(x.k, h, 0)[j] + 0.02 * row(x.k, h, t)[j],
                                row(x.u, h, t)[j] = row(x.u, h, 0)[j] + 0.02 * row(x.u, h, t)[j];
    } else if (c.kind == "zeros") { /* phi 0 for every fifth, tiny for every seventh; u 0 and tiny too */
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < dk; j++) {
                double &k = x.k[(size_t)(r * dk + j)], &u = x.u[(size_t)(r * dk + j)];
                if (r % 5 == 2)
                    k = c.features == "elu1" ? -1000 : 0;
                else if (r % 7 == 3)
                    k = c.features == "elu1" ? k - 20 : k * 1e-4;
                if (r % 11 == 4)
                    u = 0;
                else if (r % 13 == 6)
                    u *= 1e-4;
            }
    } else if (c.kind == "turn") { /* one direction, then another from three quarters on */
        for (int64_t h = 0; h < c.H; h++)
            for (int64_t t = 0; t < c.T; t++)
                for (int64_t j = 0; j < dk; j++) {
                    const bool late = t >= c.T * 3 / 4;
                    const double at = j == (late ? 1 : 0) ? 12 : -3;
                    row(x.k, h, t)[j] = at + 0.1 * row(x.k, h, t)[j];
                    row(x.u, h, t)[j] = (j == (late ? 1 : 0) ? 1 : 0) + 0.01 * row(x.u, h, t)[j];
                }
    } else if (c.kind == "axis") { /* exact directions, a new one after many tokens */
        for (int64_t h = 0; h < c.H; h++)
            for (int64_t t = 0; t < c.T; t++)
                for (int64_t j = 0; j < dk; j++) {
                    const int64_t on = t >= c.T * 3 / 4 ? 5 : 0;
                    row(x.u, h, t)[j] = j == on ? 1 : 0;
                    row(x.k, h, t)[j] = j == on ? 30 : -15;
                }
    } else if (c.kind == "large") { /* values in very different sizes */
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < dv; j++)
                x.v[(size_t)(r * dv + j)] *= r % c.T / 100 % 3 == 1 ? 100 : r % c.T / 100 % 3 == 2 ? 0.01 : 1;
    } else if (c.kind == "loud") { /* the last key of every 64 tokens 10,000 times the others */
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < dk && r % c.T % 64 == 63; j++) x.k[(size_t)(r * dk + j)] *= 1e4;
    } else if (c.kind == "vla_lm" || c.kind == "softmax_lm") {
        const std::string folder = data_folder + "/" + c.kind + "/";
        const int64_t from = 0;
        if (!load(x.q, folder + "q.npy", c.H, c.T, dk, from) || !load(x.k, folder + "k.npy", c.H, c.T, dk, from) ||
            !load(x.v, folder + "v.npy", c.H, c.T, dv, from))
            return false;
        if (c.kind == "vla_lm") {
            if (!load(x.u, folder + "u.npy", c.H, c.T, dk, from)) return false;
        } else
            x.u = x.k;
    } else {
        fprintf(stderr, "unknown kind %s\n", c.kind.c_str());
        return false;
    }
    if (c.no_u) x.u = x.k;
    const vla_dtype dt = dtype_of(c);
    for (auto *m : {&x.q, &x.k, &x.v, &x.u, &x.b})
        for (auto &y : *m) {
            uint32_t there;
            vla_convert(&there, dt, &y, VLA_F64, 1);
            vla_convert(&y, VLA_F64, &there, dt, 1);
        }
    return true;
}

static vla_problem problem_of(const test &c)
{
    vla_problem p;
    memset(&p, 0, sizeof p);
    p.op = c.op == "delta" ? VLA_DELTA : c.op == "linear" ? VLA_LINEAR : VLA_VLA;
    p.B = 1, p.H = c.H, p.T = p.Tk = c.T, p.dk = c.d, p.dv = c.dv ? c.dv : c.d;
    p.features = c.features == "silu" ? VLA_SILU : c.features == "identity" ? VLA_IDENTITY : VLA_ELU1;
    p.output = c.ratio ? VLA_RATIO : VLA_PLAIN, p.lambda0 = c.lambda0, p.qk_l2 = c.qk_l2;
    return p;
}

struct device_run {
    std::vector<unsigned char> o;
    std::vector<float> S, A, n;
    bool ok = true, overlap = false;
    char message[sizeof(vla_error)] = "";
};

static void *upload(const std::vector<double> &x, const test &c, int64_t H, int64_t T, int64_t width, int64_t from,
                    int64_t n)
{
    void *p = nullptr;
    const int64_t row = width * (int64_t)element_of(c);
    cudaMalloc(&p, (size_t)(H * n * row));
    for (int64_t h = 0; h < H; h++)
        vla_convert((char *)p + h * n * row, dtype_of(c), &x[(size_t)((h * T + from) * width)], VLA_F64, n * width);
    return p;
}

/* `between`: the run, one of other inputs on the same workspace and the run again follow each other without a wait. */
static device_run on_device(const test &c, const host &x, bool between)
{
    device_run r;
    const vla_problem whole = problem_of(c);
    const vla_dtype dt = dtype_of(c);
    const int64_t size = (int64_t)element_of(c);
    const vla_variant &variant = c.op == "linear"  ? (dt == VLA_F32   ? linear_scan_cuda_tf32
                                                      : dt == VLA_F16 ? linear_chunk_cuda_f16
                                                                      : linear_chunk_cuda_bf16)
                                 : c.op == "delta" ? (dt == VLA_F16 ? delta_chunk_cuda_f16 : delta_chunk_cuda_bf16)
                                                   : (dt == VLA_F16 ? vla_chunk_cuda_f16 : vla_chunk_cuda_bf16);
    const int64_t dk = whole.dk, dv = whole.dv, H = c.H;
    const bool vla = c.op == "vla", sums = c.op != "delta";
    float *S, *A, *n;
    cudaMalloc(&S, (size_t)(H * dk * dv * 4)), cudaMalloc(&A, (size_t)(H * dk * dk * 4)),
        cudaMalloc(&n, (size_t)(H * dk * 4));
    r.o.resize((size_t)(H * c.T * dv * size));
    int64_t done = 0, t_count = 0;
    for (int part = 0; part < 2; part++) {
        const int64_t from = part == 0 ? 0 : c.split, T = part == 0 && c.split ? c.split : c.T - from;
        if (part == 1 && !c.split) break;
        vla_problem p = whole;
        p.T = p.Tk = T;
        vla_tensors t;
        memset(&t, 0, sizeof t);
        void *q = upload(x.q, c, H, c.T, dk, from, T), *k = upload(x.k, c, H, c.T, dk, from, T),
             *v = upload(x.v, c, H, c.T, dv, from, T), *u = upload(x.u, c, H, c.T, dk, from, T),
             *b = upload(x.b, c, H, c.T, 1, from, T), *o = nullptr, *work = nullptr;
        cudaMalloc(&o, (size_t)(H * T * dv * size));
        t.q = q, t.k = k, t.v = v, t.u = vla && !c.no_u ? u : nullptr, t.b = c.op == "delta" ? b : nullptr;
        t.o = o, t.S = S, t.A = vla ? A : nullptr, t.n = sums ? n : nullptr, t.t = &t_count, t.state_in = part == 1;
        vla_error e;
        memset(&e, 0, sizeof e);
        int64_t bytes = 0;
        vla_status status = VLA_OK;
        if (variant.supports && !variant.supports(&p, r.message, sizeof r.message)) status = VLA_ERR_UNSUPPORTED;
        if (status == VLA_OK) status = variant.workspace(&p, 1, &bytes, &e);
        cudaMalloc(&work, (size_t)bytes + 64);
        vla_call call;
        memset(&call, 0, sizeof call);
        vla_session session;
        memset(&session, 0, sizeof session);
        call.problem = &p, call.tensors = &t, call.work = work, call.session = &session;
        std::vector<void *> more;
        const auto room = [&](int64_t size) {
            void *m = nullptr;
            cudaMalloc(&m, (size_t)size);
            more.push_back(m);
            return m;
        };
        void *o_before = nullptr, *S_before = nullptr;
        if (status == VLA_OK && between && part == 0) {
            const int64_t wide = std::max(dk, dv);
            vla_tensors before = t, other = t;
            int64_t count = 0;
            uint16_t *in = (uint16_t *)room(H * T * wide * size + 16);
            for (int64_t i = 0; i < H * T * wide * size / 2; i++)
                in[i] = (uint16_t)(0x3c00 + (uint64_t)i * 2654435761u % 0x300);
            o_before = before.o = room(H * T * dv * size), S_before = before.S = room(H * dk * dv * 4);
            other.o = room(H * T * dv * size), other.S = room(H * dk * dv * 4);
            if (vla) before.A = room(H * dk * dk * 4), other.A = room(H * dk * dk * 4);
            if (sums) before.n = room(H * dk * 4), other.n = room(H * dk * 4);
            other.q = other.k = other.v = in, other.b = nullptr, before.t = other.t = &count;
            if (other.u) other.u = in;
            call.tensors = &before;
            status = variant.run(&call, &e);
            call.tensors = &other;
            if (status == VLA_OK) status = variant.run(&call, &e);
            call.tensors = &t;
        }
        if (status == VLA_OK) status = variant.run(&call, &e);
        if (status != VLA_OK) {
            r.ok = false;
            if (!*r.message) snprintf(r.message, sizeof r.message, "%s", e.message);
        }
        cudaDeviceSynchronize();
        for (int64_t h = 0; h < H; h++)
            memcpy(&r.o[(size_t)((h * c.T + from) * dv * size)], (char *)o + h * T * dv * size,
                   (size_t)(T * dv * size));
        if (o_before && (memcmp(o_before, o, (size_t)(H * T * dv * size)) != 0 ||
                         memcmp(S_before, S, (size_t)(H * dk * dv * 4)) != 0))
            r.overlap = true;
        for (void *m : {q, k, v, u, b, o, work}) cudaFree(m);
        for (void *m : more) cudaFree(m);
        done += T;
        if (!r.ok) break;
    }
    r.S.assign(S, S + H * dk * dv);
    if (vla) r.A.assign(A, A + H * dk * dk);
    if (sums) r.n.assign(n, n + H * dk);
    cudaFree(S), cudaFree(A), cudaFree(n);
    return r;
}

static void on_host(const test &c, host &x)
{
    const vla_problem p = problem_of(c);
    const vla_variant &naive = c.op == "linear" ? linear_naive_cpu : c.op == "delta" ? delta_naive_cpu : vla_naive_cpu;
    const int64_t dk = p.dk, dv = p.dv;
    x.o.resize((size_t)(c.H * c.T * dv)), x.S.resize((size_t)(c.H * dk * dv)), x.A.resize((size_t)(c.H * dk * dk)),
        x.n.resize((size_t)(c.H * dk));
    int64_t bytes = 0, count = 0;
    vla_error e;
    if (naive.workspace) naive.workspace(&p, 1, &bytes, &e);
    std::vector<double> work((size_t)bytes / 8 + 16);
    vla_tensors t;
    memset(&t, 0, sizeof t);
    t.q = x.q.data(), t.k = x.k.data(), t.v = x.v.data(), t.o = x.o.data(), t.S = x.S.data(), t.t = &count;
    if (c.op == "vla")
        t.u = x.u.data(), t.A = x.A.data(), t.n = x.n.data();
    else if (c.op == "linear")
        t.n = x.n.data();
    else
        t.b = x.b.data();
    vla_call call;
    memset(&call, 0, sizeof call);
    call.problem = &p, call.tensors = &t, call.work = work.data();
    naive.run(&call, &e);
}

template <typename T> static double error_of(const std::vector<T> &got, const std::vector<double> &ref, int64_t heads)
{
    double worst = 0;
    const size_t each = ref.size() / (size_t)heads;
    for (size_t h = 0; h < (size_t)heads; h++) {
        double d2 = 0, r2 = 0;
        for (size_t i = h * each; i < (h + 1) * each; i++) {
            const double d = (double)got[i] - ref[i];
            d2 += d * d, r2 += ref[i] * ref[i];
        }
        const double e = sqrt(d2 / (r2 > 0 ? r2 : 1));
        if (!(e <= worst)) worst = e;
    }
    return worst;
}

static void setenv_int(const char *name, int64_t x)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)x);
    if (x)
        setenv(name, text, 1);
    else
        unsetenv(name);
}

struct schedule {
    int64_t seed;
    const char *copies;
};

static double now()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void run_case(const test &c, const std::vector<schedule> &schedules, bool chunks)
{
    host x;
    const double t0 = now();
    if (!make(c, x)) {
        failures++;
        return;
    }
    on_host(c, x);
    setenv_int("EMU_SMS", c.sms), setenv_int("EMU_PER_SEGMENT", c.per), setenv_int("EMU_BUDGET", c.budget);
    setenv("EMU_BACK", c.back.c_str(), 1);
    device_run first;
    std::string differ;
    for (size_t s = 0; s < schedules.size(); s++) {
        setenv_int("EMU_SEED", schedules[s].seed);
        setenv("EMU_COPIES", schedules[s].copies, 1);
        device_run r = on_device(c, x, schedules[s].seed != 0);
        if (r.overlap) differ += " RUNS IN A ROW DIFFER(seed " + std::to_string(schedules[s].seed) + ")";
        if (s == 0)
            first = std::move(r);
        else if (r.o != first.o || memcmp(r.S.data(), first.S.data(), r.S.size() * 4) != 0 ||
                 (r.A.size() && memcmp(r.A.data(), first.A.data(), r.A.size() * 4) != 0) ||
                 (r.n.size() && memcmp(r.n.data(), first.n.data(), r.n.size() * 4) != 0)) {
            char text[120];
            size_t count = 0, where = 0;
            for (size_t i = 0; i < r.o.size(); i++)
                if (r.o[i] != first.o[i] && !count++) where = i;
            snprintf(text, sizeof text, " DIFFERS(seed %lld %s: o %zu%s", (long long)schedules[s].seed,
                     schedules[s].copies, count, count ? "" : ", state)");
            differ += text;
            const size_t dv = (size_t)(c.dv ? c.dv : c.d);
            where /= element_of(c);
            if (count) {
                snprintf(text, sizeof text, " from head %zu token %zu column %zu)", where / dv / (size_t)c.T,
                         where / dv % (size_t)c.T, where % dv);
                differ += text;
            }
        }
    }
    const double t1 = now();
    char line[300];
    snprintf(line, sizeof line, "%-5s %-4s d=%lld%s T=%lld H=%lld%s %s%s%s%s%s", c.op.c_str(), c.dtype.c_str(),
             (long long)c.d, c.dv ? ("x" + std::to_string(c.dv)).c_str() : "", (long long)c.T, (long long)c.H,
             c.split ? ("@" + std::to_string(c.split)).c_str() : "", c.ratio ? "ratio" : "plain",
             c.lambda0 != 0.1 ? " l0=0.01" : "", c.features != "elu1" ? (" " + c.features).c_str() : "",
             c.qk_l2 ? " qk_l2" : "", c.no_u ? " no_u" : "");
    printf("%-52s %-10s %-6s sms=%-3lld%s%s ", line, c.kind.c_str(), c.back.c_str(), (long long)c.sms,
           c.per ? (" per=" + std::to_string(c.per)).c_str() : "",
           c.budget ? (" budget=" + std::to_string(c.budget)).c_str() : "");
    if (!first.ok) {
        printf("FAILED: %s\n", first.message);
        failures++;
        return;
    }
    const vla_dtype dt = dtype_of(c);
    std::vector<double> o(first.o.size() / element_of(c));
    vla_convert(o.data(), VLA_F64, first.o.data(), dt, (int64_t)o.size());
    const int64_t dv = c.dv ? c.dv : c.d;
    double worst = 0, squares = 0, all_d = 0, all_r = 0;
    int64_t count = 0, where = 0, bad = 0;
    for (int64_t h = 0; h < c.H; h++)
        for (int64_t t = 0; t < c.T; t += 64) {
            double d2 = 0, r2 = 0;
            const int64_t to = std::min(t + 64, c.T);
            for (int64_t i = (h * c.T + t) * dv; i < (h * c.T + to) * dv; i++) {
                const double d = o[(size_t)i] - x.o[(size_t)i];
                if (!std::isfinite(o[(size_t)i]) && std::isfinite(x.o[(size_t)i])) bad++;
                d2 += d * d, r2 += x.o[(size_t)i] * x.o[(size_t)i];
            }
            all_d += d2, all_r += r2;
            const double e = sqrt(d2 / (r2 > 0 ? r2 : 1));
            if (chunks) printf("%s%lld:%.2e", t || h ? " " : "\n  ", (long long)(h * ((c.T + 63) / 64) + t / 64), e);
            squares += e * e, count++;
            if (!(e <= worst)) worst = e, where = t / 64;
        }
    if (chunks) printf("\n  ");
    const double S = error_of(first.S, x.S, c.H), A = c.op == "vla" ? error_of(first.A, x.A, c.H) : 0,
                 n = c.op != "delta" ? error_of(first.n, x.n, c.H) : 0;
    const double limit = c.dtype == "tf32" ? 5e-3 : 3e-2;
    const bool ok = worst <= limit && S <= limit && A <= 2e-2 && n <= std::min(limit, 2e-2) && differ.empty() && !bad;
    if (!ok) failures++;
    printf("o worst %.2e (chunk %lld) rms %.2e all %.2e | S %.1e A %.1e n %.1e | %s%s%s %.1fs\n", worst,
           (long long)where, sqrt(squares / (double)count), sqrt(all_d / (all_r > 0 ? all_r : 1)), S, A, n,
           ok ? "ok" : "BAD", bad ? " NONFINITE" : "", differ.c_str(), t1 - t0);
    fflush(stdout);
}

static bool set_word(test &c, const std::string &word)
{
    const size_t eq = word.find('=');
    const std::string name = word.substr(0, eq), value = eq == std::string::npos ? "" : word.substr(eq + 1);
    const auto number = [&] { return strtoll(value.c_str(), nullptr, 0); };
    if (name == "op")
        c.op = value;
    else if (name == "dtype")
        c.dtype = value;
    else if (name == "kind")
        c.kind = value;
    else if (name == "back")
        c.back = value;
    else if (name == "T")
        c.T = number();
    else if (name == "H")
        c.H = number();
    else if (name == "d")
        c.d = number();
    else if (name == "dv")
        c.dv = number();
    else if (name == "split")
        c.split = number();
    else if (name == "sms")
        c.sms = number();
    else if (name == "per")
        c.per = number();
    else if (name == "budget")
        c.budget = number();
    else if (name == "ratio")
        c.ratio = value.empty() || number();
    else if (name == "plain")
        c.ratio = false;
    else if (name == "lambda0")
        c.lambda0 = strtod(value.c_str(), nullptr);
    else if (name == "no_u")
        c.no_u = true;
    else if (name == "qk_l2")
        c.qk_l2 = true;
    else if (name == "features")
        c.features = value;
    else
        return false;
    return true;
}

static test parse(const char *text)
{
    test c;
    std::string s = text, word;
    s += ' ';
    for (char ch : s)
        if (ch == ' ') {
            if (!word.empty() && !set_word(c, word)) fprintf(stderr, "unknown word %s\n", word.c_str()), exit(2);
            word.clear();
        } else
            word += ch;
    return c;
}

static const char *const QUICK[] = {
    "d=64 T=256",
    "d=128 T=256 H=1",
    "d=64 T=200 H=3 dtype=f16 plain",
    "d=64 T=320 H=1 back=brief",
    "d=64 T=320 H=1 back=beside",
    "d=128 T=192 H=1 back=beside",
    "d=64 T=256 H=1 kind=equal",
    "d=64 T=256 H=1 kind=axis lambda0=0.01",
    "op=delta d=64 T=256",
};
static const char *const FULL[] = {
    /* forms */
    "d=64 T=256 back=apart",
    "d=64 T=256 back=beside",
    "d=64 T=256 back=brief",
    "d=128 T=256 back=apart",
    "d=128 T=256 back=beside",
    "dtype=f16 d=64 T=300 H=3 back=apart plain",
    "dtype=f16 d=64 T=300 H=3 back=beside plain",
    "dtype=f16 d=64 T=300 H=3 back=brief plain",
    "dtype=f16 d=128 T=200 back=apart plain",
    "dtype=f16 d=128 T=200 back=beside plain",
    "d=64 T=700 back=pairs",
    "dtype=f16 d=64 T=333 H=3 back=pairs plain",
    "d=48 dv=40 T=450 back=pairs kind=zeros",
    "d=64 T=450 split=130 back=pairs",
    "d=64 T=900 H=1 back=pairs budget=300000",
    "op=delta d=64 T=450 back=pairs",
    "d=64 T=320 H=1 kind=near back=pairs",
    /* the host's choices */
    "d=64 T=512 sms=1",
    "d=64 T=512 sms=4",
    "d=128 T=320 sms=1",
    "d=128 T=320 sms=6",
    "d=128 T=64 H=3 back=beside",        /* fewer chunks than walks */
    "d=128 T=448 H=3 sms=8 back=beside", /* heads one after the other */
    "d=64 T=448 per=3",
    "d=64 T=448 per=7",
    "d=128 T=448 per=3",
    "d=128 T=384 H=2 sms=3 per=2", /* first segments joined with the second */
    "d=128 T=192 H=2 sms=3 per=1 back=beside",
    "d=64 T=400 budget=300000",
    "d=128 T=300 budget=500000 H=1",
    "d=64 T=333 back=brief budget=300000",
    "d=64 T=333 back=beside budget=300000",
    /* lengths and widths */
    "d=64 T=1",
    "d=64 T=17 H=3",
    "d=64 T=63",
    "d=64 T=65",
    "d=128 T=129 H=1",
    "d=64 T=65 back=brief",
    "d=64 T=65 back=beside",
    "d=48 dv=80 T=130",
    "d=64 dv=128 T=130",
    "d=128 dv=64 T=130",
    "d=20 dv=12 T=100",
    "d=100 dv=36 T=150 H=1",
    "d=40 T=200 back=brief",
    "d=37 dv=51 T=140 back=beside",
    /* resumed */
    "d=64 T=300 split=130",
    "d=128 T=300 split=64 H=1",
    "d=64 T=300 split=130 back=brief",
    "d=64 T=300 split=128 back=beside plain",
    /* options */
    "d=64 T=200 no_u",
    "d=64 T=200 features=silu plain",
    "d=64 T=200 features=identity plain",
    "d=64 T=200 qk_l2",
    "d=128 T=200 H=1 features=silu plain no_u",
    "d=64 T=200 features=identity plain back=brief",
    /* nasty */
    "d=64 T=320 kind=equal",
    "d=64 T=320 kind=equal back=brief",
    "d=64 T=320 kind=equal back=beside",
    "d=128 T=320 kind=equal H=1",
    "d=128 T=320 kind=equal H=1 back=beside",
    "d=64 T=320 kind=equal lambda0=0.01",
    "d=128 T=320 kind=equal lambda0=0.01 H=1",
    "d=64 T=320 kind=equal dtype=f16 plain",
    "d=64 T=320 kind=near lambda0=0.01",
    "d=128 T=320 kind=near lambda0=0.01 H=1",
    "d=64 T=320 kind=near back=brief",
    "d=64 T=320 kind=near dtype=f16 no_u",
    "d=64 T=333 kind=zeros",
    "d=64 T=333 kind=zeros back=brief",
    "d=64 T=333 kind=zeros back=beside",
    "d=128 T=333 kind=zeros H=1",
    "d=64 T=333 kind=zeros no_u",
    "d=64 T=512 kind=turn H=1",
    "d=64 T=512 kind=turn H=1 lambda0=0.01",
    "d=128 T=512 kind=turn H=1 lambda0=0.01",
    "d=64 T=512 kind=turn H=1 back=brief",
    "d=64 T=512 kind=axis H=1",
    "d=64 T=512 kind=axis H=1 lambda0=0.01",
    "d=128 T=512 kind=axis H=1 lambda0=0.01",
    "d=64 T=512 kind=axis H=1 lambda0=0.01 back=brief",
    "d=64 T=512 kind=axis H=1 lambda0=0.01 per=8",
    "d=64 T=512 kind=turn H=1 lambda0=0.01 per=8",
    "d=128 T=512 kind=axis H=1 lambda0=0.01 per=8",
    "d=64 T=320 kind=large",
    "d=64 T=320 kind=large dtype=f16 back=brief plain",
    "d=128 T=320 kind=large H=1 back=beside",
    "d=64 T=512 kind=vla_lm",
    "d=64 T=512 kind=vla_lm dtype=f16",
    "d=64 T=512 kind=vla_lm back=brief",
    "d=128 T=320 kind=vla_lm H=1",
    "d=64 T=512 kind=vla_lm per=8 lambda0=0.01",
    "d=64 T=512 kind=softmax_lm no_u",
    "d=64 T=512 kind=softmax_lm plain no_u back=brief",
    "d=128 T=320 kind=softmax_lm H=1",
    /* delta */
    "op=delta d=64 T=256 back=apart",
    "op=delta d=64 T=256 back=beside",
    "op=delta d=128 T=200 back=apart",
    "op=delta d=128 T=200 back=beside",
    "op=delta d=64 T=333 kind=equal",
    "op=delta d=64 T=333 kind=zeros back=beside",
    "op=delta d=64 T=300 split=130",
    "op=delta dtype=f16 d=48 dv=80 T=100",
    "op=delta d=64 T=320 kind=softmax_lm",
    /* linear */
    "op=linear d=64 T=256",
    "op=linear d=128 T=256",
    "op=linear d=64 T=333 dtype=f16 H=3",
    "op=linear d=128 T=1100 H=1",
    "op=linear d=64 T=1100 H=1 sms=4",
    "op=linear d=64 T=300 split=130",
    "op=linear d=40 dv=72 T=150",
    "op=linear d=64 T=512 kind=softmax_lm",
    "op=linear d=64 T=1024 H=40 sms=8",
    "op=linear dtype=tf32 d=64 T=256",
    "op=linear dtype=tf32 d=128 T=333 H=1",
    "op=linear dtype=tf32 d=64 T=1100 H=1 sms=4",
    "op=linear dtype=tf32 d=64 T=300 split=130 kind=large",
    "op=linear dtype=tf32 d=33 dv=70 T=150 features=identity",
    "op=linear dtype=tf32 d=128 T=200 H=1 qk_l2",
    "op=linear dtype=tf32 d=64 T=512 kind=softmax_lm",
    "op=linear dtype=tf32 d=64 T=200 H=1 kind=loud",
};

int main(int argc, char **argv)
{
    std::vector<test> cases;
    std::vector<schedule> schedules = {{0, "now"}, {1, "late"}};
    bool chunks = false;
    std::string extra, filter;
    for (int i = 1; i < argc; i++) {
        const std::string a = argv[i];
        if (a == "--full") {
            for (auto *t : FULL) cases.push_back(parse(t));
        } else if (a == "--quick") {
            for (auto *t : QUICK) cases.push_back(parse(t));
        } else if (a == "--list") {
            for (auto *t : QUICK) printf("%s\n", t);
            for (auto *t : FULL) printf("%s\n", t);
            return 0;
        } else if (a == "--once") {
            schedules = {{0, "now"}};
        } else if (a == "--seeds" && i + 1 < argc) {
            const int n = atoi(argv[++i]);
            schedules = {{0, "now"}};
            for (int s = 1; s <= n; s++) schedules.push_back({s, s % 3 == 1 ? "late" : s % 3 == 2 ? "random" : "now"});
        } else if (a == "--chunks") {
            chunks = true;
        } else if (a == "--data" && i + 1 < argc) {
            data_folder = argv[++i];
        } else if (a == "--filter" && i + 1 < argc) {
            filter = argv[++i];
        } else if (a[0] == '-') {
            fprintf(stderr, "%s: not an option; see tests/emulate/run.sh\n", argv[i]);
            return 2;
        } else
            cases.push_back(parse(argv[i]));
    }
    if (cases.empty() || !filter.empty()) {
        std::vector<const char *> all;
        if (!filter.empty())
            for (auto *t : FULL) all.push_back(t);
        else
            for (auto *t : QUICK) all.push_back(t);
        for (auto *t : all)
            if (filter.empty() || strstr(t, filter.c_str())) cases.push_back(parse(t));
    }
    for (const test &c : cases) run_case(c, schedules, chunks);
    printf("%zu cases, %d bad, %llu million products\n", cases.size(), failures,
           (unsigned long long)(emu::mma_count() / 1000000));
    return failures != 0;
}
