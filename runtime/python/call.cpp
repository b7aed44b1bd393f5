#include "call.h"

#include <algorithm>
#include <cstddef>

#include <nanobind/stl/string.h>

#include "errors.h"
#include "fields.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

constexpr size_t in_problem(size_t offset) { return offsetof(AttentionCall::Settings, problem) + offset; }
constexpr size_t in_args(size_t offset) { return offsetof(AttentionCall::Settings, args) + offset; }

constexpr Field setting_fields[] = {
    {"position", Kind::position, in_problem(offsetof(heed_problem, position))},
    {"causal", Kind::boolean, in_problem(offsetof(heed_problem, causal))},
    {"window_left", Kind::int32, in_problem(offsetof(heed_problem, window_left))},
    {"window_right", Kind::int32, in_problem(offsetof(heed_problem, window_right))},
    {"scale", Kind::real, in_problem(offsetof(heed_problem, scale))},
    {"softcap", Kind::real, in_problem(offsetof(heed_problem, softcap))},
    {"mask_true_hides", Kind::boolean, in_problem(offsetof(heed_problem, mask_true_hides))},
    {"alibi_symmetric", Kind::boolean, in_problem(offsetof(heed_problem, alibi_symmetric))},
    {"batch_invariant", Kind::boolean, in_problem(offsetof(heed_problem, batch_invariant))},
    {"dropout_p", Kind::real, in_problem(offsetof(heed_problem, dropout_p))},
    {"num_splits", Kind::int32, in_problem(offsetof(heed_problem, num_splits))},
    {"max_threads", Kind::int32, in_problem(offsetof(heed_problem, max_threads))},
    {"cuda_capability", Kind::int32, in_problem(offsetof(heed_problem, cuda_capability))},
    {"max_q_len", Kind::int32, in_problem(offsetof(heed_problem, max_q_len))},
    {"max_kv_len", Kind::int32, in_problem(offsetof(heed_problem, max_kv_len))},
    {"dropout_seed", Kind::uint64, in_args(offsetof(heed_args, dropout_seed))},
    {"dropout_offset", Kind::uint64, in_args(offsetof(heed_args, dropout_offset))},
};

struct Metadata {
    const char *name, *axes;
    int32_t rank;
    const int32_t *heed_args::*pointer;
};

constexpr Metadata metadata[] = {
    {"cu_seqlens_q", "[batch + 1]", 1, &heed_args::cu_seqlens_q},
    {"cu_seqlens_kv", "[batch + 1]", 1, &heed_args::cu_seqlens_kv},
    {"kv_lens", "[batch]", 1, &heed_args::kv_lens},
    {"q_offsets", "[batch]", 1, &heed_args::q_offsets},
    {"page_table", "[batch, max_pages_per_seq]", 2, &heed_args::page_table},
};

bool is_metadata(const Array &array) {
    return std::any_of(std::begin(metadata), std::end(metadata),
                       [&](const Metadata &one) { return array.name == one.name; });
}

bool is_written(const std::string &name) {
    return name == "out" || name == "lse" || name == "workspace" || name == "device_status";
}

std::vector<int64_t> shape_with_last(const Array &array, int64_t last) {
    std::vector<int64_t> shape(array.shape, array.shape + array.rank);
    shape.back() = last;
    return shape;
}

int32_t extent(const Array &array, int32_t axis) { return static_cast<int32_t>(array.shape[axis]); }

}  // namespace

AttentionCall::AttentionCall(const nb::dict &arrays, const nb::dict &fields) : fields_(fields) {
    for (const auto [key, value] : arrays) {
        const auto name = nb::cast<std::string>(key);
        arrays_.push_back(import_array(name, value, is_written(name) ? Access::write : Access::read));
    }
    set_fields(fields, setting_fields, &settings_);
    const Array &q = need("q");
    for (const Array &array : arrays_) {
        if (!is_metadata(array)) array.check_device(q);
    }
    if (q.device == HEED_CPU && find("workspace") != nullptr) {
        refuse("workspace is given for arrays on the CPU; it must be None");
    }
    set_metadata();
    set_queries();
    set_positions();
    set_keys();
    set_scores();
    set_results();
}

const Array *AttentionCall::find(const char *name) const {
    const auto found =
        std::find_if(arrays_.begin(), arrays_.end(), [&](const Array &array) { return array.name == name; });
    return found == arrays_.end() ? nullptr : &*found;
}

const Array &AttentionCall::need(const char *name) const {
    const Array *array = find(name);
    if (array == nullptr) refuse("%s is missing", name);
    return *array;
}

// All on the host, or all on the device of q.
void AttentionCall::set_metadata() {
    const Array *first = nullptr;
    for (const Metadata &one : metadata) {
        const Array *array = find(one.name);
        if (array == nullptr) continue;
        array->check_rank(one.rank, one.axes);
        array->check_dtype(HEED_I32);
        array->check_packed();
        if (first == nullptr) first = array;
        array->check_device(*first);
        settings_.args.*one.pointer = static_cast<const int32_t *>(array->tensor.data);
    }
    const Array *status = find("device_status");
    if (first == nullptr || first->device == HEED_CPU) {
        if (status != nullptr) refuse("device_status is given without metadata on the device; it must be None");
        return;
    }
    first->check_device(need("q"));
    settings_.problem.metadata_on_device = true;
    if (status != nullptr) {
        status->check_shape({1}, "[1]");
        status->check_dtype(HEED_I32);
        settings_.args.device_status = static_cast<int32_t *>(status->tensor.data);
    }
}

// Of the sequences, where the field does not say.
int32_t AttentionCall::longest(const char *field, const Array &cu_seqlens) const {
    if (fields_.contains(field)) return nb::cast<int32_t>(fields_[field]);
    if (cu_seqlens.device == HEED_CUDA) {
        refuse("%s is missing; it must be given, since %s is on the device", field, cu_seqlens.name.c_str());
    }
    const auto *sums = static_cast<const int32_t *>(cu_seqlens.tensor.data);
    int64_t tokens = 0;
    for (int64_t i = 1; i < cu_seqlens.shape[0]; i++) tokens = std::max(tokens, int64_t{sums[i]} - sums[i - 1]);
    return static_cast<int32_t>(std::min<int64_t>(tokens, INT32_MAX));
}

void AttentionCall::set_queries() {
    heed_problem &p = settings_.problem;
    const Array &q = need("q");
    if (const Array *cu_seqlens = find("cu_seqlens_q")) {
        q.check_rank(3, "[total_q, num_heads, head_dim]");
        if (cu_seqlens->shape[0] == 0) refuse("cu_seqlens_q is empty; it must have batch + 1 elements");
        p.q_storage = HEED_Q_VARLEN;
        p.batch = extent(*cu_seqlens, 0) - 1;
        p.total_q = extent(q, 0);
        p.max_q_len = longest("max_q_len", *cu_seqlens);
    } else {
        q.check_rank(4, "[batch, q_len, num_heads, head_dim]");
        if (fields_.contains("max_q_len")) refuse("max_q_len is given without cu_seqlens_q, where q's shape tells it");
        p.batch = extent(q, 0);
        p.max_q_len = extent(q, 1);
    }
    if (q.tensor.dtype != HEED_F32 && q.tensor.dtype != HEED_F16 && q.tensor.dtype != HEED_BF16) {
        refuse("q has elements of %s; they must be float32, float16 or bfloat16", dtype_name(q.tensor.dtype));
    }
    p.device = q.device;
    p.dtype = q.tensor.dtype;
    p.num_heads = extent(q, q.rank - 2);
    p.head_dim = extent(q, q.rank - 1);
    p.q_layout = layout_of(q);
    settings_.args.q = q.tensor;
}

void AttentionCall::set_positions() {
    heed_problem &p = settings_.problem;
    const Array *q_offsets = find("q_offsets");
    if (q_offsets == nullptr) {
        if (p.position == HEED_EXPLICIT) refuse("q_offsets is missing; it must be given with position 'explicit'");
        return;
    }
    q_offsets->check_shape({p.batch}, "[batch]");
    if (fields_.contains("position") && p.position != HEED_EXPLICIT) {
        refuse("position is %s beside q_offsets; it must be 'explicit'",
               nb::cast<std::string>(nb::repr(fields_["position"])).c_str());
    }
    p.position = HEED_EXPLICIT;
}

void AttentionCall::set_packed_keys(const Array &k, const Array &cu_seqlens) {
    heed_problem &p = settings_.problem;
    k.check_rank(3, "[total_kv, num_kv_heads, head_dim]");
    cu_seqlens.check_shape({int64_t{p.batch} + 1}, "[batch + 1]");
    p.kv_storage = HEED_KV_VARLEN;
    p.total_kv = extent(k, 0);
    p.max_kv_len = longest("max_kv_len", cu_seqlens);
}

void AttentionCall::set_paged_keys(const Array &k, const Array &page_table) {
    heed_problem &p = settings_.problem;
    k.check_rank(4, "[num_pages, page_size, num_kv_heads, head_dim]");
    page_table.check_shape({p.batch, page_table.shape[1]}, "[batch, max_pages_per_seq]");
    p.kv_storage = HEED_KV_PAGED;
    p.num_pages = extent(k, 0);
    p.page_size = extent(k, 1);
    p.max_pages_per_seq = extent(page_table, 1);
    const int64_t slots = int64_t{p.page_size} * p.max_pages_per_seq;
    if (!fields_.contains("max_kv_len")) p.max_kv_len = static_cast<int32_t>(std::min<int64_t>(slots, INT32_MAX));
}

void AttentionCall::set_contiguous_keys(const Array &k) {
    heed_problem &p = settings_.problem;
    k.check_rank(4, "[batch, kv_len, num_kv_heads, head_dim]");
    k.check_shape({p.batch, k.shape[1], k.shape[2], p.head_dim}, "[batch, kv_len, num_kv_heads, head_dim]");
    if (fields_.contains("max_kv_len")) refuse("max_kv_len is given with contiguous keys, where k's shape tells it");
    p.max_kv_len = extent(k, 1);
}

void AttentionCall::set_keys() {
    heed_problem &p = settings_.problem;
    const Array &k = need("k"), &v = need("v");
    const Array *cu_seqlens = find("cu_seqlens_kv"), *page_table = find("page_table"), *kv_lens = find("kv_lens");
    if (cu_seqlens != nullptr && page_table != nullptr) {
        refuse("cu_seqlens_kv and page_table are both given; keys are either packed or in pages");
    }
    if (cu_seqlens != nullptr) {
        set_packed_keys(k, *cu_seqlens);
    } else if (page_table != nullptr) {
        set_paged_keys(k, *page_table);
    } else {
        set_contiguous_keys(k);
    }
    k.check_shape(shape_with_last(k, p.head_dim), "one of q's head_dim");
    v.check_rank(k.rank, "as k");
    v.check_shape(shape_with_last(k, v.shape[v.rank - 1]), "k's but for the last axis");
    if (k.tensor.dtype != p.dtype && k.tensor.dtype != HEED_I8) {
        refuse("k has elements of %s; they must be %s, as q's, or int8", dtype_name(k.tensor.dtype),
               dtype_name(p.dtype));
    }
    v.check_dtype(k.tensor.dtype);
    p.kv_dtype = k.tensor.dtype;
    p.num_kv_heads = extent(k, k.rank - 2);
    p.head_dim_v = extent(v, v.rank - 1);
    p.k_layout = layout_of(k);
    p.v_layout = layout_of(v);
    settings_.args.k = k.tensor;
    settings_.args.v = v.tensor;
    set_scale("k_scale", &settings_.args.k_scale);
    set_scale("v_scale", &settings_.args.v_scale);
    p.has_kv_lens = kv_lens != nullptr;
    if (!p.has_kv_lens && page_table != nullptr) refuse("kv_lens is missing; it must be given with page_table");
    if (p.has_kv_lens) kv_lens->check_shape({p.batch}, "[batch]");
}

void AttentionCall::set_scale(const char *name, heed_tensor *target) const {
    const Array *scale = find(name);
    if ((scale != nullptr) != (settings_.problem.kv_dtype == HEED_I8)) {
        refuse("%s is %s; it must be there for int8 keys and values, and for no others", name,
               scale != nullptr ? "given" : "missing");
    }
    if (scale == nullptr) return;
    std::vector<int64_t> shape = shape_with_last(need("k"), 0);
    shape.pop_back();
    scale->check_shape(shape, "k's without the last axis");
    scale->check_dtype(HEED_F32);
    scale->check_packed();
    *target = scale->tensor;
}

// A mask or bias, of any number of axes that broadcasts to [batch, num_heads, q_len, kv_len].
bool AttentionCall::set_score_input(const char *name, int32_t shape[4], heed_layout *layout,
                                    heed_tensor *target) const {
    const Array *array = find(name);
    if (array == nullptr) return false;
    const heed_problem &p = settings_.problem;
    const int64_t full[max_rank] = {p.batch, p.num_heads, p.max_q_len, p.max_kv_len};
    const int32_t first = max_rank - array->rank;
    for (int32_t i = 0; i < array->rank; i++) {
        if (array->shape[i] != 1 && array->shape[i] != full[first + i]) {
            array->check_shape({full + first, full + max_rank},
                               "[batch, num_heads, q_len, kv_len] or 1 in any of them");
        }
    }
    broadcast_layout(*array, shape, layout);
    *target = array->tensor;
    return true;
}

const float *AttentionCall::find_per_head(const char *name) const {
    const Array *array = find(name);
    if (array == nullptr) return nullptr;
    array->check_shape({settings_.problem.num_heads}, "[num_heads]");
    array->check_dtype(HEED_F32);
    array->check_packed();
    return static_cast<const float *>(array->tensor.data);
}

void AttentionCall::set_scores() {
    heed_problem &p = settings_.problem;
    heed_args &args = settings_.args;
    p.has_mask = set_score_input("mask", p.mask_shape, &p.mask_layout, &args.mask);
    p.has_bias = set_score_input("bias", p.bias_shape, &p.bias_layout, &args.bias);
    p.bias_dtype = p.has_bias ? args.bias.dtype : HEED_F32;
    if (p.has_mask) find("mask")->check_dtype(HEED_U8);
    if (p.bias_dtype != HEED_F32 && p.bias_dtype != p.dtype) {
        refuse("bias has elements of %s; they must be float32, or %s, as q's", dtype_name(p.bias_dtype),
               dtype_name(p.dtype));
    }
    args.sink = find_per_head("sink");
    args.alibi_slopes = find_per_head("alibi_slopes");
    p.has_sink = find("sink") != nullptr;
    p.has_alibi = find("alibi_slopes") != nullptr;
}

void AttentionCall::set_results() {
    heed_problem &p = settings_.problem;
    const Array &q = need("q"), &out = need("out");
    out.check_shape(shape_with_last(q, p.head_dim_v), "q's, but for the last axis, which is v's");
    out.check_dtype(p.dtype);
    p.out_layout = layout_of(out);
    settings_.args.out = out.tensor;
    const Array *lse = find("lse");
    p.want_lse = lse != nullptr;
    if (!p.want_lse) return;
    if (p.q_storage == HEED_Q_VARLEN) {
        lse->check_shape({p.num_heads, p.total_q}, "[num_heads, total_q]");
    } else {
        lse->check_shape({p.batch, p.num_heads, p.max_q_len}, "[batch, num_heads, q_len]");
    }
    lse->check_dtype(HEED_F32);
    p.lse_layout = layout_of(*lse, 1);
    settings_.args.lse = lse->tensor;
}

}  // namespace heed::python
