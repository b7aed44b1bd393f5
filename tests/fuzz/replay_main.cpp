// Runs a fuzz target on stored inputs, for builds without libFuzzer: TARGET FILE_OR_FOLDER...
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace {

namespace fs = std::filesystem;

void replay(const fs::path &path) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    std::printf("%s\n", path.filename().c_str());  // the last one printed is the one that failed
    std::fflush(stdout);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t *>(bytes.data()), bytes.size());
}

}  // namespace

int main(int argc, char **argv) {
    int count = 0;
    for (int n = 1; n < argc; n++) {
        if (!fs::is_directory(argv[n])) {
            replay(argv[n]);
            count++;
            continue;
        }
        for (const auto &entry : fs::directory_iterator(argv[n])) {
            replay(entry.path());
            count++;
        }
    }
    std::printf("%d inputs\n", count);
    return count > 0 ? 0 : 1;
}
