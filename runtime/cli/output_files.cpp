#include "output_files.h"

#include <string>

#include "invalid_input.h"

namespace heed_cli {
namespace {

namespace fs = std::filesystem;

constexpr const char *names[] = {"out.npy", "lse.npy"};

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

void remove_outputs(const fs::path &folder) {
    std::string complaint;
    for (const char *name : names) {
        for (const fs::path &path : {folder / name, partial(folder / name)}) {
            const std::string reason = remove_file(path);
            if (complaint.empty()) complaint = reason;
        }
    }
    if (!complaint.empty()) throw InvalidInput(complaint);
}

void write_outputs(const fs::path &folder, const Array &out, const Array &lse) {
    const Array *arrays[] = {&out, &lse};
    try {
        for (int n = 0; n < 2; n++) write_npy(partial(folder / names[n]), *arrays[n]);
        for (const char *name : names) fs::rename(partial(folder / name), folder / name);
    } catch (const fs::filesystem_error &error) {
        remove_outputs(folder);
        throw InvalidInput(error.path2().string() + ": cannot be written: " + error.code().message());
    } catch (...) {
        remove_outputs(folder);
        throw;
    }
}

}  // namespace heed_cli
