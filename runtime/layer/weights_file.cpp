// Views of the tensors of a safetensors file, which is mapped.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "runtime/files/safetensors.h"
#include "runtime/float_environment.h"
#include "runtime/ranges.h"
#include "runtime/status.h"

struct heed_weights_file {
    void *memory = nullptr;
    size_t bytes = 0;
    const char *data = nullptr;  // after the header
    heed::SafetensorsHeader header;

    ~heed_weights_file() {
        if (memory != nullptr) munmap(memory, bytes);
    }
};

namespace heed {
namespace {

heed_status map_file(const char *path, heed_weights_file *file) {
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO would wait for its writer
    if (descriptor < 0) return fail(HEED_INVALID_ARGUMENT, "cannot open %s: %s", path, std::strerror(errno));
    struct stat info = {};
    const bool known = fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
    if (known && info.st_size > 0) {
        file->bytes = static_cast<size_t>(info.st_size);
        file->memory = mmap(nullptr, file->bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (file->memory == MAP_FAILED) file->memory = nullptr;
    }
    close(descriptor);
    if (!known) return fail(HEED_INVALID_ARGUMENT, "%s is not a regular file", path);
    if (file->memory == nullptr && file->bytes > 0) return fail(HEED_OUT_OF_MEMORY, "cannot map %s", path);
    return HEED_OK;
}

void read_header(heed_weights_file *file) {
    const auto *const start = static_cast<const unsigned char *>(file->memory);
    const uint64_t length = safetensors_header_bytes(start, file->bytes);
    const char *const text = reinterpret_cast<const char *>(start + safetensors_prefix);
    file->data = text + length;
    file->header = read_safetensors_header(text, length, file->bytes - safetensors_prefix - length);
}

bool has_dtype(const std::string &name, heed_dtype *dtype) {
    struct Type {
        const char *name;
        heed_dtype dtype;
    };
    static constexpr Type types[] = {{"F32", HEED_F32}, {"F16", HEED_F16}, {"BF16", HEED_BF16}, {"I8", HEED_I8},
                                     {"U8", HEED_U8},   {"BOOL", HEED_U8}, {"I32", HEED_I32}};
    for (const Type &type : types) {
        if (name != type.name) continue;
        *dtype = type.dtype;
        return true;
    }
    return false;
}

// The tensor's elements where they are in the file.
heed_status view_of(const heed_weights_file &file, const char *name, const SafetensorsTensor &stored,
                    heed_tensor *tensor) {
    if (stored.shape.size() > most_safetensors_rank) {
        return fail(HEED_UNSUPPORTED, "the tensor \"%s\" has %zu dimensions; at most 8 are allowed", name,
                    stored.shape.size());
    }
    heed_dtype dtype = HEED_F32;
    if (!has_dtype(stored.dtype, &dtype)) {
        return fail(HEED_UNSUPPORTED, "the tensor \"%s\" is of dtype %s, which Heed has not", name,
                    stored.dtype.c_str());
    }
    const uint64_t size = safetensors_element_bytes(stored.dtype), bytes = stored.end - stored.begin;
    const char *const data = file.data + stored.begin;
    if (bytes > 0 && reinterpret_cast<uintptr_t>(data) % size != 0) {
        return fail(HEED_UNSUPPORTED, "the tensor \"%s\" is not aligned to its elements in the file", name);
    }
    *tensor = {const_cast<char *>(data), static_cast<int64_t>(bytes / size), dtype};
    return HEED_OK;
}

}  // namespace
}  // namespace heed

extern "C" {

heed_status heed_weights_open(const char *path, heed_weights_file **file) {
    const heed::DefaultFloatEnvironment environment;
    if (file == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_weights_open: file is NULL");
    *file = nullptr;
    if (path == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_weights_open: path is NULL");
    try {
        auto opened = std::make_unique<heed_weights_file>();
        const heed_status status = heed::map_file(path, opened.get());
        if (status) return status;
        heed::read_header(opened.get());
        *file = opened.release();
        return HEED_OK;
    } catch (const std::bad_alloc &) {
        return heed::fail(HEED_OUT_OF_MEMORY, "heed_weights_open: out of memory");
    } catch (const std::exception &error) {
        return heed::fail(HEED_INVALID_ARGUMENT, "%s is no safetensors file: %s", path, error.what());
    }
}

void heed_weights_close(heed_weights_file *file) { delete file; }

heed_status heed_weights_find(const heed_weights_file *file, const char *name, heed_tensor *tensor, int64_t shape[8],
                              int32_t *rank) {
    if (file == nullptr || name == nullptr || tensor == nullptr || shape == nullptr || rank == nullptr) {
        return heed::fail(HEED_INVALID_ARGUMENT, "heed_weights_find: an argument is NULL");
    }
    const auto &tensors = file->header.tensors;
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
        return heed::fail(HEED_INVALID_ARGUMENT, "the file has no tensor \"%s\" among its %zu", name, tensors.size());
    }
    const std::vector<int64_t> &extents = found->second.shape;
    const heed_status status = heed::view_of(*file, name, found->second, tensor);
    if (status) return status;
    std::fill_n(shape, 8, 0);
    std::copy(extents.begin(), extents.end(), shape);
    *rank = static_cast<int32_t>(extents.size());
    return HEED_OK;
}

}  // extern "C"
