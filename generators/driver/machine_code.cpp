#include "generators/driver/machine_code.h"

#include <elf.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "generators/common/bad_input.h"

namespace heed {

std::string bytes_of(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw BadInput("cannot read " + path);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::pair<size_t, size_t>> executed_sections(const std::string &object) {
    Elf64_Ehdr header;
    if (object.size() < sizeof(header)) throw BadInput("an object has no header");
    std::memcpy(&header, object.data(), sizeof(header));
    std::vector<std::pair<size_t, size_t>> found;
    for (size_t n = 0; n < header.e_shnum; n++) {
        Elf64_Shdr section;
        std::memcpy(&section, object.data() + header.e_shoff + n * sizeof(section), sizeof(section));
        if ((section.sh_flags & SHF_EXECINSTR) != 0) found.emplace_back(section.sh_offset, section.sh_size);
    }
    return found;
}

}  // namespace heed
