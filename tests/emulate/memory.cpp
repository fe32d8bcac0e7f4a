/* Shared memory, its barriers that count bytes, and asynchronous copies, of the emulator. */
#include "tests/emulate/parts.h"

namespace emu
{
/* ---- shared memory */
unsigned char *block_dynamic()
{
    return cur->block->arena + GAP;
}
void *block_static(const void *key, size_t bytes)
{
    Block *b = cur->block;
    for (auto &s : b->statics)
        if (s.first == key) return s.second;
    b->used = (b->used + 127) / 128 * 128;
    if (b->used + bytes > ARENA) die("static shared memory of %zu bytes does not fit", bytes);
    unsigned char *p = b->arena + b->used;
    b->used += bytes;
    memset(p, 0xff, bytes);
    b->statics.push_back({key, p});
    return p;
}
uint32_t to_shared(const void *p)
{
    const ptrdiff_t at = (const unsigned char *)p - cur->block->arena;
    if (at < 0 || at > (ptrdiff_t)ARENA) die("cvta: %p is not in shared memory", p);
    return (uint32_t)at;
}
unsigned char *shared_of(Block *b, uint32_t at, uint32_t bytes)
{
    const bool dynamic = at >= GAP && (uint64_t)at + bytes <= GAP + b->grid->shared,
               fixed = at >= GAP + b->grid->shared + CANARY && (uint64_t)at + bytes <= b->used;
    if (!dynamic && !fixed)
        die("shared memory: %u bytes at offset %lld of %zu", bytes, (long long)at - (long long)GAP, b->grid->shared);
    return b->arena + at;
}
unsigned char *from_shared(uint32_t at, uint32_t bytes)
{
    return shared_of(cur->block, at, bytes);
}

/* ---- mbarriers: 8 bytes in shared memory */
struct Mbar {
    uint16_t expected, pending;
    int32_t tx : 30;
    uint32_t phase : 1, made : 1;
};
static_assert(sizeof(Mbar) == 8, "");
static Mbar *mbar(Block *b, uint32_t at)
{
    if (at % 8) die("mbarrier at %u", at);
    return (Mbar *)shared_of(b, at, 8);
}
static void check(Mbar *m)
{
    if (m->pending == 0 && m->tx == 0) m->phase ^= 1, m->pending = m->expected, progress();
}
void mbarrier_init(uint32_t at, uint32_t count)
{
    Mbar *m = mbar(cur->block, at);
    m->expected = m->pending = (uint16_t)count, m->tx = 0, m->phase = 0, m->made = 1;
}
static void arrive_at(Block *b, uint32_t at, uint32_t count)
{
    Mbar *m = mbar(b, at);
    if (m->expected == 0xffff) die("mbarrier at %u is not initialised", at);
    if (m->pending < count) die("mbarrier at %u: more arrivals than expected", at);
    m->pending = (uint16_t)(m->pending - count);
    check(m);
}
uint64_t mbarrier_arrive(uint32_t at, uint32_t count, int64_t bytes)
{
    Mbar *m = mbar(cur->block, at);
    if (m->expected == 0xffff) die("mbarrier at %u is not initialised", at);
    const uint64_t token = m->phase;
    m->tx += (int32_t)bytes;
    arrive_at(cur->block, at, count);
    return token;
}
void mbarrier_expect(uint32_t at, int64_t bytes)
{
    mbar(cur->block, at)->tx += (int32_t)bytes;
}
bool mbarrier_test(uint32_t at, uint32_t parity, bool)
{
    Mbar *m = mbar(cur->block, at);
    if (m->expected == 0xffff) die("mbarrier at %u is not initialised", at);
    if (m->phase != (parity & 1)) return true;
    yield("mbarrier");
    return m->phase != (parity & 1);
}

/* ---- asynchronous copies */
void land(const Copy &c)
{
    memcpy(c.to, c.from, c.bytes);
    if (c.zeros) memset((char *)c.to + c.bytes, 0, c.zeros);
}
void land(const Pending &p)
{
    for (const Copy &c : p.copies) land(c);
    if (p.arrive)
        arrive_at(p.block, p.barrier, 1);
    else {
        Mbar *m = mbar(p.block, p.barrier);
        m->tx -= (int32_t)p.bytes;
        check(m);
    }
    progress();
}
static bool soon()
{
    return copies_mode == 0 || (copies_mode == 2 && rnd() % 2);
}
void copy_async(uint32_t to, const void *from, uint32_t bytes, uint32_t valid)
{
    if (to % bytes || (uintptr_t)from % bytes) die("cp.async: not aligned to %u bytes", bytes);
    const Copy c{from_shared(to, bytes), from, valid, bytes - valid};
    if (soon())
        land(c);
    else
        cur->open.push_back(c);
}
void copy_commit()
{
    cur->groups.push_back(std::move(cur->open));
    cur->open.clear();
}
void copy_wait(int left)
{
    if (left < 0) copy_commit(), left = 0;
    while ((int)cur->groups.size() > left) {
        for (const Copy &c : cur->groups.front()) land(c);
        cur->groups.pop_front();
    }
}
void copy_arrive(uint32_t barrier, bool increments)
{
    Pending p{{}, cur->block, barrier, 0, true};
    if (increments) mbar(cur->block, barrier)->pending++;
    for (auto &g : cur->groups) p.copies.insert(p.copies.end(), g.begin(), g.end()), g.clear();
    p.copies.insert(p.copies.end(), cur->open.begin(), cur->open.end());
    cur->open.clear();
    if (copies_mode == 0)
        land(p);
    else
        pending.push_back(std::move(p));
}
void copy_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    if (to % 16 || (uintptr_t)from % 16 || bytes % 16) die("cp.async.bulk: not aligned to 16 bytes");
    Pending p{{Copy{from_shared(to, bytes), from, bytes, 0}}, cur->block, barrier, bytes, false};
    mbar(cur->block, barrier);
    if (soon())
        land(p);
    else
        pending.push_back(std::move(p));
}
void store_bulk(void *to, uint32_t from, uint32_t bytes)
{
    if (from % 16 || (uintptr_t)to % 16 || bytes % 16) die("cp.async.bulk: not aligned to 16 bytes");
    const Copy c{to, from_shared(from, bytes), bytes, 0};
    if (soon())
        land(c);
    else
        cur->stores.push_back(c);
}
void store_commit()
{
    cur->store_groups.push_back(std::move(cur->stores));
    cur->stores.clear();
}
void store_wait(int left)
{
    while ((int)cur->store_groups.size() > left) {
        for (const Copy &c : cur->store_groups.front()) land(c);
        cur->store_groups.pop_front();
    }
}
void before_load(bool acquire, bool relaxed)
{
    if (acquire || (relaxed && ++cur->relaxed % 32 == 0)) yield(acquire ? "ld.acquire" : "ld.relaxed");
}
} /* namespace emu */
