#include "generators/driver/output.h"

#include <elf.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "generators/common/bad_input.h"

namespace heed {

using Halide::OutputFileType;

namespace {

// The bytes of the sections that are executed, in an object of ELF's 64 bits, which LLVM has just written.
int64_t machine_code_bytes(const std::string &object) {
    std::ifstream file(object, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    Elf64_Ehdr header;
    if (bytes.size() < sizeof(header)) throw BadInput("cannot read " + object);
    std::memcpy(&header, bytes.data(), sizeof(header));
    int64_t sum = 0;
    for (size_t n = 0; n < header.e_shnum; n++) {
        Elf64_Shdr section;
        std::memcpy(&section, bytes.data() + header.e_shoff + n * sizeof(section), sizeof(section));
        if ((section.sh_flags & SHF_EXECINSTR) != 0) sum += static_cast<int64_t>(section.sh_size);
    }
    return sum;
}

}  // namespace

int64_t write_module(const Halide::Module &module, const std::set<std::string> &more, const std::string &base) {
    std::map<OutputFileType, std::string> files = {{OutputFileType::object, base + ".o"}};
    if (more.count("stmt") != 0) files[OutputFileType::stmt] = base + ".stmt";
    if (more.count("assembly") != 0) files[OutputFileType::assembly] = base + ".s";
    module.compile(files);
    return machine_code_bytes(base + ".o");
}

void write_registry_line(const std::string &line, const std::string &base) {
    std::ofstream file(base + ".inc");
    file << line;
    if (!file.flush()) throw BadInput("cannot write " + base + ".inc");
}

}  // namespace heed
