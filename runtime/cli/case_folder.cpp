#include "case_folder.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "invalid_input.h"
#include "problem_json.h"

namespace heed_cli {
namespace {

constexpr const char *optional_names[] = {"mask",         "bias",          "kv_lens",    "q_offsets",
                                          "cu_seqlens_q", "cu_seqlens_kv", "page_table", "sink",
                                          "alibi_slopes", "k_scale",       "v_scale"};

// Extents and strides in the documented order: b, s, h, d.
struct Tensor {
    std::array<int64_t, 4> extent;
    heed_layout layout;
};

[[noreturn]] void refuse(const std::string &name, const std::string &what, const std::string &allowed) {
    throw InvalidInput(name + ".npy " + what + "; it must " + allowed);
}

void require_type(const std::string &name, const Array &array, std::initializer_list<ElementType> allowed) {
    std::string words;
    for (const ElementType type : allowed) {
        if (array.type == type) return;
        words += (words.empty() ? "" : " or ") + std::string(element_name(type));
    }
    refuse(name, std::string("holds ") + element_name(array.type), "hold " + words);
}

void require_elements(const std::string &name, const Array &array, heed_dtype dtype) {
    if (dtype == HEED_F32) require_type(name, array, {ElementType::f32});
    if (dtype == HEED_F16) require_type(name, array, {ElementType::f16, ElementType::u16});
    if (dtype == HEED_BF16) require_type(name, array, {ElementType::u16});
    if (dtype == HEED_I8) require_type(name, array, {ElementType::i8});
}

void require_shape(const std::string &name, const Array &array, const std::vector<int64_t> &shape) {
    if (array.shape != shape) refuse(name, "has shape " + shape_text(array.shape), "have shape " + shape_text(shape));
}

void require_extent(const std::string &name, char axis, int64_t extent, int64_t wanted, const std::string &source) {
    if (extent == wanted) return;
    refuse(name, "has extent " + std::to_string(extent) + " on axis " + axis,
           "have " + std::to_string(wanted) + ", as " + source);
}

std::string axes_of(const std::string &axes, bool varlen) {
    std::string used = axes;
    if (varlen) used.erase(used.find('b'), 1);
    return used;
}

// The stride of the axis outside one of `extent`. Empty arrays may have shapes whose strides no integer holds.
int64_t next_stride(const std::string &name, const Array &array, int64_t stride, int64_t extent) {
    int64_t next = 0;
    if (__builtin_mul_overflow(stride, std::max<int64_t>(extent, 1), &next)) {
        refuse(name, "has shape " + shape_text(array.shape), "have strides below 2^63");
    }
    return next;
}

// `axes` as axes_of gives them.
Tensor tensor_of(const std::string &name, const Array &array, const std::string &axes) {
    if (array.shape.size() != axes.size()) {
        refuse(name, "has shape " + shape_text(array.shape), "have " + std::to_string(axes.size()) + " axes, " + axes);
    }
    Tensor tensor{{1, 1, 1, 1}, {}};
    int64_t stride = 1;
    for (size_t i = axes.size(); i-- > 0;) {
        if (array.shape[i] > std::numeric_limits<int32_t>::max()) {
            refuse(name, "has shape " + shape_text(array.shape), "have extents of 0..2^31-1");
        }
        const size_t axis = std::strchr("bshd", axes[i]) - "bshd";
        tensor.extent[axis] = array.shape[i];
        tensor.layout.stride[axis] = stride;
        stride = next_stride(name, array, stride, array.shape[i]);
    }
    return tensor;
}

const Array &require(const Case &c, const std::string &name, const std::string &reason) {
    const auto found = c.arrays.find(name);
    if (found == c.arrays.end()) throw InvalidInput(name + ".npy is missing; " + reason);
    return found->second;
}

void refuse_unused(const Case &c, const std::string &name, bool used, const std::string &reason) {
    if (c.has(name) && !used) throw InvalidInput(name + ".npy is there; it is used only with " + reason);
}

// The longest segment of prefix sums, 0 where they are none; execute refuses those.
int32_t longest_segment(const Array &cu_seqlens) {
    int64_t longest = 0;
    for (int64_t i = 1; i < cu_seqlens.size(); i++) {
        longest = std::max<int64_t>(longest, int64_t{cu_seqlens.as<int32_t>()[i]} - cu_seqlens.as<int32_t>()[i - 1]);
    }
    return static_cast<int32_t>(std::min<int64_t>(longest, std::numeric_limits<int32_t>::max()));
}

void read_arrays(const std::filesystem::path &folder, Case &c) {
    for (const char *name : {"q", "k", "v"}) c.arrays[name] = read_npy(folder / (std::string(name) + ".npy"));
    for (const std::string name : optional_names) {
        const std::filesystem::path path = folder / (name + ".npy");
        std::error_code error;
        if (std::filesystem::symlink_status(path, error).type() != std::filesystem::file_type::not_found) {
            c.arrays[name] = read_npy(path);
        }
    }
    for (const std::string name : {"kv_lens", "q_offsets", "cu_seqlens_q", "cu_seqlens_kv", "page_table"}) {
        if (c.has(name)) c.arrays[name] = to_int32(c.arrays[name], name + ".npy");
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
    require_elements("q", q, p.dtype);
    const Tensor tensor = tensor_of("q", q, axes_of(c.layouts.q, varlen));
    const auto extent = [&](int axis) { return static_cast<int32_t>(tensor.extent[axis]); };
    p.q_layout = tensor.layout;
    p.num_heads = extent(2);
    p.head_dim = extent(3);
    if (varlen) {
        const Array &cu_seqlens = require(c, "cu_seqlens_q", "q_storage \"varlen\" needs it");
        if (cu_seqlens.shape.size() != 1 || cu_seqlens.size() < 1) {
            refuse("cu_seqlens_q", "has shape " + shape_text(cu_seqlens.shape), "have shape (batch + 1,)");
        }
        p.batch = static_cast<int32_t>(cu_seqlens.size() - 1);
        p.total_q = extent(1);
        if (p.max_q_len == 0) p.max_q_len = longest_segment(cu_seqlens);
        return;
    }
    if (p.max_q_len != 0 && p.max_q_len != extent(1)) {
        throw InvalidInput("problem.json: max_q_len is " + std::to_string(p.max_q_len) + "; it must be null or " +
                           std::to_string(extent(1)) + ", axis s of q.npy");
    }
    p.batch = extent(0);
    p.max_q_len = extent(1);
}

// k and v: num_kv_heads, head_dim_v, max_kv_len, total_kv, pages.
void read_key_dims(Case &c) {
    heed_problem &p = c.problem;
    const bool varlen = p.kv_storage == HEED_KV_VARLEN;
    require_elements("k", c.arrays.at("k"), p.kv_dtype);
    require_elements("v", c.arrays.at("v"), p.kv_dtype);
    const Tensor k = tensor_of("k", c.arrays.at("k"), axes_of(c.layouts.k, varlen));
    const Tensor v = tensor_of("v", c.arrays.at("v"), axes_of(c.layouts.v, varlen));
    require_extent("k", 'd', k.extent[3], p.head_dim, "q.npy");
    if (p.kv_storage == HEED_KV_CONTIGUOUS) {
        const char *source = p.q_storage == HEED_Q_VARLEN ? "cu_seqlens_q.npy" : "q.npy";
        require_extent("k", 'b', k.extent[0], p.batch, source);
    }
    for (int axis = 0; axis < 3; axis++) require_extent("v", "bsh"[axis], v.extent[axis], k.extent[axis], "k.npy");
    p.k_layout = k.layout;
    p.v_layout = v.layout;
    p.num_kv_heads = static_cast<int32_t>(k.extent[2]);
    p.head_dim_v = static_cast<int32_t>(v.extent[3]);
    if (varlen) {
        const Array &cu_seqlens = require(c, "cu_seqlens_kv", "kv_storage \"varlen\" needs it");
        require_shape("cu_seqlens_kv", cu_seqlens, {int64_t{p.batch} + 1});
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

void read_features(Case &c) {
    heed_problem &p = c.problem;
    const auto rows = [&](const std::string &name, ElementType type, int64_t extent) {
        if (!c.has(name)) return false;
        require_type(name, c.arrays.at(name), {type});
        require_shape(name, c.arrays.at(name), {extent});
        return true;
    };
    p.has_kv_lens = rows("kv_lens", ElementType::i32, p.batch);
    p.has_sink = rows("sink", ElementType::f32, p.num_heads);
    p.has_alibi = rows("alibi_slopes", ElementType::f32, p.num_heads);
    if (p.position == HEED_EXPLICIT) {
        require(c, "q_offsets", "position \"explicit\" needs it");
        rows("q_offsets", ElementType::i32, p.batch);
    }
    if (p.kv_dtype == HEED_I8) {
        for (const std::string name : {"k", "v"}) {
            const std::string &axes = name == "k" ? c.layouts.k : c.layouts.v;
            std::vector<int64_t> shape = c.arrays.at(name).shape;
            shape.erase(shape.begin() + static_cast<int64_t>(axes_of(axes, shape.size() == 3).find('d')));
            const Array &scale = require(c, name + "_scale", "kv_dtype \"i8\" needs it");
            require_type(name + "_scale", scale, {ElementType::f32});
            require_shape(name + "_scale", scale, shape);
        }
    }
    if (c.has("mask")) {
        p.has_mask = true;
        require_type("mask", c.arrays.at("mask"), {ElementType::boolean, ElementType::u8});
        read_score_tensor(c, "mask", p.mask_shape, p.mask_layout);
    }
    if (c.has("bias")) {
        p.has_bias = true;
        p.bias_dtype = c.arrays.at("bias").type == ElementType::f32 ? HEED_F32 : p.dtype;
        require_elements("bias", c.arrays.at("bias"), p.bias_dtype);
        read_score_tensor(c, "bias", p.bias_shape, p.bias_layout);
    }
}

std::vector<int64_t> out_shape(const Case &c) {
    const heed_problem &p = c.problem;
    const bool varlen = p.q_storage == HEED_Q_VARLEN;
    std::vector<int64_t> shape;
    for (const char axis : axes_of(c.layouts.out, varlen)) {
        const int64_t tokens = varlen ? p.total_q : p.max_q_len;
        shape.push_back(axis == 'b' ? p.batch : axis == 's' ? tokens : axis == 'h' ? p.num_heads : p.head_dim_v);
    }
    return shape;
}

heed_tensor view_of(const Array &array, heed_dtype dtype) {
    return {const_cast<unsigned char *>(array.data.data()), array.size(), dtype};
}

}  // namespace

Case read_case(const std::filesystem::path &folder) {
    Case c = read_problem_json(folder / "problem.json");
    read_arrays(folder, c);
    complete_case(c);
    return c;
}

void complete_case(Case &c) {
    read_query_dims(c);
    read_key_dims(c);
    read_features(c);
    heed_problem &p = c.problem;
    p.want_lse = true;
    const bool varlen = p.q_storage == HEED_Q_VARLEN;
    p.out_layout = tensor_of("out", Array{ElementType::f32, out_shape(c), {}}, axes_of(c.layouts.out, varlen)).layout;
}

void write_case(const std::filesystem::path &folder, const Case &c) {
    write_problem_json(folder / "problem.json", c);
    for (const auto &[name, array] : c.arrays) write_npy(folder / (name + ".npy"), array);
}

Array make_out(const Case &c) {
    const ElementType q_type = c.arrays.at("q").type;
    Array out = make_array(q_type, out_shape(c));
    if (q_type == ElementType::f32) {
        std::fill_n(out.as<float>(), out.size(), std::numeric_limits<float>::quiet_NaN());
    } else {
        std::fill_n(out.as<uint16_t>(), out.size(), uint16_t{0x7fff});  // a NaN in f16 and in bf16
    }
    return out;
}

Array make_lse(const Case &c) {
    const heed_problem &p = c.problem;
    std::vector<int64_t> shape = {p.batch, p.num_heads, p.max_q_len};
    if (p.q_storage == HEED_Q_VARLEN) shape = {p.num_heads, p.total_q};
    Array lse = make_array(ElementType::f32, shape);
    std::fill_n(lse.as<float>(), lse.size(), std::numeric_limits<float>::quiet_NaN());
    return lse;
}

heed_args make_args(const Case &c, Array &out, Array &lse) {
    const heed_problem &p = c.problem;
    const auto view = [&](const char *name, heed_dtype dtype) {
        return c.has(name) ? view_of(c.arrays.at(name), dtype) : heed_tensor{nullptr, 0, dtype};
    };
    const auto int32s = [&](const char *name) { return c.has(name) ? c.arrays.at(name).as<int32_t>() : nullptr; };
    const auto floats = [&](const char *name) { return c.has(name) ? c.arrays.at(name).as<float>() : nullptr; };
    heed_args args;
    heed_args_init(&args);
    args.q = view("q", p.dtype);
    args.k = view("k", p.kv_dtype);
    args.v = view("v", p.kv_dtype);
    args.mask = view("mask", HEED_U8);
    args.bias = view("bias", p.bias_dtype);
    args.k_scale = view("k_scale", HEED_F32);
    args.v_scale = view("v_scale", HEED_F32);
    args.out = view_of(out, p.dtype);
    args.lse = view_of(lse, HEED_F32);
    args.cu_seqlens_q = int32s("cu_seqlens_q");
    args.cu_seqlens_kv = int32s("cu_seqlens_kv");
    args.kv_lens = int32s("kv_lens");
    args.q_offsets = int32s("q_offsets");
    args.page_table = int32s("page_table");
    args.sink = floats("sink");
    args.alibi_slopes = floats("alibi_slopes");
    args.dropout_seed = c.dropout_seed;
    args.dropout_offset = c.dropout_offset;
    return args;
}

}  // namespace heed_cli
