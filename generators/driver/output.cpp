#include "generators/driver/output.h"

#include <fstream>
#include <map>

#include "generators/common/bad_input.h"

namespace heed {

using Halide::OutputFileType;

void write_module(const Halide::Module &module, const std::set<std::string> &more, const std::string &base) {
    std::map<OutputFileType, std::string> files = {{OutputFileType::object, base + ".o"}};
    if (more.count("stmt") != 0) files[OutputFileType::stmt] = base + ".stmt";
    if (more.count("assembly") != 0) files[OutputFileType::assembly] = base + ".s";
    module.compile(files);
}

void write_registry_line(const std::string &line, const std::string &base) {
    std::ofstream file(base + ".inc");
    file << line;
    if (!file.flush()) throw BadInput("cannot write " + base + ".inc");
}

}  // namespace heed
