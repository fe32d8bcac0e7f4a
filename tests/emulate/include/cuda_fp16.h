#include "tests/emulate/emulator.h"
