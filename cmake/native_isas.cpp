// Prints the instruction sets that this machine runs, as a CMake list: for HEED_ISAS=native.
#include <cstdio>

#include "runtime/cpu.h"

int main() {
    const char *separator = "";
    for (const heed::Isa isa : heed::cpu_isas) {
        if (!heed::cpu_supports(isa)) continue;
        std::printf("%s%s", separator, heed::target_name(isa));
        separator = ";";
    }
    return 0;
}
