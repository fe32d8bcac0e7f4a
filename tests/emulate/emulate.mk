# Builds the emulated kernels: make -f tests/emulate/emulate.mk OUT=build/emulate/90 ARCH=90, from the project's root; see run.sh.
.SUFFIXES:
.DELETE_ON_ERROR:
HERE := tests/emulate
DEVICE := $(if $(filter 90,$(ARCH)),-D__CUDA_ARCH__=900 -D__CUDA_ARCH_FEAT_SM90_ALL,-D__CUDA_ARCH__=$(ARCH)0)
FLAGS := -std=c++17 -march=native -ffp-contract=fast -fno-strict-aliasing -DVLA_WITH_CUDA -DEMU_ARCH=$(ARCH) -I$(HERE)/include -I.
C := $(wildcard lib/base/*.c) lib/tensor/tensor.c lib/tensor/npy.c $(wildcard kernels/cpu/*_naive_cpu.c)
KERNELS := vla_chunk_cuda delta_chunk_cuda linear_chunk_cuda linear_scan_cuda
ROOMS := emulator memory products host
HEADERS := $(wildcard $(HERE)/*.h)

$(OUT)/cases: $(OUT)/cases.o $(ROOMS:%=$(OUT)/%.o) $(C:%.c=$(OUT)/%.o) $(KERNELS:%=$(OUT)/%.o)
	g++ -o $@ $^ -lpthread -lm
$(OUT)/%.o: %.c
	@mkdir -p $(@D)
	gcc -std=c11 -O3 -D_GNU_SOURCE -pthread -I. -MMD -MP -c $< -o $@
$(OUT)/cases.o: $(HERE)/cases.cpp $(HEADERS)
	@mkdir -p $(@D)
	g++ $(FLAGS) -O1 -Wall -Wextra -Werror -c $< -o $@
$(ROOMS:%=$(OUT)/%.o): $(OUT)/%.o: $(HERE)/%.cpp $(HEADERS)
	@mkdir -p $(@D)
	g++ $(FLAGS) -O3 -Wall -Wextra -Werror -c $< -o $@
# Of what rewrite.py makes warnings say nothing: the kernels are compiled by nvcc with them.
$(OUT)/%.ii: kernels/cuda/%.cu $(HEADERS)
	@mkdir -p $(@D)
	g++ $(FLAGS) $(DEVICE) -x c++ -E -MMD -MP -MT $@ -MF $(@:.ii=.d) $< -o $@
$(OUT)/%.cpp: $(OUT)/%.ii $(HERE)/rewrite.py
	python3 $(HERE)/rewrite.py $< $@
$(KERNELS:%=$(OUT)/%.o): %.o: %.cpp
	g++ $(FLAGS) $(DEVICE) -O1 -w -fpreprocessed -c $< -o $@
.PRECIOUS: $(OUT)/%.ii $(OUT)/%.cpp
-include $(shell find $(OUT) -name '*.d' 2>/dev/null)
