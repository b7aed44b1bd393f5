#include "bench/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "runtime/reference/element.h"
#include "runtime/reference/placement.h"

namespace heed_bench {

namespace {

// A multiple of a cache line in every type.
int64_t aligned(int64_t elements) { return (elements + 63) / 64 * 64; }

constexpr double code_of_one = 32;  // 4 standard deviations are 128, and clipped

heed_dtype element_type(Numbers numbers) {
    constexpr std::array<heed_dtype, num_numbers> types = {HEED_F32, HEED_F16, HEED_BF16, HEED_I8, HEED_F32};
    return types[static_cast<size_t>(numbers)];
}

void put(float x, Numbers numbers, void *at) {
    if (numbers == Numbers::scales) {
        x = static_cast<float>((1 + 0.1 * std::clamp(x, -3.f, 3.f)) / code_of_one);
    }
    if (numbers == Numbers::codes) {
        *static_cast<int8_t *>(at) = static_cast<int8_t>(std::clamp(std::round(code_of_one * x), -127.0, 127.0));
    } else {
        heed_reference::store(at, 0, element_type(numbers), x);
    }
}

// Repeated with a prime period, so that no two tensors of a case, and no two copies, are alike.
void fill(char *data, int64_t elements, Numbers numbers) {
    constexpr int64_t period = 4000037;
    const int64_t element = heed_reference::element_bytes(element_type(numbers));
    std::mt19937 random(1234);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < std::min(period, elements); i++) {
        put(normal(random), numbers, data + i * element);
    }
    for (int64_t done = period; done < elements; done += period) {
        std::memcpy(data + done * element, data, static_cast<size_t>(std::min(period, elements - done) * element));
    }
}

}  // namespace

Numbers numbers_of(heed_dtype dtype) {
    return dtype == HEED_I8 ? Numbers::codes
                            : (dtype == HEED_F16 ? Numbers::f16 : (dtype == HEED_BF16 ? Numbers::bf16 : Numbers::f32));
}

int64_t cold_bytes() { return std::max<int64_t>(int64_t{1} << 30, 8 * cache_bytes(3)); }

Placement placement(const Case &c) {
    Placement p{};
    p.num_copies = c.kind == CaseKind::decode
                       ? static_cast<int64_t>(std::ceil(static_cast<double>(cold_bytes()) / kv_bytes(c)))
                       : 1;
    p.bias = p.q + aligned(q_layout(c).elements);
    p.k = c.kv_dtype == c.dtype ? p.bias + aligned(bias_elements(c)) : 0;  // else they have numbers of their own
    p.v = p.k + aligned(k_layout(c).elements);
    p.kv_step = p.v + aligned(v_layout(c).elements) - p.k;
    p.v_scale = p.k_scale + aligned(scale_elements(c));
    p.scale_step = 2 * aligned(scale_elements(c));
    return p;
}

void Demand::include(const Case &c) {
    const Placement p = placement(c);
    const auto need = [this](Numbers numbers, int64_t count) {
        int64_t &most = elements[static_cast<size_t>(numbers)];
        most = std::max(most, count);
    };
    need(numbers_of(c.dtype), p.bias + aligned(bias_elements(c)));
    need(numbers_of(c.kv_dtype), p.k + p.num_copies * p.kv_step);
    need(Numbers::scales, p.num_copies * p.scale_step);
    out_bytes = std::max(out_bytes, out_layout(c).elements * heed_reference::element_bytes(c.dtype));
}

void Arena::Unmap::operator()(void *memory) const { munmap(memory, bytes); }

Arena::Memory Arena::map(int64_t size, Pages pages) {
    const auto bytes = static_cast<size_t>(size);
    if (bytes == 0) {
        return Memory(nullptr, {0});
    }
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        throw std::runtime_error("no memory for " + std::to_string(bytes >> 20) + " MiB of tensors");
    }
    if (pages != Pages::standard) {
        madvise(memory, bytes, pages == Pages::huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    }
    return Memory(memory, {bytes});
}

Arena::Arena(const Demand &demand, Pages pages) : out_(map(demand.out_bytes, pages)) {
    for (size_t i = 0; i < num_numbers; i++) {
        const auto numbers = static_cast<Numbers>(i);
        inputs_[i] = map(demand.elements[i] * heed_reference::element_bytes(element_type(numbers)), pages);
        fill(static_cast<char *>(inputs_[i].get()), demand.elements[i], numbers);
    }
}

const void *Arena::input(Numbers numbers, int64_t offset) const {
    const char *begin = static_cast<const char *>(inputs_[static_cast<size_t>(numbers)].get());
    return begin + offset * heed_reference::element_bytes(element_type(numbers));
}

}  // namespace heed_bench
