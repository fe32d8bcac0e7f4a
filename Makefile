# vla-toolkit: `make demo` and `make test` need nothing but a Debian machine; see README.md.
#
#   make             programs and libraries into build/        make test        every test (SAN=1: under ASan and UBSan)
#   make demo        the main job on real tensors -> results/  make test-gpu    device tests; test-emulated: chunkwise kernels, no device
#   make install PREFIX=/usr/local                             make clean
# Variables: V=1 (show commands), CC, CUDA=0 (build without nvcc), NVCC, SAN=1, BUILD (output directory), PREFIX, DESTDIR, WERROR=0.

SHELL := /bin/bash
V ?= 0
Q := $(if $(filter 1,$(V)),,@)
say = @$(if $(filter 1,$(V)),:,printf '  %-5s %s\n' $(1) $@)
PREFIX ?= /usr/local
VERSION := $(shell sed -n 's/^\#define VLA_VERSION "\(.*\)"/\1/p' lib/vla.h)
ABI := 0
ARCH := $(shell $(CC) -dumpmachine | cut -d- -f1)

ifdef SAN
BUILD ?= build/san
SANFLAGS := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
endif
BUILD ?= build
OBJ := $(BUILD)/obj
NVCC ?= $(shell command -v nvcc 2>/dev/null)
CUDA ?= $(if $(NVCC),1,0)

WERROR ?= 1
WARN := -Wall -Wextra -Wconversion -Wshadow $(if $(filter 1,$(WERROR)),-Werror)
OPT ?= -O2
CFLAGS += -std=c11 $(OPT) -g $(WARN) $(SANFLAGS) -fPIC -fvisibility=hidden -pthread
CPPFLAGS += -I. -D_GNU_SOURCE -MMD -MP
DEPS := openblas lapacke jansson
DEP_CFLAGS = $(shell pkg-config --cflags $(DEPS))
DEP_LIBS = $(shell pkg-config --libs $(DEPS))
LDLIBS = $(DEP_LIBS) -lm -ldl

PROGRAMS := $(patsubst cmd/%.c,$(BUILD)/%,$(wildcard cmd/vla-*.c))
REAL_SRC := $(wildcard lib/*/*_real.c)
LIB_OBJS := $(patsubst %.c,$(OBJ)/%.o,$(filter-out $(REAL_SRC),$(wildcard lib/*/*.c)))
CPU_PLAIN := $(wildcard kernels/cpu/*_naive_cpu.c kernels/cpu/table.c)
CPU_FAST := $(filter-out $(CPU_PLAIN),$(wildcard kernels/cpu/*_cpu.c)) $(REAL_SRC)

FAST_OPT ?= -O2
ISA_base :=
ISA_avx2 := -mavx2 -mfma
ISA_avx512 := -mavx512f -mavx512vl -mavx512dq -mavx512bw -mfma -mprefer-vector-width=512
ISAS := base $(if $(filter x86_64 amd64,$(ARCH)),avx2 avx512)
FAST_FLAGS := $(FAST_OPT) -g1 -ffp-contract=fast -fno-math-errno -fno-trapping-math
ifdef SAN
# The checks left out instrument every vector access, which the address sanitizer covers, and quadruple the build time.
FAST_FLAGS := -O1 -ffp-contract=fast -fno-sanitize=null,alignment,object-size,bounds,pointer-overflow
endif
fast_objs = $(foreach isa,$(ISAS),$(patsubst %.c,$(OBJ)/%.$(1).$(isa).o,$(CPU_FAST)))
CPU_OBJS := $(patsubst %.c,$(OBJ)/%.o,$(CPU_PLAIN)) $(call fast_objs,f32) $(call fast_objs,f64)

CU_SRC := $(wildcard kernels/cuda/*.cu)
ifneq ($(CU_SRC),)
ifeq ($(CUDA),1)
CUDA_OBJS := $(patsubst %.cu,$(OBJ)/%.cu.o,$(CU_SRC)) $(patsubst %.c,$(OBJ)/%.o,$(wildcard kernels/cuda/*.c))
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
CPPFLAGS += -DVLA_WITH_CUDA -isystem $(CUDA_HOME)/include
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -lcudart_static -lrt -lpthread -lstdc++
LDLIBS += $(CUDA_LIBS)
NVARCH ?= -gencode=arch=compute_80,code=[sm_80,compute_80] -gencode=arch=compute_90a,code=sm_90a
NVFLAGS += -std=c++17 -O3 -lineinfo -I. -DVLA_WITH_CUDA -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra $(NVARCH)
endif
endif

GPU_LIBS = $(CUDA_LIBS) -lm -ldl

TEST_PROGRAMS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))

# Objects are made again when the flags they were made with change, so that CUDA=0, SAN=1 or another CC never mix in one folder.
FLAGS_NOW := $(CC) $(CPPFLAGS) $(CFLAGS) $(FAST_FLAGS) $(NVFLAGS)
$(shell mkdir -p $(OBJ) && echo '$(FLAGS_NOW)' | cmp -s - $(OBJ)/flags || echo '$(FLAGS_NOW)' > $(OBJ)/flags)

.PHONY: all setup demo test run-tests test-gpu test-emulated install clean format
all: $(PROGRAMS) $(BUILD)/libvla.a $(BUILD)/libvla.so

# The judge is plain C, but a long sequence should not wait for it; -O3 keeps every rounding.
$(patsubst %.c,$(OBJ)/%.o,$(CPU_PLAIN)): CFLAGS += -O3

$(OBJ)/%.o: %.c $(OBJ)/flags
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS) $(DEP_CFLAGS) $(CFLAGS) -c $< -o $@

# Built again after every commit, so that records name the commit they were measured with.
$(OBJ)/lib/report/meta.o: $(wildcard $(shell git rev-parse --git-path logs/HEAD 2>/dev/null))
$(OBJ)/lib/report/meta.o: CPPFLAGS += -DVLA_BUILD_COMMIT='"$(shell git rev-parse --short=12 HEAD 2>/dev/null)"' \
	-DVLA_BUILD_CFLAGS='"$(CFLAGS)"'

define fast_rule
$(OBJ)/%.$(1).$(2).o: %.c $(OBJ)/flags
	@mkdir -p $$(@D)
	$$(call say,CC)
	$$(Q)$$(CC) $$(CPPFLAGS) -DVLA_REAL_BITS=$(subst f,,$(1)) -DVLA_ISA_$(2) $$(CFLAGS) $$(FAST_FLAGS) $$(ISA_$(2)) -c $$< -o $$@
endef
$(foreach bits,f32 f64,$(foreach isa,$(ISAS),$(eval $(call fast_rule,$(bits),$(isa)))))

$(OBJ)/%.cu.o: %.cu $(OBJ)/flags
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)$(NVCC) $(NVFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/libvla.a: $(LIB_OBJS) $(CPU_OBJS) $(CUDA_OBJS)
	$(call say,AR)
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

$(BUILD)/libvla.so: $(LIB_OBJS) $(CPU_OBJS) $(CUDA_OBJS)
	$(call say,LD)
	$(Q)$(CC) $(CFLAGS) -shared -Wl,-soname,libvla.so.$(ABI) -o $@ $^ $(LDFLAGS) $(LDLIBS)

# A program is cmd/vla-NAME.c and, where it has several files, cmd/NAME_*.c.
$(BUILD)/vla-bench: $(patsubst %.c,$(OBJ)/%.o,$(wildcard cmd/bench_*.c))
$(BUILD)/vla-capacity: $(patsubst %.c,$(OBJ)/%.o,$(wildcard cmd/capacity_*.c))
$(BUILD)/vla-jacobian: $(patsubst %.c,$(OBJ)/%.o,$(wildcard cmd/jacobian_*.c))
$(BUILD)/%: $(OBJ)/cmd/%.o $(BUILD)/libvla.a
	$(call say,LD)
	$(Q)$(CC) $(CFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LDFLAGS) $(LDLIBS)

$(BUILD)/tests/%: $(OBJ)/tests/%.o $(BUILD)/libvla.a
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(CFLAGS) -o $@ $^ $(LDFLAGS) $(shell pkg-config --libs cmocka) $(LDLIBS)

# Links nothing but the library, so that it also runs on a machine with no OpenBLAS.
$(BUILD)/test-gpu: $(patsubst %.c,$(OBJ)/%.o,$(wildcard tests/gpu/*.c)) $(BUILD)/libvla.a
	$(call say,LD)
	$(Q)$(CC) $(CFLAGS) -o $@ $^ $(LDFLAGS) $(GPU_LIBS)

setup:
	@scripts/setup.sh

# nvcc without a device would only lengthen the demo's build.
DEMO := $(if $(and $(NVCC),$(if $(wildcard /dev/nvidia[0-9]*),,none)),CUDA=0 BUILD=$(BUILD)/cpu,BUILD=$(BUILD))

demo: setup
	@$(MAKE) -j$$(nproc) --no-print-directory $(DEMO) all
	@scripts/demo.sh $(patsubst BUILD=%,%,$(filter BUILD=%,$(DEMO)))

test: setup
	@$(MAKE) -j$$(nproc) --no-print-directory run-tests

run-tests: all $(TEST_PROGRAMS)
	@tests/run.sh $(BUILD)

test-gpu: $(BUILD)/test-gpu
	@[ "$(SANITIZE)" != 1 ] || NVFLAGS=-DVLA_EVERY_LANE $(MAKE) --no-print-directory BUILD=$(BUILD)/race $(BUILD)/race/test-gpu
	@tests/run-gpu.sh $(BUILD)

test-emulated:
	@scripts/setup.sh g++ python3-minimal
	@tests/emulate/run.sh $(BUILD)

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include
	install -m 755 $(PROGRAMS) $(DESTDIR)$(PREFIX)/bin
	install -m 644 $(BUILD)/libvla.a $(DESTDIR)$(PREFIX)/lib
	install -m 755 $(BUILD)/libvla.so $(DESTDIR)$(PREFIX)/lib/libvla.so.$(VERSION)
	ln -sf libvla.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libvla.so.$(ABI)
	ln -sf libvla.so.$(ABI) $(DESTDIR)$(PREFIX)/lib/libvla.so
	install -m 644 lib/vla.h $(DESTDIR)$(PREFIX)/include
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@CUDA_LIBS@|$(CUDA_LIBS)|' scripts/vla.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/vla.pc

format:
	clang-format -i $$(git ls-files '*.c' '*.cpp' '*.h' '*.cu' '*.cuh')

clean:
	rm -rf build

.SECONDARY:
-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)
