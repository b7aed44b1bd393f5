#include "generators/cuda/device_binary.h"

#include <cstdio>
#include <cstring>
#include <fstream>
#include <list>
#include <regex>
#include <sstream>
#include <stdexcept>

namespace heed::cuda {

using namespace Halide;
using namespace Halide::Internal;

namespace {

bool is_kernel_source(const Buffer<void> &buffer) {
    return buffer.name().find("gpu_source_kernels") != std::string::npos;
}

// Runs a command and returns what it printed; both streams.
std::string run(const std::string &command) {
    FILE *const pipe = popen((command + " 2>&1").c_str(), "r");
    if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
    std::string output;
    char part[4096];
    while (const size_t count = std::fread(part, 1, sizeof(part), pipe)) output.append(part, count);
    if (pclose(pipe) != 0) throw std::runtime_error(command + " failed:\n" + output);
    return output;
}

std::string quoted(const std::string &text) {
    std::string result = "'";
    for (char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return result + "'";
}

std::string contents(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file) throw std::runtime_error("cannot read " + path);
    return text.str();
}

int number(const std::string &text, const char *pattern) {
    std::smatch match;
    if (!std::regex_search(text, match, std::regex(pattern))) {
        throw std::runtime_error(std::string("ptxas does not say '") + pattern + "':\n" + text);
    }
    return std::stoi(match[1]);
}

// Gives the image's size to the call that loads it.
class PatchSize : public IRMutator {
public:
    PatchSize(int from, int to) : from(from), to(to) {}
    int patched = 0;

private:
    const int from, to;
    using IRMutator::visit;
    Expr visit(const Call *op) override {
        if (op->name != "halide_cuda_initialize_kernels") return IRMutator::visit(op);
        std::vector<Expr> args = op->args;
        for (Expr &arg : args) {
            const auto size = as_const_int(arg);
            if (size && *size == from) {
                arg = make_const(arg.type(), to);
                patched++;
            }
        }
        return Call::make(op->type, op->name, args, op->call_type);
    }
};

Module with_image(const Module &module, const std::string &image) {
    Module result(module.name(), module.target());
    int old_size = 0, patched = 0;
    for (const auto &buffer : module.buffers()) {
        if (!is_kernel_source(buffer)) {
            result.append(buffer);
            continue;
        }
        old_size = static_cast<int>(buffer.size_in_bytes());
        Buffer<uint8_t> bytes(static_cast<int>(image.size()), buffer.name());
        std::memcpy(bytes.data(), image.data(), image.size());
        result.append(Buffer<void>(bytes));
    }
    for (LoweredFunc function : module.functions()) {
        PatchSize patch(old_size, static_cast<int>(image.size()));
        function.body = patch.mutate(function.body);
        patched += patch.patched;
        result.append(function);
    }
    if (patched != 1) throw std::runtime_error("the image's size is in " + std::to_string(patched) + " places, not 1");
    result.set_any_strict_float(module.any_strict_float());
    result.set_conceptual_code_stmt(module.get_conceptual_stmt());
    return result;
}

std::string kernel_source(const Module &module) {
    std::string source;
    int sources = 0;
    for (const auto &buffer : module.buffers()) {
        if (!is_kernel_source(buffer)) continue;
        sources++;
        source.assign(static_cast<const char *>(buffer.data()), buffer.size_in_bytes());
    }
    if (sources != 1) throw std::runtime_error("the module has " + std::to_string(sources) + " device modules, not 1");
    return source;
}

// A file that goes with this object, unless it is kept.
class Scratch {
public:
    Scratch(std::string path, const std::string &text, bool kept) : path(std::move(path)), kept(kept) {
        if (!text.empty()) std::ofstream(this->path) << text;
    }
    ~Scratch() {
        if (!kept) std::remove(path.c_str());
    }
    Scratch(const Scratch &) = delete;
    Scratch &operator=(const Scratch &) = delete;

    const std::string path;

private:
    const bool kept;
};

std::string with_target(std::string ptx, const std::string &from, const std::string &to) {
    const std::string line = ".target " + from + "\n";
    return ptx.replace(ptx.find(line), line.size(), ".target " + to + "\n");
}

}  // namespace

DeviceBinary assemble(const Module &module, const RewriteOptions &options, const Toolkit &toolkit,
                      const std::string &base) {
    DeviceBinary binary{module, {}};
    const std::string text = rewrite_ptx(kernel_source(module), options).text, newest_path = base + ".newest.ptx",
                      image_path = base + ".fatbin";
    const std::string least = target_of(options.capability, options),
                      newest = target_of(toolkit.capabilities.back(), options);
    const Scratch ptx(base + ".ptx", text, toolkit.keeps_ptx);
    const Scratch newest_ptx(newest_path, with_target(text, least, newest), false);
    const Scratch image(image_path, "", false);
    // Uncompressed, so that tools may read it.
    std::string images;
    std::list<Scratch> cubins;
    for (int capability : toolkit.capabilities) {
        const std::string target = target_of(capability, options);
        const Scratch &cubin =
            cubins.emplace_back(base + ".sm_" + std::to_string(capability) + ".cubin", "", toolkit.keeps_cubins);
        const std::string said = run(quoted(toolkit.ptxas) + " -v -O3 -arch=" + target + " " + quoted(ptx.path) +
                                     " -o " + quoted(cubin.path));
        BinaryStatistics &statistics = binary.statistics[capability];
        statistics.registers = number(said, R"(Used (\d+) registers)");
        statistics.spill_bytes =
            number(said, R"((\d+) bytes spill stores)") + number(said, R"((\d+) bytes spill loads)");
        images += " --image3=kind=elf,sm=" + target.substr(3) + ",file=" + quoted(cubin.path);
    }
    run(quoted(toolkit.fatbinary) + " --64 --compress=false --create=" + quoted(image_path) + images +
        " --image3=kind=ptx,sm=" + newest.substr(3) + ",file=" + quoted(newest_path));
    const std::string bytes = contents(image_path);
    binary.module = with_image(module, bytes);
    binary.image_bytes = static_cast<int64_t>(bytes.size());
    return binary;
}

}  // namespace heed::cuda
