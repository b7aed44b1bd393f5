#include "runtime/python/call.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include <nanobind/stl/string.h>

#include "heed/fields.h"
#include "runtime/python/errors.h"
#include "runtime/python/fields.h"
#include "runtime/python/torch_threads.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

constexpr size_t in_problem(size_t offset) { return offsetof(AttentionCall::Settings, problem) + offset; }
constexpr size_t in_args(size_t offset) { return offsetof(AttentionCall::Settings, args) + offset; }

#define HEED_IN_PROBLEM(name, ...)                                                                                     \
    {#name, kind_of(decltype(heed_problem::name)()), in_problem(offsetof(heed_problem, name))},
#define HEED_IN_ARGS(name) {#name, kind_of(decltype(heed_args::name)()), in_args(offsetof(heed_args, name))},
constexpr Field setting_fields[] = {
    HEED_NAMED_FIELDS(HEED_IN_PROBLEM) HEED_IN_PROBLEM(score_mod) HEED_IN_ARGS(dropout_seed)
        HEED_IN_ARGS(dropout_offset){"heads_first", Kind::boolean, offsetof(AttentionCall::Settings, heads_first)},
    {"out_heads_first", Kind::boolean, offsetof(AttentionCall::Settings, out_heads_first)}};
#undef HEED_IN_PROBLEM
#undef HEED_IN_ARGS

struct Metadata {
    const Array *CallArrays::*array;
    const char *axes;
    int32_t rank;
    const int32_t *heed_args::*pointer;
};

#define HEED_ENTRY(name, rank, axes) {&CallArrays::name, axes, rank, &heed_args::name},
constexpr Metadata metadata[] = {HEED_METADATA_ARRAYS(HEED_ENTRY)};
#undef HEED_ENTRY

constexpr struct NamedArray {
    const char *text;
    const Array *CallArrays::*array;
    Access access = Access::read;
    bool AttentionCall::Settings::*heads_first = nullptr;
    bool is_metadata = false;
} named_arrays[] = {{"q", &CallArrays::q, Access::read, &AttentionCall::Settings::heads_first},
                    {"k", &CallArrays::k, Access::read, &AttentionCall::Settings::heads_first},
                    {"v", &CallArrays::v, Access::read, &AttentionCall::Settings::heads_first},
                    {"out", &CallArrays::out, Access::write, &AttentionCall::Settings::out_heads_first},
                    {"mask", &CallArrays::mask},
                    {"bias", &CallArrays::bias},
                    {"lse", &CallArrays::lse, Access::write},
                    {"k_scale", &CallArrays::k_scale},
                    {"v_scale", &CallArrays::v_scale},
                    {"device_status", &CallArrays::device_status, Access::write},
                    {"workspace", &CallArrays::workspace, Access::write},
#define HEED_ENTRY(name, ...) {#name, &CallArrays::name},
                    HEED_HEAD_ARRAYS(HEED_ENTRY)
#undef HEED_ENTRY
#define HEED_ENTRY(name, ...) {#name, &CallArrays::name, Access::read, nullptr, true},
                        HEED_METADATA_ARRAYS(HEED_ENTRY)
#undef HEED_ENTRY
};

const NamedArray *find_array(const char *text) {
    return std::find_if(std::begin(named_arrays), std::end(named_arrays),
                        [&](const NamedArray &name) { return std::strcmp(name.text, text) == 0; });
}

// The index in "score_buffers[n]".
int32_t buffer_index(const char *name) {
    constexpr const char prefix[] = "score_buffers[";
    if (std::strncmp(name, prefix, sizeof(prefix) - 1) != 0) throw nb::type_error(name);
    const int32_t index = std::atoi(name + sizeof(prefix) - 1);
    if (index >= HEED_MAX_SCORE_BUFFERS) refuse("score_buffers has more than %d arrays", HEED_MAX_SCORE_BUFFERS);
    return index;
}

// [batch, heads, len, head_dim] to [batch, len, heads, head_dim].
void swap_heads(Array *array) {
    array->check_rank(max_rank, "[batch, heads, len, head_dim]");
    std::swap(array->shape[1], array->shape[2]);
    std::swap(array->stride[1], array->stride[2]);
}

}  // namespace

void AttentionCall::set(const nb::dict &fields) { set_fields(fields, setting_fields, &settings_); }

AttentionCall::AttentionCall(const nb::dict &arrays, const nb::dict &fields) : fields_(fields) {
    set(fields);
    arrays_.reserve(arrays.size());
    for (const auto [name, array] : arrays) add(nb::cast<const char *>(name), array);
    settle();
}

Array &AttentionCall::add(const char *text, nb::handle object) {
    const NamedArray *const name = find_array(text);
    const bool known = name != std::end(named_arrays);
    Array &array = take(text, import_array(text, object, known ? name->access : Access::read));
    if (known && name->heads_first != nullptr && settings_.*name->heads_first) swap_heads(&array);
    return array;
}

void AttentionCall::add_lengths(const char *name, const std::vector<int32_t> &values) {
    Array array;
    array.name = name;
    array.rank = 1;
    array.shape[0] = static_cast<int64_t>(values.size());
    array.stride[0] = 1;
    array.tensor = {const_cast<int32_t *>(values.data()), array.shape[0], HEED_I32};
    take(name, std::move(array));
}

Array &AttentionCall::take(const char *text, Array array) {
    const NamedArray *const name = find_array(text);
    arrays_.push_back(std::move(array));
    Array &kept = arrays_.back();  // which stays there
    (name != std::end(named_arrays) ? given_.*name->array : given_.score_buffers[buffer_index(text)]) = &kept;
    return kept;
}

void AttentionCall::settle() {
    if (given_.q == nullptr || given_.k == nullptr || given_.v == nullptr) refuse("q, k or v is missing");
    check_devices();
    set_metadata();
    set_queries();
    set_positions();
    set_keys();
    set_scores();
    set_results();
    set_threads();
}

void AttentionCall::check_devices() const {
    for (const NamedArray &name : named_arrays) {
        const Array *const array = given_.*name.array;
        if (array != nullptr && !name.is_metadata) array->check_device(*given_.q);
    }
    for (const Array *buffer : given_.score_buffers) {
        if (buffer != nullptr) buffer->check_device(*given_.q);
    }
}

// All on the host, or all on the device of q.
void AttentionCall::set_metadata() {
    const Array *first = nullptr;
    for (const Metadata &one : metadata) {
        const Array *array = given_.*one.array;
        if (array == nullptr) continue;
        array->check_rank(one.rank, one.axes);
        array->check_packed(HEED_I32);
        if (first == nullptr) first = array;
        array->check_device(*first);
        settings_.args.*one.pointer = static_cast<const int32_t *>(array->tensor.data);
    }
    const Array *status = given_.device_status;
    if (first == nullptr || first->device == HEED_CPU) {
        if (status != nullptr) refuse("device_status is given without metadata on the device; it must be None");
        return;
    }
    first->check_device(*given_.q);
    settings_.problem.metadata_on_device = true;
    if (status != nullptr) {
        status->check_shape({1}, "[1]");
        status->check_dtype(HEED_I32);
        settings_.args.device_status = static_cast<int32_t *>(status->tensor.data);
    }
}

// The longest of the sequences, where the field does not say.
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
    const Array &q = *given_.q;
    if (const Array *cu_seqlens = given_.cu_seqlens_q) {
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
    const Array *q_offsets = given_.q_offsets;
    if (q_offsets == nullptr) {
        if (p.position == HEED_EXPLICIT) refuse("q_offsets is missing; it must be given with position 'explicit'");
        return;
    }
    q_offsets->check_shape({p.batch}, "[batch]");
    if (fields_.contains("position") && p.position != HEED_EXPLICIT) {
        refuse("position is %s with q_offsets; it must be 'explicit'",
               nb::cast<std::string>(nb::repr(fields_["position"])).c_str());
    }
    p.position = HEED_EXPLICIT;
}

// A mask or bias, of any number of axes that broadcasts to [batch, num_heads, q_len, kv_len].
bool AttentionCall::set_score_input(const Array *array, int32_t shape[4], heed_layout *layout,
                                    heed_tensor *target) const {
    if (array == nullptr) return false;
    const heed_problem &p = settings_.problem;
    array->check_broadcast({p.batch, p.num_heads, p.max_q_len, p.max_kv_len}, "[batch, num_heads, q_len, kv_len]");
    broadcast_layout(*array, shape, layout);
    *target = array->tensor;
    return true;
}

const float *AttentionCall::values_per_head(const Array *array) const {
    if (array == nullptr) return nullptr;
    array->check_shape({settings_.problem.num_heads}, "[num_heads]");
    array->check_packed(HEED_F32);
    return static_cast<const float *>(array->tensor.data);
}

void AttentionCall::set_scores() {
    heed_problem &p = settings_.problem;
    heed_args &args = settings_.args;
    p.has_mask = set_score_input(given_.mask, p.mask_shape, &p.mask_layout, &args.mask);
    p.has_bias = set_score_input(given_.bias, p.bias_shape, &p.bias_layout, &args.bias);
    p.bias_dtype = p.has_bias ? args.bias.dtype : HEED_F32;
    if (p.has_mask) given_.mask->check_dtype(HEED_U8);
    if (p.bias_dtype != HEED_F32 && p.bias_dtype != p.dtype) {
        const std::string or_dtype = p.dtype == HEED_F32 ? "" : std::string(" or ") + dtype_name(p.dtype) + ", as q's";
        refuse("bias has elements of %s; they must be float32%s", dtype_name(p.bias_dtype), or_dtype.c_str());
    }
#define HEED_TAKE(name, used, ...)                                                                                     \
    args.name = values_per_head(given_.name);                                                                          \
    p.used = given_.name != nullptr;
    HEED_HEAD_ARRAYS(HEED_TAKE)
#undef HEED_TAKE
    if (p.score_mod != nullptr) set_score_buffers();
}

void AttentionCall::set_score_buffers() {
    for (int32_t n = 0; n < HEED_MAX_SCORE_BUFFERS; n++) {
        const Array *buffer = given_.score_buffers[n];
        if (buffer == nullptr) return;
        buffer->check_packed();
        settings_.args.score_buffers[n] = buffer->tensor;
    }
}

// For PyTorch's tensors on the CPU: PyTorch's own.
void AttentionCall::set_threads() {
    if (!given_.q->torch.is_valid()) return;
    const TorchThreads threads = torch_threads();
    settings_.args.pool = threads.pool;
    if (settings_.problem.max_threads == 0) settings_.problem.max_threads = threads.count;
}

void AttentionCall::set_results() {
    heed_problem &p = settings_.problem;
    if (const Array *out = given_.out) {
        out->check_shape(given_.q->shape_with_last(p.head_dim_v), "q's, except for the last axis, which is v's");
        out->check_dtype(p.dtype);
        p.out_layout = layout_of(*out);
        settings_.args.out = out->tensor;
    }
    const Array *lse = given_.lse;
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
