#include "runtime/cli/output_files.h"

#include <string>

#include "runtime/reference/invalid_input.h"

namespace heed_cli {
namespace {

namespace fs = std::filesystem;
using heed_reference::InvalidInput;

fs::path partial(const fs::path &path) {
    fs::path name = path;
    return name += ".partial";
}

// The reason why the file is still there, "" when it is not.
std::string remove_file(const fs::path &path) {
    std::error_code error;
    const fs::file_type type = fs::symlink_status(path, error).type();
    if (type == fs::file_type::not_found) return "";
    if (type == fs::file_type::directory) return path.string() + " is a folder; heed run writes a file of that name";
    fs::remove(path, error);
    return error ? path.string() + ": cannot be removed: " + error.message() : "";
}

}  // namespace

fs::path outputs_of(const fs::path &case_path) {
    fs::path path = case_path;
    if (path.extension() == ".safetensors") path.replace_extension();
    return path += ".out.safetensors";
}

void remove_outputs(const fs::path &case_path) {
    const fs::path path = outputs_of(case_path);
    const std::string first = remove_file(path), second = remove_file(partial(path));
    if (!first.empty() || !second.empty()) throw InvalidInput(first.empty() ? second : first);
}

void write_outputs(const fs::path &case_path, const heed_reference::Array &out, const heed_reference::Array &lse) {
    const fs::path path = outputs_of(case_path);
    try {
        heed_reference::write_tensors(partial(path), {{}, {{"out", out}, {"lse", lse}}});
        fs::rename(partial(path), path);
    } catch (const fs::filesystem_error &error) {
        remove_outputs(case_path);
        throw InvalidInput(error.path2().string() + ": cannot be written: " + error.code().message());
    } catch (...) {
        remove_outputs(case_path);
        throw;
    }
}

}  // namespace heed_cli
