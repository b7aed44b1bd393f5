#include "generators/driver/output.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include "generators/common/bad_input.h"
#include "generators/driver/machine_code.h"
#include "generators/driver/tile_hints.h"

namespace heed {

using Halide::OutputFileType;

namespace {

int64_t machine_code_bytes(const std::string &object) {
    int64_t sum = 0;
    for (const auto &[begin, size] : executed_sections(bytes_of(object))) sum += static_cast<int64_t>(size);
    return sum;
}

// LLVM's scheduler moves vector code from between the products of tiles to one place after them, and what it keeps
// until then to memory: 45 vectors for 32 products. Halide reads this where it starts LLVM.
void keep_order() { setenv("HL_LLVM_ARGS", "-enable-misched=false", 1); }

}  // namespace

int64_t write_module(const Halide::Module &module, const std::set<std::string> &more, const std::string &base,
                     bool streams_first_factors) {
    if (module.target().has_feature(Halide::Target::AVX512_SapphireRapids)) keep_order();
    std::map<OutputFileType, std::string> files = {{OutputFileType::object, base + ".o"}};
    if (more.count("stmt") != 0) files[OutputFileType::stmt] = base + ".stmt";
    const bool wants_assembly = more.count("assembly") != 0;
    if (wants_assembly || streams_first_factors) files[OutputFileType::assembly] = base + ".s";
    module.compile(files);
    if (streams_first_factors) {
        load_first_factors_past_l1(base + ".o", base + ".s");
        if (!wants_assembly) std::remove((base + ".s").c_str());
    }
    return machine_code_bytes(base + ".o");
}

void write_registry_line(const std::string &line, const std::string &base) {
    std::ofstream file(base + ".inc");
    file << line;
    if (!file.flush()) throw BadInput("cannot write " + base + ".inc");
}

}  // namespace heed
