#include "output_files.h"

#include "invalid_input.h"

namespace heed_cli {
namespace {

namespace fs = std::filesystem;

constexpr const char *names[] = {"out.npy", "lse.npy"};

fs::path partial(const fs::path &path) {
    fs::path name = path;
    return name += ".partial";
}

void remove_file(const fs::path &path) {
    std::error_code error;
    const fs::file_type type = fs::symlink_status(path, error).type();
    if (type == fs::file_type::directory) {
        throw InvalidInput(path.string() + " is a folder; heed run writes a file of that name");
    }
    if (type != fs::file_type::not_found) fs::remove(path, error);
    if (error && type != fs::file_type::not_found) {
        throw InvalidInput(path.string() + ": cannot be removed: " + error.message());
    }
}

}  // namespace

void remove_outputs(const fs::path &folder) {
    for (const char *name : names) {
        remove_file(folder / name);
        remove_file(partial(folder / name));
    }
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
