/* What the rooms of the emulator (emulator.cpp, memory.cpp, products.cpp) share. */
#ifndef VLA_EMULATE_PARTS_H
#define VLA_EMULATE_PARTS_H
#include "tests/emulate/emulator.h"
#include <memory>

namespace emu
{
constexpr size_t ARENA = 320 * 1024, GAP = 1024, CANARY = 1024; /* of a block in shared memory; before it; after */

struct Rendezvous {
    uint32_t mask, here;
    const char *tag;
    run_function *run;
    void *arg[32];
};
struct Pending { /* copies that land later */
    std::vector<Copy> copies;
    Block *block;
    uint32_t barrier;
    uint32_t bytes; /* complete_tx */
    bool arrive;    /* one arrival instead */
};
struct Product {
    wgmma_arg arg[32];
};
struct Warp {
    Block *block = nullptr;
    int index = 0;
    Fiber *lane[32] = {};
    uint32_t alive = 0, ready = 0, yielded = 0;
    bool queued = false, spinning = false, slow = false;
    int last = 0;
    std::vector<Rendezvous> open;
    std::vector<std::unique_ptr<Product>> products; /* not committed */
    std::deque<std::vector<std::unique_ptr<Product>>> product_groups;
};
struct Barrier {
    int arrived = 0, count = 0;
    std::vector<Fiber *> waiting;
};
struct Block {
    Grid *grid = nullptr;
    uint3 index{};
    uint64_t number = 0;
    std::vector<Fiber> fibers;
    std::deque<Warp> warps;
    Barrier bar[16];
    int live = 0;
    bool released = false, over = false;
    unsigned char *arena = nullptr;
    size_t used = 0;
    std::vector<std::pair<const void *, unsigned char *>> statics;
};
struct Grid {
    uint64_t number;
    dim3 grid, block;
    size_t shared;
    bool early;
    const void *kernel;
    std::function<void()> body;
    uint64_t blocks, next = 0, ended = 0, released = 0;
};

extern std::deque<Pending> pending;
extern int copies_mode; /* 0 at once, 1 late, 2 at random */
uint32_t rnd();
unsigned char *shared_of(Block *b, uint32_t at, uint32_t bytes);
void land(const Copy &c);
void land(const Pending &p);
} /* namespace emu */

#endif
