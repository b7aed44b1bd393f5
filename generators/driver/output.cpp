#include "generators/driver/output.h"

#include <cstdio>
#include <fstream>
#include <map>

#include "generators/common/bad_input.h"
#include "generators/driver/llvm_option.h"
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

// LLVM's scheduler before register allocation gathers vector code after the products of tiles that it is woven between,
// and spills what waits for it: 45 vectors for 32 products. Kernels of AMX without it take 0.9 to 1.0 of the time.
void keep_order() { add_llvm_option("-enable-misched=false"); }

}  // namespace

int64_t write_module(const Halide::Module &module, const std::set<std::string> &more, const std::string &base,
                     bool streams_tiles) {
    if (module.target().has_feature(Halide::Target::AVX512_SapphireRapids)) keep_order();
    std::map<OutputFileType, std::string> files = {{OutputFileType::object, base + ".o"}};
    if (more.count("stmt") != 0) files[OutputFileType::stmt] = base + ".stmt";
    const bool wants_assembly = more.count("assembly") != 0;
    if (wants_assembly || streams_tiles) files[OutputFileType::assembly] = base + ".s";
    module.compile(files);
    if (streams_tiles) {
        load_streams_past_l1(base + ".o", base + ".s");
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
