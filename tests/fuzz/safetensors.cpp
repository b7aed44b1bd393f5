// Bytes -> a safetensors file. It is refused with a sentence, or each of its tensors is a view inside the file, of the
// size that its shape says.
#include <memory>
#include <set>

#include "heed/heed.h"
#include "runtime/reference/element.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/memory_file.h"

namespace heed_test {
namespace {

struct Closer {
    void operator()(heed_weights_file *file) const { heed_weights_close(file); }
};

// What is between quotes: each name without escapes is there.
std::set<std::string> quoted_words(const std::string &bytes) {
    std::set<std::string> words;
    size_t begin = bytes.find('"');
    while (begin != std::string::npos && words.size() < 64) {
        const size_t end = bytes.find('"', begin + 1);
        if (end == std::string::npos) break;
        words.insert(bytes.substr(begin + 1, end - begin - 1));
        begin = end;
    }
    return words;
}

void check_tensor(const heed_tensor &tensor, const int64_t *shape, int32_t rank, const std::string &file) {
    require(rank >= 0 && rank <= 8 && tensor.size >= 0, "a rank of 0..8 and a size");
    int64_t size = 1;
    for (int32_t i = 0; i < rank; i++) size *= shape[i];
    require(size == tensor.size, "as many elements as the shape says");
    if (size == 0) return;
    const int64_t bytes = size * element_bytes(tensor.dtype);
    require(reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(element_bytes(tensor.dtype)) == 0,
            "aligned elements");
    const std::string view(static_cast<const char *>(tensor.data), static_cast<size_t>(bytes));
    require(file.find(view, 8) != std::string::npos, "elements of the file");
}

}  // namespace
}  // namespace heed_test

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    using namespace heed_test;
    static const MemoryFile memory;
    const std::string bytes(reinterpret_cast<const char *>(data), size);
    memory.write(bytes);
    heed_weights_file *opened = nullptr;
    const heed_status status = heed_weights_open(memory.path().c_str(), &opened);
    const std::unique_ptr<heed_weights_file, Closer> file(opened);
    require((status == HEED_OK) == (opened != nullptr), "a file exactly on success");
    if (status != HEED_OK) {
        require(status == HEED_INVALID_ARGUMENT && heed_last_error()[0] != '\0', "a refusal with its sentence");
        return 0;
    }
    for (const std::string &name : quoted_words(bytes)) {
        heed_tensor tensor = {};
        int64_t shape[8] = {};
        int32_t rank = -1;
        const heed_status found = heed_weights_find(opened, name.c_str(), &tensor, shape, &rank);
        require(found == HEED_OK || found == HEED_INVALID_ARGUMENT || found == HEED_UNSUPPORTED, "found, or why not");
        if (found == HEED_OK) check_tensor(tensor, shape, rank, bytes);
    }
    return 0;
}
