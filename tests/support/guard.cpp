#include "tests/support/guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace heed_test {
namespace {

constexpr unsigned char slack_byte = 0xff;

size_t page_size() {
    static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return size;
}

}  // namespace

GuardedBuffer::GuardedBuffer(size_t bytes, Flush flush) : bytes_(bytes) {
    const size_t page = page_size(), inner = (bytes + page - 1) / page * page;
    mapped_ = inner + 2 * page;
    void *mapping = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    mapping_ = static_cast<unsigned char *>(mapping);
    if (inner > 0 && mprotect(mapping_ + page, inner, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    std::memset(mapping_ + page, slack_byte, inner);
    data_ = mapping_ + page + (flush == Flush::rear ? inner - bytes : 0);
}

GuardedBuffer::~GuardedBuffer() {
    if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

GuardedBuffer::GuardedBuffer(GuardedBuffer &&other) noexcept { *this = std::move(other); }

GuardedBuffer &GuardedBuffer::operator=(GuardedBuffer &&other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(data_, other.data_);
    std::swap(mapped_, other.mapped_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

ReservedBuffer::ReservedBuffer(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
}

ReservedBuffer::~ReservedBuffer() { munmap(data_, bytes_); }

bool GuardedBuffer::slack_intact() const {
    const unsigned char *begin = mapping_ + page_size(), *end = mapping_ + mapped_ - page_size();
    const auto intact = [](unsigned char byte) { return byte == slack_byte; };
    return std::all_of(begin, static_cast<const unsigned char *>(data_), intact) &&
           std::all_of(static_cast<const unsigned char *>(data_) + bytes_, end, intact);
}

}  // namespace heed_test
