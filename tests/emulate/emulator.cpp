/* The emulator's scheduler: fibers, barriers of a block, blocks and grids. One OS thread; each CUDA thread is a fiber.
 */
#include "tests/emulate/parts.h"
#include <cstdarg>
#include <map>
#include <string>
#include <unistd.h>
#include <sys/mman.h>
#include <time.h>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emu
{
bool truncate = false;

void die(const char *format, ...);
int64_t env(const char *name, int64_t otherwise)
{
    const char *s = getenv(name);
    return s && *s ? strtoll(s, nullptr, 0) : otherwise;
}
bool env_is(const char *name, const char *value)
{
    const char *s = getenv(name);
    return s && strcmp(s, value) == 0;
}
int sms()
{
    return (int)env("EMU_SMS", 132);
}

/* ---- fibers */
extern "C" void emu_switch(void **save, void *to);
asm(R"(
.text
.globl emu_switch
.type emu_switch,@function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

constexpr size_t STACK = 192 * 1024;

Fiber *cur = nullptr;
static void *main_sp;
static std::deque<Warp *> ready_queue, spin_queue;
static std::deque<Grid *> grids;
static uint64_t grids_made = 0, grids_ended = 0;
static std::vector<Block *> resident;
static std::vector<char *> stacks;
static std::vector<unsigned char *> arenas;
std::deque<Pending> pending;
static uint64_t progressed = 0, rng_state = 1;
static uint64_t seed = 0;
int copies_mode = 0;

uint32_t rnd()
{
    rng_state ^= rng_state << 13, rng_state ^= rng_state >> 7, rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 16);
}
void progress()
{
    progressed++;
}

static void dump()
{
    fprintf(stderr, "emu: %zu blocks resident, %zu grids queued, %zu copies in flight\n", resident.size(), grids.size(),
            pending.size());
    int shown = 0;
    for (Block *b : resident) {
        if (shown++ == 12) break;
        fprintf(stderr, "  grid %llu block %llu live %d:", (unsigned long long)b->grid->number,
                (unsigned long long)b->number, b->live);
        for (Warp &w : b->warps) {
            fprintf(stderr, " [w%d", w.index);
            std::map<std::string, uint32_t> by;
            for (int l = 0; l < 32; l++)
                if (w.alive >> l & 1) by[w.lane[l]->why] |= 1u << l;
            if (!w.alive) fprintf(stderr, " ended");
            for (auto &e : by) fprintf(stderr, " %s:%08x", e.first.c_str(), e.second);
            fprintf(stderr, "]");
        }
        fprintf(stderr, "\n");
    }
}

void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "emu: ");
    vfprintf(stderr, format, args);
    va_end(args);
    if (cur && cur->block)
        fprintf(stderr, "\nemu: in grid %llu block %llu thread %u (warp %d lane %d)",
                (unsigned long long)cur->block->grid->number, (unsigned long long)cur->block->number, cur->tid.x,
                cur->warp->index, cur->lane);
    fprintf(stderr, "\n");
    dump();
    fflush(stdout);
    if (env("EMU_ABORT", 0)) abort();
    _exit(3);
}

static void enqueue(Warp *w)
{
    if (w->queued) return;
    w->queued = true;
    ready_queue.push_back(w);
}
static void wake(Fiber *f)
{
    f->warp->ready |= 1u << f->lane;
    f->warp->yielded &= ~(1u << f->lane);
    if (f->warp->spinning) return; /* it is in the other queue, moved when picked */
    enqueue(f->warp);
}

static int next_lane(Warp *w)
{
    const uint32_t can = w->ready & ~w->yielded;
    if (!can) return -1;
    if (seed % 2) {
        const uint32_t below = can & ((1u << w->last) - 1);
        return 31 - __builtin_clz(below ? below : can);
    }
    const uint32_t above = w->last < 31 ? can & ~((2u << w->last) - 1) : 0;
    return __builtin_ctz(above ? above : can);
}

static Warp *take(std::deque<Warp *> &q)
{
    size_t at = 0;
    if (seed) {
        for (int i = 0; i < 4; i++) {
            at = rnd() % q.size();
            if (!q[at]->slow || rnd() % 32 == 0) break;
        }
    }
    Warp *w = q[at];
    q[at] = q.front();
    q.pop_front();
    return w;
}

static void resume_fiber(Fiber *f, void **save)
{
    Block *b = f->block;
    f->warp->last = f->lane;
    cur = f;
    threadIdx = f->tid;
    blockIdx = b->index, blockDim = b->grid->block, gridDim = b->grid->grid;
    emu_switch(save, f->sp);
}

/* A warp that is not run on: to those that can, or to those that only ask again. */
static void put_back(Warp *w)
{
    if (w->queued || w->spinning || !w->ready) return;
    if (w->ready & ~w->yielded)
        enqueue(w);
    else
        w->spinning = true, spin_queue.push_back(w);
}

/* The next fiber, or NULL where only spinning ones or none are left. `now`: the warp that ran. */
static Fiber *pick(Warp *now)
{
    if (now) {
        if (!(seed && rnd() % 64 == 0)) {
            const int l = next_lane(now);
            if (l >= 0) return now->lane[l];
        }
        put_back(now);
    }
    while (!ready_queue.empty()) {
        Warp *w = take(ready_queue);
        w->queued = false;
        const int l = next_lane(w);
        if (l >= 0) return w->lane[l];
        put_back(w);
    }
    return nullptr;
}

static void leave(const char *why)
{
    Fiber *f = cur;
    f->why = why;
    const bool land = copies_mode == 2 && !pending.empty() && rnd() % 16 == 0;
    const bool spin = seed && !spin_queue.empty() && rnd() % 16 == 0;
    Warp *w = f->warp;
    Fiber *next = land || spin ? nullptr : pick(w);
    if (next == f) return;
    if (next) {
        resume_fiber(next, &f->sp);
    } else {
        if (land || spin) put_back(w);
        emu_switch(&f->sp, main_sp);
    }
}

void yield(const char *why)
{
    cur->warp->yielded |= 1u << cur->lane;
    leave(why);
    cur->why = "running";
}

static void complete(Warp *w, size_t i)
{
    Rendezvous r = w->open[i];
    w->open.erase(w->open.begin() + (long)i);
    r.run(r.arg, r.here);
    for (int l = 0; l < 32; l++)
        if (r.here >> l & 1 && w->alive >> l & 1 && w->lane[l] != cur) wake(w->lane[l]);
}

void collective(uint32_t mask, const char *tag, void *arg, run_function *run)
{
    Warp *w = cur->warp;
    const uint32_t bit = 1u << cur->lane;
    if (!(mask & bit)) die("%s: lane is not in its mask %08x", tag, mask);
    size_t i = 0;
    while (i < w->open.size() && w->open[i].mask != mask) {
        if (w->open[i].mask & mask & w->open[i].here) {
        }
        i++;
    }
    if (i == w->open.size()) w->open.push_back({mask, 0, tag, run, {}});
    Rendezvous &r = w->open[i];
    if (r.tag != tag && strcmp(r.tag, tag) != 0)
        die("lanes of a warp meet in different instructions: %s (lanes %08x) and %s", r.tag, r.here, tag);
    r.arg[cur->lane] = arg, r.here |= bit;
    if ((r.here | ~w->alive) == 0xffffffffu || ((mask & w->alive) & ~r.here) == 0) {
        complete(w, i);
        if (seed && rnd() % 64 == 0) leave(tag);
        return;
    }
    w->ready &= ~bit;
    leave(tag);
    cur->why = "running";
}

static void release(Barrier &b)
{
    std::vector<Fiber *> who;
    who.swap(b.waiting);
    b.arrived = 0, b.count = 0;
    for (Fiber *f : who) wake(f);
    progressed++;
}

void barrier_sync(int id, int count, bool wait)
{
    Block *k = cur->block;
    if (id < 0 || id > 15) die("barrier %d", id);
    if (count >= 0 && (count % 32 || count == 0)) die("barrier %d: %d threads", id, count);
    Barrier &b = k->bar[id];
    if (b.arrived && b.count != count) die("barrier %d: arrivals expect %d and %d threads", id, b.count, count);
    b.count = count;
    b.arrived++;
    const int target = count < 0 ? k->live : count;
    if (b.arrived == target) {
        release(b);
        if (seed && rnd() % 4 == 0) leave("barrier");
        return;
    }
    if (!wait) return;
    b.waiting.push_back(cur);
    cur->warp->ready &= ~(1u << cur->lane);
    static const char *const names[] = {"bar0", "bar1", "bar2",  "bar3",  "bar4",  "bar5",  "bar6",  "bar7",
                                        "bar8", "bar9", "bar10", "bar11", "bar12", "bar13", "bar14", "bar15"};
    leave(names[id]);
    cur->why = "running";
}

/* ---- blocks and grids */
static void fiber_main()
{
    cur->why = "running";
    cur->block->grid->body();
    Fiber *f = cur;
    Block *b = f->block;
    Warp *w = f->warp;
    const uint32_t bit = 1u << f->lane;
    if (copies_mode) { /* copies never waited for land before the block's end */
        for (auto &g : f->groups)
            for (auto &c : g) land(c);
        for (auto &g : f->store_groups)
            for (auto &c : g) land(c);
    }
    f->groups.clear(), f->open.clear(), f->store_groups.clear();
    w->alive &= ~bit, w->ready &= ~bit, w->yielded &= ~bit;
    b->live--;
    for (size_t i = 0; i < w->open.size();)
        if (((w->open[i].mask & w->alive) & ~w->open[i].here) == 0)
            complete(w, i);
        else
            i++;
    for (Barrier &r : b->bar)
        if (r.count < 0 && r.arrived && r.arrived == b->live) release(r);
    if (b->live == 0) b->over = true;
    f->why = "ended";
    void *unused;
    if (b->over)
        emu_switch(&unused, main_sp);
    else {
        Fiber *next = pick(w);
        if (next)
            resume_fiber(next, &unused);
        else
            emu_switch(&unused, main_sp);
    }
    abort();
}

static char *new_stack()
{
    if (!stacks.empty()) {
        char *s = stacks.back();
        stacks.pop_back();
        return s;
    }
    char *s = (char *)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s == MAP_FAILED) die("no memory for stacks");
    return s;
}

static void begin_block(Grid *g)
{
    Block *b = new Block;
    b->grid = g, b->number = g->next++;
    b->index = {(unsigned)(b->number % g->grid.x), (unsigned)(b->number / g->grid.x % g->grid.y),
                (unsigned)(b->number / g->grid.x / g->grid.y)};
    if (arenas.empty())
        arenas.push_back((unsigned char *)mmap(nullptr, ARENA, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    b->arena = arenas.back();
    arenas.pop_back();
    memset(b->arena, 0xff, GAP + g->shared + CANARY);
    b->used = GAP + g->shared + CANARY;
    const unsigned threads = g->block.x * g->block.y * g->block.z;
    b->live = (int)threads;
    b->fibers = std::vector<Fiber>(threads);
    b->warps = std::deque<Warp>((threads + 31) / 32);
    for (unsigned t = 0; t < threads; t++) {
        Fiber &f = b->fibers[t];
        Warp &w = b->warps[t / 32];
        f.block = b, f.warp = &w, f.lane = (int)(t % 32);
        f.tid = {t % g->block.x, t / g->block.x % g->block.y, t / g->block.x / g->block.y};
        f.stack = new_stack();
        f.why = "start";
        memset(f.stack, 0x5a, 64);
        void **sp = (void **)(f.stack + STACK - 64);
        *--sp = nullptr;
        *--sp = (void *)fiber_main; /* at the ret the stack is 8 off 16, as after a call */
        for (int i = 0; i < 6; i++) *--sp = nullptr;
        f.sp = sp;
        w.block = b, w.index = (int)(t / 32), w.lane[t % 32] = &f;
        w.alive |= 1u << (t % 32), w.ready |= 1u << (t % 32);
        w.last = seed % 2 ? 0 : 31;
    }
    for (Warp &w : b->warps) {
        w.slow = seed && rnd() % 4 == 0;
        enqueue(&w);
    }
    resident.push_back(b);
    progressed++;
}

static void end_block(Block *b)
{
    Grid *g = b->grid;
    for (size_t i = 0; i < pending.size(); i++)
        if (pending[i].block == b)
            die("block %llu of grid %llu ended with bulk copies in flight", (unsigned long long)b->number,
                (unsigned long long)g->number);
    for (size_t i = 0; i < CANARY; i++)
        if (b->arena[GAP + g->shared + i] != 0xff)
            die("block %llu of grid %llu wrote %zu bytes past its dynamic shared memory", (unsigned long long)b->number,
                (unsigned long long)g->number, i);
    for (size_t i = 0; i < GAP; i++)
        if (b->arena[i] != 0xff) die("a block wrote before its dynamic shared memory");
    for (Warp &w : b->warps) {
        if (w.queued) ready_queue.erase(std::find(ready_queue.begin(), ready_queue.end(), &w));
        if (w.spinning) spin_queue.erase(std::find(spin_queue.begin(), spin_queue.end(), &w));
    }
    for (int i = 0; i < 16; i++)
        if (b->bar[i].arrived && env("EMU_WARN", 1))
            fprintf(stderr, "emu: grid %llu block %llu ended with %d arrivals at barrier %d\n",
                    (unsigned long long)g->number, (unsigned long long)b->number, b->bar[i].arrived, i);
    for (Fiber &f : b->fibers) {
        for (int i = 0; i < 64; i++)
            if (f.stack[i] != 0x5a) die("a fiber's stack ran over: raise STACK in emu.cpp");
        stacks.push_back(f.stack);
    }
    arenas.push_back(b->arena);
    if (!b->released) g->released++;
    g->ended++;
    resident.erase(std::find(resident.begin(), resident.end(), b));
    delete b;
    progressed++;
    while (!grids.empty() && grids.front()->ended == grids.front()->blocks) {
        delete grids.front();
        grids.pop_front();
        grids_ended++;
    }
}

static int occupancy_of(Grid *g)
{
    return occupancy(g->shared, (int)(g->block.x * g->block.y * g->block.z));
}

static void admit()
{
    const size_t cap = (size_t)env("EMU_RESIDENT", 64);
    const bool overlap = env("EMU_EARLY", 1);
    for (size_t i = 0; i < grids.size(); i++) {
        Grid *g = grids[i];
        if (i > 0) {
            const Grid *before = grids[i - 1];
            if (!overlap || !g->early || before->next < before->blocks || before->released < before->blocks) return;
        }
        size_t mine = 0;
        for (Block *b : resident) mine += b->grid == g;
        const size_t places = (size_t)occupancy_of(g) * (size_t)sms();
        while (g->next < g->blocks && resident.size() < cap && mine < places) begin_block(g), mine++;
        if (g->next < g->blocks) return;
    }
}

void grid_release()
{
    Block *b = cur->block;
    if (b->released) return; /* by any thread: the first counts here; on the device all threads must, or end */
    b->released = true;
    b->grid->released++;
    progressed++;
}
void grid_wait()
{
    const uint64_t number = cur->block->grid->number;
    while (grids_ended < number) yield("griddepcontrol.wait");
}

int occupancy(size_t shared, int threads)
{
    const size_t total = 228 * 1024;
    int n = (int)(total / (shared + 1024));
    n = std::min(n, 2048 / std::max(threads, 1));
    return std::min(n, (int)env("EMU_OCCUPANCY", 32));
}

static std::map<const void *, size_t> allowed;
void set_shared(const void *kernel, size_t bytes)
{
    allowed[kernel] = bytes;
}

void launch(dim3 grid, dim3 block, size_t shared, bool early, const void *kernel, std::function<void()> body)
{
    if (shared > 48 * 1024 && allowed[kernel] < shared) die("launch: %zu bytes of shared memory not asked for", shared);
    if (shared > 227 * 1024) die("launch: %zu bytes of shared memory", shared);
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (threads == 0 || threads > 1024) die("launch: %llu threads a block", (unsigned long long)threads);
    if (threads % 32) die("launch: %llu threads, not whole warps", (unsigned long long)threads);
    Grid *g =
        new Grid{grids_made++, grid, block, shared, early, kernel, std::move(body), (uint64_t)grid.x * grid.y * grid.z};
    if (g->blocks == 0) die("launch: no blocks");
    if (env("EMU_TRACE", 0))
        fprintf(stderr, "emu: grid %llu: %llu blocks of %llu threads, %zu bytes%s\n", (unsigned long long)g->number,
                (unsigned long long)g->blocks, (unsigned long long)threads, shared, early ? ", early" : "");
    grids.push_back(g);
    if (!early) return;
}

void configure()
{
    seed = (uint64_t)env("EMU_SEED", 0);
    rng_state = seed * 0x9e3779b97f4a7c15ull + 0x1234567;
    copies_mode = env_is("EMU_COPIES", "late") ? 1 : env_is("EMU_COPIES", "random") ? 2 : 0;
    truncate = env_is("EMU_MMA", "rz");
}

void finish()
{
    if (grids.empty()) return;
    configure();
    uint64_t seen = 0, idle = 0;
    cur = nullptr;
    while (!grids.empty()) {
        for (size_t i = 0; i < resident.size();)
            if (resident[i]->over)
                end_block(resident[i]);
            else
                i++;
        if (grids.empty()) break;
        admit();
        if (copies_mode == 2 && !pending.empty()) {
            const size_t i = rnd() % pending.size();
            Pending p = std::move(pending[i]);
            pending.erase(pending.begin() + (long)i);
            land(p);
        }
        Fiber *f = nullptr;
        const bool spin_first = seed && !spin_queue.empty() && rnd() % 4 == 0;
        if (!spin_first) f = pick(nullptr);
        if (!f) {
            if (!spin_first && !pending.empty() && copies_mode == 1) {
                /* everyone waits: the copies land, one at a time, newest or oldest first */
                const size_t i = seed ? rnd() % pending.size() : pending.size() - 1;
                Pending p = std::move(pending[i]);
                pending.erase(pending.begin() + (long)i);
                land(p);
            }
            if (!spin_queue.empty()) {
                if (progressed != seen)
                    seen = progressed, idle = 0;
                else if (++idle > 200000 + 2000 * spin_queue.size())
                    die("no progress: every thread waits");
                Warp *w = take(spin_queue);
                w->spinning = false;
                w->yielded = 0;
                const int l = next_lane(w);
                if (l >= 0) f = w->lane[l];
            } else if (spin_queue.empty() && ready_queue.empty() && pending.empty()) {
                if (progressed != seen) {
                    seen = progressed;
                    continue;
                }
                die("deadlock: every thread waits at a barrier");
            }
        }
        if (f) resume_fiber(f, &main_sp);
        cur = nullptr;
    }
}
int warp_in_block()
{
    return cur->warp->index;
}
unsigned warp_slot()
{
    return (unsigned)(cur->warp->index + (int)(cur->block->number % 8) * (int)cur->block->warps.size());
}
} /* namespace emu */
