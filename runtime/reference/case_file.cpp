#include "runtime/reference/case_file.h"

#include <algorithm>
#include <limits>

#include "heed/fields.h"
#include "runtime/reference/case_arrays.h"
#include "runtime/reference/case_call.h"
#include "runtime/reference/invalid_input.h"
#include "runtime/reference/problem_json.h"

namespace heed_reference {
namespace {

constexpr const char *problem_key = "heed_problem";
#define HEED_NAME(name, ...) #name,
constexpr const char *names[] = {
    "q", "k", "v", "mask", "bias", "k_scale", "v_scale", HEED_METADATA_ARRAYS(HEED_NAME) HEED_HEAD_ARRAYS(HEED_NAME)};
#undef HEED_NAME

const Array &require(const Case &c, const std::string &name, const std::string &reason) {
    const auto found = c.arrays.find(name);
    if (found == c.arrays.end()) throw InvalidInput(name + " is missing; " + reason);
    return found->second;
}

void refuse_unused(const Case &c, const std::string &name, bool used, const std::string &reason) {
    if (c.has(name) && !used) throw InvalidInput(name + " is there; it is used only with " + reason);
}

int32_t longest_segment(const Array &cu_seqlens) {
    int32_t longest = 0;
    for (int64_t i = 1; i < cu_seqlens.size(); i++) {
        longest = std::max(longest, cu_seqlens.as<int32_t>()[i] - cu_seqlens.as<int32_t>()[i - 1]);
    }
    return longest;
}

// All that the problem needs, nothing that it has no use for; integers become int32.
void check_arrays(Case &c) {
    for (const auto &[name, array] : c.arrays) {
        if (std::find(std::begin(names), std::end(names), name) != std::end(names)) continue;
        std::string allowed;
        for (const std::string known : names) allowed += (allowed.empty() ? "" : ", ") + known;
        throw InvalidInput("unknown array \"" + name + "\"; arrays are " + allowed);
    }
    for (const char *name : {"q", "k", "v"}) require(c, name, "every case needs it");
    for (const std::string name : {"kv_lens", "q_offsets", "cu_seqlens_q", "cu_seqlens_kv", "page_table"}) {
        if (c.has(name)) c.arrays[name] = to_int32(c.arrays[name], name);
    }
    const heed_problem &p = c.problem;
    refuse_unused(c, "q_offsets", p.position == HEED_EXPLICIT, "position \"explicit\"");
    refuse_unused(c, "cu_seqlens_q", p.q_storage == HEED_Q_VARLEN, "q_storage \"varlen\"");
    refuse_unused(c, "cu_seqlens_kv", p.kv_storage == HEED_KV_VARLEN, "kv_storage \"varlen\"");
    refuse_unused(c, "kv_lens", p.kv_storage != HEED_KV_VARLEN, "kv_storage \"contiguous\" or \"paged\"");
    refuse_unused(c, "page_table", p.kv_storage == HEED_KV_PAGED, "kv_storage \"paged\"");
    refuse_unused(c, "k_scale", p.kv_dtype == HEED_I8, "kv_dtype \"i8\"");
    refuse_unused(c, "v_scale", p.kv_dtype == HEED_I8, "kv_dtype \"i8\"");
}

// q: batch, num_heads, head_dim, max_q_len, total_q.
void read_query_dims(Case &c) {
    heed_problem &p = c.problem;
    const bool varlen = p.q_storage == HEED_Q_VARLEN;
    const Array &q = c.arrays.at("q");
    require_type("q", q, {element_type(p.dtype)});
    const Tensor tensor = tensor_of("q", q, axes_without(c.layouts.q, varlen ? "b" : ""));
    const auto extent = [&](int axis) { return static_cast<int32_t>(tensor.extent[axis]); };
    p.q_layout = tensor.layout;
    p.num_heads = extent(2);
    p.head_dim = extent(3);
    if (varlen) {
        const Array &cu_seqlens = require(c, "cu_seqlens_q", "q_storage \"varlen\" needs it");
        if (cu_seqlens.shape.size() != 1 || cu_seqlens.size() < 1) {
            refuse("cu_seqlens_q", "has shape " + shape_text(cu_seqlens.shape), "have shape (batch + 1,)");
        }
        require_prefix_sums("cu_seqlens_q", cu_seqlens, tensor.extent[1], "q");
        p.batch = static_cast<int32_t>(cu_seqlens.size() - 1);
        p.total_q = extent(1);
        if (p.max_q_len == 0) p.max_q_len = longest_segment(cu_seqlens);
        return;
    }
    if (p.max_q_len != 0 && p.max_q_len != extent(1)) {
        throw InvalidInput("problem: max_q_len is " + std::to_string(p.max_q_len) + "; it must be null or " +
                           std::to_string(extent(1)) + ", axis s of q");
    }
    p.batch = extent(0);
    p.max_q_len = extent(1);
}

// k and v: num_kv_heads, head_dim_v, max_kv_len, total_kv, pages.
void read_key_dims(Case &c) {
    heed_problem &p = c.problem;
    const bool varlen = p.kv_storage == HEED_KV_VARLEN;
    require_type("k", c.arrays.at("k"), {element_type(p.kv_dtype)});
    require_type("v", c.arrays.at("v"), {element_type(p.kv_dtype)});
    const Tensor k = tensor_of("k", c.arrays.at("k"), axes_without(c.layouts.k, varlen ? "b" : ""));
    const Tensor v = tensor_of("v", c.arrays.at("v"), axes_without(c.layouts.v, varlen ? "b" : ""));
    require_extent("k", 'd', k.extent[3], p.head_dim, "q");
    if (p.kv_storage == HEED_KV_CONTIGUOUS) {
        const char *source = p.q_storage == HEED_Q_VARLEN ? "cu_seqlens_q" : "q";
        require_extent("k", 'b', k.extent[0], p.batch, source);
    }
    for (int axis = 0; axis < 3; axis++) require_extent("v", "bsh"[axis], v.extent[axis], k.extent[axis], "k");
    p.k_layout = k.layout;
    p.v_layout = v.layout;
    p.num_kv_heads = static_cast<int32_t>(k.extent[2]);
    p.head_dim_v = static_cast<int32_t>(v.extent[3]);
    if (varlen) {
        const Array &cu_seqlens = require(c, "cu_seqlens_kv", "kv_storage \"varlen\" needs it");
        require_shape("cu_seqlens_kv", cu_seqlens, {int64_t{p.batch} + 1});
        require_prefix_sums("cu_seqlens_kv", cu_seqlens, k.extent[1], "k");
        p.total_kv = static_cast<int32_t>(k.extent[1]);
        p.max_kv_len = longest_segment(cu_seqlens);
    } else if (p.kv_storage == HEED_KV_PAGED) {
        const Array &table = require(c, "page_table", "kv_storage \"paged\" needs it");
        require(c, "kv_lens", "kv_storage \"paged\" needs it");
        if (table.shape.size() != 2 || table.shape[0] != p.batch ||
            table.shape[1] > std::numeric_limits<int32_t>::max() / std::max<int64_t>(k.extent[1], 1)) {
            refuse("page_table", "has shape " + shape_text(table.shape),
                   "have shape (" + std::to_string(p.batch) + ", max_pages_per_seq) for at most 2^31-1 keys");
        }
        p.num_pages = static_cast<int32_t>(k.extent[0]);
        p.page_size = static_cast<int32_t>(k.extent[1]);
        p.max_pages_per_seq = static_cast<int32_t>(table.shape[1]);
        p.max_kv_len = p.max_pages_per_seq * p.page_size;
    } else {
        p.max_kv_len = static_cast<int32_t>(k.extent[1]);
    }
}

// Shape and layout of mask or bias.
void read_score_tensor(const Case &c, const std::string &name, int32_t (&shape)[4], heed_layout &layout) {
    const Array &array = c.arrays.at(name);
    const heed_problem &p = c.problem;
    const std::vector<int64_t> full = {p.batch, p.num_heads, p.max_q_len, p.max_kv_len};
    bool fits = array.shape.size() == 4;
    for (size_t i = 0; fits && i < 4; i++) fits = array.shape[i] == full[i] || array.shape[i] == 1;
    if (!fits) {
        refuse(name, "has shape " + shape_text(array.shape),
               "have shape " + shape_text(full) + " (batch, num_heads, q_len, kv_len), or 1 in place of any of these");
    }
    int64_t stride = 1;
    for (size_t i = 4; i-- > 0;) {
        shape[i] = static_cast<int32_t>(array.shape[i]);
        layout.stride[i] = array.shape[i] == 1 && i != 3 ? 0 : stride;
        stride = next_stride(name, array, stride, array.shape[i]);
    }
}

// The scales of the codes in the array `codes`: its axes but d, in its order. The API wants [b, s, h], packed.
Array read_scale(const Case &c, const std::string &name, const std::string &codes, const std::string &layout) {
    const Array &scale = require(c, name, "kv_dtype \"i8\" needs it");
    const bool varlen = c.problem.kv_storage == HEED_KV_VARLEN;
    const std::string axes = axes_without(layout, varlen ? "b" : "");
    std::vector<int64_t> shape = c.arrays.at(codes).shape;
    shape.erase(shape.begin() + static_cast<int64_t>(axes.find('d')));
    require_type(name, scale, {ElementType::f32});
    require_shape(name, scale, shape);
    const Tensor from = tensor_of(name, scale, axes_without(axes, "d"));
    const int64_t *stride = from.layout.stride;
    Array packed = make_array(ElementType::f32, {from.extent[0], from.extent[1], from.extent[2]});
    float *to = packed.as<float>();
    for (int64_t b = 0; b < from.extent[0] && packed.size() != 0; b++) {
        for (int64_t s = 0; s < from.extent[1]; s++) {
            for (int64_t h = 0; h < from.extent[2]; h++) {
                *to++ = scale.as<float>()[b * stride[0] + s * stride[1] + h * stride[2]];
            }
        }
    }
    return packed;
}

void read_features(Case &c) {
    heed_problem &p = c.problem;
    const auto rows = [&](const std::string &name, ElementType type, int64_t extent) {
        if (!c.has(name)) return false;
        require_type(name, c.arrays.at(name), {type});
        require_shape(name, c.arrays.at(name), {extent});
        return true;
    };
    p.has_kv_lens = rows("kv_lens", ElementType::i32, p.batch);
#define HEED_READ(name, used, ...) p.used = rows(#name, ElementType::f32, p.num_heads);
    HEED_HEAD_ARRAYS(HEED_READ)
#undef HEED_READ
    if (p.position == HEED_EXPLICIT) {
        require(c, "q_offsets", "position \"explicit\" needs it");
        rows("q_offsets", ElementType::i32, p.batch);
    }
    if (p.kv_dtype == HEED_I8) {
        c.k_scale = read_scale(c, "k_scale", "k", c.layouts.k);
        c.v_scale = read_scale(c, "v_scale", "v", c.layouts.v);
    }
    if (c.has("mask")) {
        p.has_mask = true;
        require_type("mask", c.arrays.at("mask"), {ElementType::boolean, ElementType::u8});
        read_score_tensor(c, "mask", p.mask_shape, p.mask_layout);
    }
    if (c.has("bias")) {
        p.has_bias = true;
        std::vector<ElementType> allowed = {ElementType::f32};
        if (p.dtype != HEED_F32) allowed.push_back(element_type(p.dtype));
        require_type("bias", c.arrays.at("bias"), allowed);
        p.bias_dtype = c.arrays.at("bias").type == ElementType::f32 ? HEED_F32 : p.dtype;
        read_score_tensor(c, "bias", p.bias_shape, p.bias_layout);
    }
}

}  // namespace

Case read_case(const std::filesystem::path &path) {
    const std::string name = path.string();
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
        throw InvalidInput(name +
                           " is a folder; a case is one safetensors file, and an old case folder becomes one by: " +
                           "python -m heed.convert_case " + name + " FILE");
    }
    TensorFile file = read_tensors(path);
    const auto problem = file.metadata.find(problem_key);
    if (problem == file.metadata.end()) {
        throw InvalidInput(name + " is no case: its __metadata__ has no \"" + problem_key +
                           "\"; it must hold the problem as JSON, {} for the defaults");
    }
    Case c = read_problem_json(problem->second);
    c.arrays = std::move(file.arrays);
    complete_case(c);
    return c;
}

void complete_case(Case &c) {
    check_arrays(c);
    read_query_dims(c);
    read_key_dims(c);
    read_features(c);
    heed_problem &p = c.problem;
    p.want_lse = true;
    const bool varlen = p.q_storage == HEED_Q_VARLEN;
    p.out_layout =
        tensor_of("out", Array{ElementType::f32, out_shape(c), {}}, axes_without(c.layouts.out, varlen ? "b" : ""))
            .layout;
}

void write_case(const std::filesystem::path &path, const Case &c) {
    write_tensors(path, {{{problem_key, write_problem_json(c)}}, c.arrays});
}

}  // namespace heed_reference
