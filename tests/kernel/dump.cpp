#include "dump.h"

#include <cstring>
#include <filesystem>

#include "case_folder.h"

namespace heed_test {
namespace {

template <class T>
heed_cli::Array array_of(heed_cli::ElementType type, const std::vector<int64_t> &shape, const std::vector<T> &values) {
    heed_cli::Array array = heed_cli::make_array(type, shape);
    if (!values.empty()) std::memcpy(array.data.data(), values.data(), array.data.size());
    return array;
}

}  // namespace

void dump_case(const std::string &folder, const Attention &a, const CallOptions &options) {
    using heed_cli::ElementType;
    CallOptions packed;
    packed.num_splits = options.num_splits;
    packed.batch_invariant = options.batch_invariant;
    packed.with_layout(Layout::bshd);
    heed_cli::Case c = {};
    c.problem = make_problem(a, packed);
    const int64_t b = a.batch, heads = a.num_heads, kv_heads = a.num_kv_heads;
    c.arrays["q"] = array_of(ElementType::f32, {b, a.q_len, heads, a.head_dim}, a.q);
    c.arrays["k"] = array_of(ElementType::f32, {b, a.kv_len, kv_heads, a.head_dim}, a.k);
    c.arrays["v"] = array_of(ElementType::f32, {b, a.kv_len, kv_heads, a.head_dim_v}, a.v);
    const auto shape = [](const std::array<int32_t, 4> &s) { return std::vector<int64_t>(s.begin(), s.end()); };
    if (a.mask.used) c.arrays["mask"] = array_of(ElementType::u8, shape(a.mask.shape), a.mask.data);
    if (a.bias.used) c.arrays["bias"] = array_of(ElementType::f32, shape(a.bias.shape), a.bias.data);
    if (!a.kv_lens.empty()) c.arrays["kv_lens"] = array_of(ElementType::i32, {b}, a.kv_lens);
    if (!a.q_offsets.empty()) c.arrays["q_offsets"] = array_of(ElementType::i32, {b}, a.q_offsets);
    std::filesystem::create_directories(folder);
    heed_cli::write_case(folder, c);
}

}  // namespace heed_test
