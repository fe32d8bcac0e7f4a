/* The emulator behind the intrinsics: fibers, barriers and launches (emulator.cpp), copies (memory.cpp). */
#ifndef VLA_EMULATE_RUNTIME_H
#define VLA_EMULATE_RUNTIME_H
#include "tests/emulate/types.h"

namespace emu
{
[[noreturn]] void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
int64_t env(const char *name, int64_t otherwise);
bool env_is(const char *name, const char *value);

struct Warp;
struct Block;
struct Grid;
struct Copy {
    void *to;
    const void *from;
    uint32_t bytes, zeros;
};
struct Fiber {
    void *sp = nullptr;
    char *stack = nullptr;
    uint3 tid{};
    int lane = 0;
    Warp *warp = nullptr;
    Block *block = nullptr;
    const char *why = "";
    std::vector<Copy> open;               /* cp.async not committed */
    std::deque<std::vector<Copy>> groups; /* committed */
    std::vector<Copy> stores;             /* bulk copies out of shared memory, by groups below */
    std::deque<std::vector<Copy>> store_groups;
    unsigned relaxed = 0;
};
extern Fiber *cur;

typedef void run_function(void **args, uint32_t here);
void collective(uint32_t mask, const char *tag, void *arg, run_function *run);
void yield(const char *why);
void barrier_sync(int id, int count, bool wait); /* count < 0: all live threads */
void progress();
void *block_static(const void *key, size_t bytes);
unsigned char *block_dynamic();
uint32_t to_shared(const void *p);
unsigned char *from_shared(uint32_t address, uint32_t bytes);
void grid_wait();
void grid_release();
int warp_in_block();
unsigned warp_slot();
int sms();

void copy_async(uint32_t to, const void *from, uint32_t bytes, uint32_t valid);
void copy_commit();
void copy_wait(int pending);
void copy_arrive(uint32_t barrier, bool increments);
void copy_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier);
void store_bulk(void *to, uint32_t from, uint32_t bytes);
void store_commit();
void store_wait(int pending);
void mbarrier_init(uint32_t barrier, uint32_t count);
uint64_t mbarrier_arrive(uint32_t barrier, uint32_t count, int64_t bytes);
void mbarrier_expect(uint32_t barrier, int64_t bytes);
bool mbarrier_test(uint32_t barrier, uint32_t parity, bool wait);

void launch(dim3 grid, dim3 block, size_t shared, bool early, const void *kernel, std::function<void()> body);
void finish();
} /* namespace emu */

#endif
