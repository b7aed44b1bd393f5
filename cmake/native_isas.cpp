// Prints the instruction sets that this machine runs, as a CMake list: for HEED_ISAS=native.
#include <cstdio>
#include <initializer_list>

#include "cpu.h"

int main() {
    const char *separator = "";
    for (const heed::Isa isa :
         {heed::Isa::x86_64, heed::Isa::avx2, heed::Isa::avx512, heed::Isa::avx512bf16, heed::Isa::amx}) {
        if (!heed::cpu_supports(isa)) continue;
        std::printf("%s%s", separator, heed::isa_name(isa));
        separator = ";";
    }
    return 0;
}
