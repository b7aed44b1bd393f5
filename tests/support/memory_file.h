// A file with a path that lives in memory.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <system_error>

namespace heed_test {

class MemoryFile {
public:
    MemoryFile() : descriptor_(memfd_create("test", MFD_CLOEXEC)) {
        if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
    }
    ~MemoryFile() { close(descriptor_); }
    MemoryFile(const MemoryFile &) = delete;
    MemoryFile &operator=(const MemoryFile &) = delete;

    void write(const void *bytes, size_t size) const {
        if (ftruncate(descriptor_, 0) != 0 || pwrite(descriptor_, bytes, size, 0) != static_cast<ssize_t>(size)) {
            throw std::system_error(errno, std::generic_category(), "memory file");
        }
    }
    void write(const std::string &bytes) const { write(bytes.data(), bytes.size()); }
    std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

private:
    int descriptor_;
};

}  // namespace heed_test
