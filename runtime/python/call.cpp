#include "call.h"

#include <algorithm>
#include <cstddef>

#include <nanobind/stl/string.h>

#include "errors.h"
#include "fields.h"
#include "heed/fields.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

constexpr size_t in_problem(size_t offset) { return offsetof(AttentionCall::Settings, problem) + offset; }
constexpr size_t in_args(size_t offset) { return offsetof(AttentionCall::Settings, args) + offset; }

#define HEED_IN_PROBLEM(name, ...)                                                                                     \
    {#name, kind_of(decltype(heed_problem::name)()), in_problem(offsetof(heed_problem, name))},
#define HEED_IN_ARGS(name) {#name, kind_of(decltype(heed_args::name)()), in_args(offsetof(heed_args, name))},
constexpr Field setting_fields[] = {HEED_NAMED_FIELDS(HEED_IN_PROBLEM) HEED_IN_PROBLEM(score_mod)
                                        HEED_IN_ARGS(dropout_seed) HEED_IN_ARGS(dropout_offset)};
#undef HEED_IN_PROBLEM
#undef HEED_IN_ARGS

struct Metadata {
    const char *name, *axes;
    int32_t rank;
    const int32_t *heed_args::*pointer;
};

#define HEED_ROW(name, rank, axes) {#name, axes, rank, &heed_args::name},
constexpr Metadata metadata[] = {HEED_METADATA_ARRAYS(HEED_ROW)};
#undef HEED_ROW

bool is_metadata(const Array &array) {
    return std::any_of(std::begin(metadata), std::end(metadata),
                       [&](const Metadata &one) { return array.name == one.name; });
}

bool is_written(const std::string &name) {
    return name == "out" || name == "lse" || name == "workspace" || name == "device_status";
}

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
        p.batch = cu_seqlens->extent(0) - 1;
        p.total_q = q.extent(0);
        p.max_q_len = longest("max_q_len", *cu_seqlens);
    } else {
        q.check_rank(4, "[batch, q_len, num_heads, head_dim]");
        if (fields_.contains("max_q_len")) refuse("max_q_len is given without cu_seqlens_q, where q's shape tells it");
        p.batch = q.extent(0);
        p.max_q_len = q.extent(1);
    }
    if (q.tensor.dtype != HEED_F32 && q.tensor.dtype != HEED_F16 && q.tensor.dtype != HEED_BF16) {
        refuse("q has elements of %s; they must be float32, float16 or bfloat16", dtype_name(q.tensor.dtype));
    }
    p.device = q.device;
    p.dtype = q.tensor.dtype;
    p.num_heads = q.extent(q.rank - 2);
    p.head_dim = q.extent(q.rank - 1);
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
#define HEED_FIND(name, used)                                                                                          \
    args.name = find_per_head(#name);                                                                                  \
    p.used = find(#name) != nullptr;
    HEED_HEAD_ARRAYS(HEED_FIND)
#undef HEED_FIND
    if (p.score_mod != nullptr) set_score_buffers();
}

void AttentionCall::set_score_buffers() {
    for (int32_t n = 0;; n++) {
        const Array *buffer = find(("score_buffers[" + std::to_string(n) + "]").c_str());
        if (buffer == nullptr) return;
        if (n == HEED_MAX_SCORE_BUFFERS) refuse("score_buffers has more than %d arrays", HEED_MAX_SCORE_BUFFERS);
        buffer->check_packed();
        settings_.args.score_buffers[n] = buffer->tensor;
    }
}

void AttentionCall::set_results() {
    heed_problem &p = settings_.problem;
    if (const Array *out = find("out")) {
        out->check_shape(need("q").shape_with_last(p.head_dim_v), "q's, but for the last axis, which is v's");
        out->check_dtype(p.dtype);
        p.out_layout = layout_of(*out);
        settings_.args.out = out->tensor;
    }
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
