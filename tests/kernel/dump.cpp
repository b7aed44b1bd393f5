#include "dump.h"

#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "case_folder.h"

namespace heed_test {
namespace {

using heed_cli::ElementType;
using Extent = std::vector<int64_t>;

heed_cli::Array array_of(ElementType type, const Extent &shape, const void *data) {
    heed_cli::Array array = heed_cli::make_array(type, shape);
    if (!array.data.empty()) std::memcpy(array.data.data(), data, array.data.size());
    return array;
}

heed_cli::Array array_of(const heed_tensor &tensor, const Extent &shape) {
    switch (tensor.dtype) {
    case HEED_F16:
        return array_of(ElementType::f16, shape, tensor.data);
    case HEED_BF16:
        return array_of(ElementType::u16, shape, tensor.data);
    case HEED_I8:
        return array_of(ElementType::i8, shape, tensor.data);
    case HEED_U8:
        return array_of(ElementType::u8, shape, tensor.data);
    default:
        return array_of(ElementType::f32, shape, tensor.data);
    }
}

}  // namespace

void dump_case(const std::string &folder, const Attention &a, const CallOptions &options) {
    CallOptions packed = options;
    packed.with_layout(Layout::bshd);
    packed.with_storage(a.q_lens.empty() ? HEED_Q_DENSE : HEED_Q_VARLEN, HEED_KV_CONTIGUOUS);
    packed.fused_qkv = packed.garbage_strides = false;
    packed.offset = 0;
    Call call(a, packed);
    if (call.prepare() != HEED_OK) throw std::runtime_error(heed_last_error());
    heed_cli::Case c = {};
    c.problem = call.problem;
    c.dropout_seed = a.dropout_seed;
    c.dropout_offset = a.dropout_offset;
    const heed_problem &p = call.problem;
    const heed_args &args = call.args;
    const Extent q = {p.batch, p.max_q_len, p.num_heads, p.head_dim}, packed_q = {p.total_q, p.num_heads, p.head_dim};
    c.arrays["q"] = array_of(args.q, p.q_storage == HEED_Q_VARLEN ? packed_q : q);
    c.arrays["k"] = array_of(args.k, {p.batch, p.max_kv_len, p.num_kv_heads, p.head_dim});
    c.arrays["v"] = array_of(args.v, {p.batch, p.max_kv_len, p.num_kv_heads, p.head_dim_v});
    const auto add = [&c](const char *name, ElementType type, const Extent &shape, const void *data) {
        if (data != nullptr) c.arrays[name] = array_of(type, shape, data);
    };
    add("k_scale", ElementType::f32, {p.batch, p.max_kv_len, p.num_kv_heads}, args.k_scale.data);
    add("v_scale", ElementType::f32, {p.batch, p.max_kv_len, p.num_kv_heads}, args.v_scale.data);
    const auto shape = [](const std::array<int32_t, 4> &s) { return Extent(s.begin(), s.end()); };
    if (a.mask.used) c.arrays["mask"] = array_of(args.mask, shape(a.mask.shape));
    if (a.bias.used) c.arrays["bias"] = array_of(args.bias, shape(a.bias.shape));
    add("kv_lens", ElementType::i32, {p.batch}, args.kv_lens);
    add("q_offsets", ElementType::i32, {p.batch}, args.q_offsets);
    add("cu_seqlens_q", ElementType::i32, {p.batch + 1}, args.cu_seqlens_q);
    add("sink", ElementType::f32, {p.num_heads}, args.sink);
    add("alibi_slopes", ElementType::f32, {p.num_heads}, args.alibi_slopes);
    std::filesystem::create_directories(folder);
    heed_cli::write_case(folder, c);
}

}  // namespace heed_test
