#include "tests/support/call.h"

#if __has_include(<valgrind/memcheck.h>)
#include <valgrind/memcheck.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "runtime/reference/element.h"
#include "tests/support/device.h"
#include "tests/support/table_kernels.h"

namespace heed_test {
namespace {

Extents per_logit_extents(const Attention &a, const int32_t shape[4]) {
    const int32_t full[4] = {a.batch, a.num_heads, a.q_len, a.kv_len};
    Extents extents;
    for (int n = 0; n < 4; n++) extents.n[n] = shape[n] == 0 ? full[n] : shape[n];
    return extents;
}

// visit(offset in the strided tensor, index in the packed one) for each element.
template <class Visit>
void for_each(const Extents &e, const Strides &s, Visit visit) {
    int64_t packed = 0;
    for (int64_t w = 0; w < e.n[0]; w++) {
        for (int64_t x = 0; x < e.n[1]; x++) {
            for (int64_t y = 0; y < e.n[2]; y++) {
                const int64_t row = w * s.n[0] + x * s.n[1] + y * s.n[2];
                for (int64_t z = 0; z < e.n[3]; z++) visit(row + z * s.n[3], packed++);
            }
        }
    }
}

// The elements of a mask or bias; store(offset in the tensor, element).
template <class T, class Store>
void fill_per_logit(const PerLogit<T> &values, const Extents &e, const Strides &s, Store store) {
    for_each(e, s, [&](int64_t to, int64_t from) {
        const int64_t j = from % e.n[3], i = from / e.n[3] % e.n[2], h = from / (e.n[3] * e.n[2]) % e.n[1];
        store(to, values.at(from / (e.n[3] * e.n[2] * e.n[1]), h, i, j));
    });
}

// Under memcheck no result may depend on these bytes.
void forget_values(void *data, size_t bytes) {
#ifdef VALGRIND_MAKE_MEM_UNDEFINED
    VALGRIND_MAKE_MEM_UNDEFINED(data, bytes);
#else
    static_cast<void>(data), static_cast<void>(bytes);
#endif
}

bool is_poison(const unsigned char *bytes, size_t n) {
    return std::all_of(bytes, bytes + n, [](unsigned char byte) { return byte == 0xff; });
}

// Whether all bytes of the buffer but the tensor's elements are poison.
bool gaps_intact(const GuardedBuffer &buffer, const void *data, const Extents &e, const Strides &s, int64_t size) {
    const auto *begin = static_cast<const unsigned char *>(buffer.data());
    const auto first = static_cast<size_t>(static_cast<const unsigned char *>(data) - begin);
    std::vector<bool> element(buffer.bytes(), false);
    for_each(e, s, [&](int64_t at, int64_t) {
        const auto byte = first + static_cast<size_t>(at * size);
        for (size_t n = 0; n < static_cast<size_t>(size); n++) element[byte + n] = true;
    });
    for (size_t n = 0; n < buffer.bytes(); n++) {
        if (!element[n] && begin[n] != 0xff) return false;
    }
    return buffer.slack_intact();
}

template <class T>
const T *place(const std::vector<T> &values, Flush flush, GuardedBuffer *buffer) {
    *buffer = GuardedBuffer(values.size() * sizeof(T), flush);
    if (!values.empty()) std::memcpy(buffer->data(), values.data(), buffer->bytes());
    return static_cast<const T *>(buffer->data());
}

// The views of one packed [batch, len, num_heads + 2 * num_kv_heads, head_dim].
void set_fused_layouts(const Attention &a, const Placement &q, heed_problem *p) {
    const int64_t head = a.head_dim, token = head * (a.num_heads + 2 * a.num_kv_heads);
    p->q_layout = p->k_layout = p->v_layout = {{token * q.inner, token, head, 1}};
}

}  // namespace

CallOptions &CallOptions::with_kernel(const std::string &name) {
    kernel = name;
    return *this;
}
CallOptions &CallOptions::with_layout(Layout layout) {
    q = k = v = out = layout;
    return *this;
}
CallOptions &CallOptions::with_flush(Flush side) {
    flush = side;
    return *this;
}
CallOptions &CallOptions::with_threads(int32_t threads) {
    num_threads = threads;
    return *this;
}

CallOptions &CallOptions::with_storage(heed_q_storage queries, heed_kv_storage keys) {
    q_storage = queries;
    kv_storage = keys;
    return *this;
}
CallOptions &CallOptions::with_pages(int32_t size) {
    kv_storage = HEED_KV_PAGED;
    page_size = size;
    return *this;
}

heed_layout make_layout(Layout layout, const std::vector<int64_t> &extents, bool garbage) {
    const int64_t batch = extents[0], len = extents[1], heads = extents[2], dim = extents[3];
    heed_layout result = {{len * heads * dim, heads * dim, dim, 1}};
    if (layout == Layout::bhsd) result = {{len * heads * dim, dim, len * dim, 1}};
    if (layout == Layout::sbhd) result = {{heads * dim, batch * heads * dim, dim, 1}};
    if (layout == Layout::padded) {
        const int64_t head = dim + 5, token = heads * head + 3;
        result = {{len * token + 7, token, head, 1}};
    }
    if (layout == Layout::packed) result = {{0, 0, 0, 0}};
    const int64_t nonsense[] = {-3, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(), 77};
    for (size_t d = 0; garbage && layout != Layout::packed && d < 4; d++) {
        if (extents[d] == 1) result.stride[d] = nonsense[d];
    }
    return result;
}

heed_problem make_problem(const Attention &a, const CallOptions &options) {
    heed_problem p;
    heed_problem_init(&p);
    const Storage storage = lay_out(a, options);
    p.device = test_device();
    if (p.device == HEED_CUDA) p.cuda_capability = CudaDevice::get().capability();
    p.dtype = a.dtype;
    p.kv_dtype = a.kv_dtype();
    p.bias_dtype = a.bias_dtype;
    p.q_storage = options.q_storage;
    p.kv_storage = options.kv_storage;
    p.batch = a.batch;
    p.num_heads = a.num_heads;
    p.num_kv_heads = a.num_kv_heads;
    p.head_dim = a.head_dim;
    p.head_dim_v = a.head_dim_v;
    p.max_q_len = a.q_len;
    p.max_kv_len = a.kv_len;
    p.position = a.position;
    copy_logit_fields(a, &p);
    p.has_mask = a.mask.used;
    p.has_bias = a.bias.used;
#define HEED_USE(name, used, ...) p.used = !a.name.empty();
    HEED_HEAD_ARRAYS(HEED_USE)
#undef HEED_USE
    p.has_kv_lens = options.kv_storage == HEED_KV_PAGED || !storage.kv_lens.empty();
    p.dropout_p = a.dropout_p;
    p.want_lse = options.want_lse;
    p.batch_invariant = options.batch_invariant;
    p.num_splits = options.num_splits;
    p.max_threads = options.num_threads;
    for (size_t n = 0; n < 4; n++) {
        if (a.mask.used) p.mask_shape[n] = a.mask.shape[n];
        if (a.bias.used) p.bias_shape[n] = a.bias.shape[n];
    }
    const bool garbage = options.garbage_strides;
    const Placement &q = storage.q, &kv = storage.kv;
    p.q_layout = make_layout(options.q, {q.outer, q.inner, a.num_heads, a.head_dim}, garbage);
    p.k_layout = make_layout(options.k, {kv.outer, kv.inner, a.num_kv_heads, a.head_dim}, garbage);
    p.v_layout = make_layout(options.v, {kv.outer, kv.inner, a.num_kv_heads, a.head_dim_v}, garbage);
    p.out_layout = make_layout(options.out, {q.outer, q.inner, a.num_heads, a.head_dim_v}, garbage);
    if (options.q_storage == HEED_Q_VARLEN) p.total_q = static_cast<int32_t>(q.inner);
    if (options.kv_storage == HEED_KV_VARLEN) p.total_kv = static_cast<int32_t>(kv.inner);
    if (options.kv_storage == HEED_KV_PAGED) {
        p.num_pages = static_cast<int32_t>(kv.outer);
        p.page_size = options.page_size;
        p.max_pages_per_seq = storage.max_pages_per_seq;
    }
    if (options.fused_qkv) set_fused_layouts(a, q, &p);
    return p;
}

Call::Call(const Attention &a, const CallOptions &options)
    : problem(make_problem(a, options)), args(), a_(a), options_(options), storage_(lay_out(a, options)) {
    heed_args_init(&args);
}

heed_tensor Call::tensor_in(GuardedBuffer *buffer, int64_t span, heed_dtype dtype) {
    const int64_t bytes = element_bytes(dtype), offset = span == 0 ? 0 : options_.offset;
    *buffer = GuardedBuffer(static_cast<size_t>((span + offset) * bytes), options_.flush);
    return {static_cast<unsigned char *>(buffer->data()) + offset * bytes, span, dtype};
}

Extents Call::q_extents(int32_t head_dim) const {
    return {{storage_.q.outer, storage_.q.inner, a_.num_heads, head_dim}};
}
Extents Call::kv_extents(int32_t head_dim) const {
    return {{storage_.kv.outer, storage_.kv.inner, a_.num_kv_heads, head_dim}};
}
Extents Call::lse_extents() const { return {{storage_.q.outer, a_.num_heads, storage_.q.inner, 1}}; }

void Call::make_keys(const std::vector<float> &rows, const Extents &extents, const Strides &strides,
                     heed_tensor *tensor, heed_tensor *scales, GuardedBuffer *buffer, GuardedBuffer *scale_buffer) {
    *tensor = tensor_in(buffer, span_of(extents, strides), a_.kv_dtype());
    if (!a_.int8_kv) return scatter(rows, storage_.kv, extents, strides, a_.dtype, tensor->data);
    *scales = tensor_in(scale_buffer, extents.n[0] * extents.n[1] * extents.n[2], HEED_F32);
    scatter_int8(rows, storage_.kv, extents, strides, static_cast<int8_t *>(tensor->data),
                 static_cast<float *>(scales->data));
}

void Call::make_fused_views() {
    const int64_t token = int64_t{a_.head_dim} * (a_.num_heads + 2 * a_.num_kv_heads);
    args.q = tensor_in(&q_, token * storage_.q.outer * storage_.q.inner, a_.dtype);
    args.k = args.v = args.q;
    const int64_t k_begin = int64_t{a_.head_dim} * a_.num_heads,
                  v_begin = token - int64_t{a_.head_dim} * a_.num_kv_heads;
    args.k.data = static_cast<char *>(args.q.data) + k_begin * element_bytes(a_.dtype);
    args.v.data = static_cast<char *>(args.q.data) + v_begin * element_bytes(a_.dtype);
    args.k.size -= k_begin;
    args.v.size -= v_begin;
}

void Call::make_inputs() {
    const Extents q = q_extents(a_.head_dim), k = kv_extents(a_.head_dim), v = kv_extents(a_.head_dim_v);
    const Strides q_strides(q, problem.q_layout), k_strides(k, problem.k_layout), v_strides(v, problem.v_layout);
    if (options_.fused_qkv) {
        make_fused_views();
        scatter(a_.k, storage_.kv, k, k_strides, a_.dtype, args.k.data);
        scatter(a_.v, storage_.kv, v, v_strides, a_.dtype, args.v.data);
    } else {
        args.q = tensor_in(&q_, span_of(q, q_strides), a_.dtype);
        make_keys(a_.k, k, k_strides, &args.k, &args.k_scale, &k_, &k_scale_);
        make_keys(a_.v, v, v_strides, &args.v, &args.v_scale, &v_, &v_scale_);
    }
    scatter(a_.q, storage_.q, q, q_strides, a_.dtype, args.q.data);
    if (problem.has_mask) {
        const Extents e = per_logit_extents(a_, problem.mask_shape);
        const Strides s(e, problem.mask_layout);
        args.mask = tensor_in(&mask_, span_of(e, s), HEED_U8);
        auto *data = static_cast<uint8_t *>(args.mask.data);
        fill_per_logit(a_.mask, e, s, [&](int64_t to, uint8_t element) { data[to] = element; });
    }
    if (problem.has_bias) {
        const Extents e = per_logit_extents(a_, problem.bias_shape);
        const Strides s(e, problem.bias_layout);
        args.bias = tensor_in(&bias_, span_of(e, s), a_.bias_dtype);
        fill_per_logit(a_.bias, e, s, [&](int64_t to, float x) { store(args.bias.data, to, a_.bias_dtype, x); });
    }
}

void Call::make_metadata() {
    const auto put = [&](bool used, const auto &values, auto **pointer, std::vector<GuardedBuffer> *buffers) {
        if (used) *pointer = place(values, options_.flush, &buffers->emplace_back());
    };
    metadata_.clear();
    head_arrays_.clear();
    put(problem.has_kv_lens, storage_.kv_lens, &args.kv_lens, &metadata_);
    put(!a_.q_offsets.empty(), a_.q_offsets, &args.q_offsets, &metadata_);
    put(!storage_.cu_seqlens_q.empty(), storage_.cu_seqlens_q, &args.cu_seqlens_q, &metadata_);
    put(!storage_.cu_seqlens_kv.empty(), storage_.cu_seqlens_kv, &args.cu_seqlens_kv, &metadata_);
    put(!storage_.page_table.empty(), storage_.page_table, &args.page_table, &metadata_);
#define HEED_PUT(name, ...) put(!a_.name.empty(), a_.name, &args.name, &head_arrays_);
    HEED_HEAD_ARRAYS(HEED_PUT)
#undef HEED_PUT
    args.dropout_seed = a_.dropout_seed;
    args.dropout_offset = a_.dropout_offset;
}

void Call::make_outputs() {
    const Extents out = q_extents(a_.head_dim_v), lse = lse_extents();
    args.out = tensor_in(&out_, span_of(out, Strides(out, problem.out_layout)), a_.dtype);
    if (problem.want_lse) args.lse = tensor_in(&lse_, span_of(lse, Strides(lse, problem.lse_layout)), HEED_F32);
    workspace_ = GuardedBuffer(heed_plan_workspace_bytes(plan_.get()), options_.flush);
    forget_values(workspace_.data(), workspace_.bytes());
    args.workspace = workspace_.data();
    args.workspace_bytes = workspace_.bytes();
    args.num_threads = options_.num_threads;
    args.pool = options_.pool;
    if (problem.metadata_on_device) args.device_status = &device_status;
}

heed_status Call::prepare() {
    const ForcedKernel forced(options_.kernel);
    heed_plan *plan = nullptr;
    const heed_status status = heed_plan_create(&problem, &plan);
    plan_.reset(plan);
    if (status != HEED_OK) return status;
    make_inputs();
    make_metadata();
    make_outputs();
    return HEED_OK;
}

heed_status Call::run_on_device(const std::function<heed_status(const heed_args &)> &run, DeviceMirror *also) {
    DeviceMirror mirror;
    const CudaDevice &device = CudaDevice::get();
    for (GuardedBuffer *input : {&q_, &k_, &v_, &k_scale_, &v_scale_, &mask_, &bias_}) {
        mirror.add(input->data(), input->bytes(), false);
    }
    for (const GuardedBuffer &input : head_arrays_) mirror.add(input.data(), input.bytes(), false);
    for (const heed_tensor &words : args.score_buffers) {
        if (words.data != nullptr) mirror.add(words.data, static_cast<size_t>(words.size) * sizeof(int32_t), false);
    }
    for (GuardedBuffer *output : {&out_, &lse_, &workspace_}) mirror.add(output->data(), output->bytes(), true);
    if (problem.metadata_on_device) {
        for (const GuardedBuffer &input : metadata_) mirror.add(input.data(), input.bytes(), false);
        mirror.add(&device_status, sizeof(device_status), true);
    }
    const heed_args device_args = on_device(mirror, args);
    const heed_status status = run(device_args);
    device.synchronize();
    device_guards_intact_ = mirror.bring_back() && (also == nullptr || also->bring_back());
    return status;
}

heed_status Call::execute(const heed_plan *plan) {
    if (problem.device == HEED_CPU) return heed_execute(plan, &args);
    return run_on_device([&](const heed_args &a) { return heed_execute(plan, &a); });
}

heed_status Call::probs(heed_probs_mode mode, const heed_tensor &result) {
    if (problem.device == HEED_CPU) return heed_attention_probs(plan(), &args, mode, &result, nullptr);
    DeviceMirror mirror;
    mirror.add(result.data, static_cast<size_t>(result.size * element_bytes(result.dtype)), true);
    const heed_tensor copy = {mirror.on_device(result.data), result.size, result.dtype};
    const auto run = [&](const heed_args &a) { return heed_attention_probs(plan(), &a, mode, &copy, nullptr); };
    return run_on_device(run, &mirror);
}

heed_status Call::execute() {
    const heed_status status = execute(plan_.get());
    const bool needs_kernel = a_.num_rows() > 0 && a_.kv_len > 0;
    if (status == HEED_OK && needs_kernel) note_run(kernel());
    return status;
}

void Call::forget_out() { std::memset(out_.data(), 0xff, out_.bytes()); }

heed_status Call::run() {
    const heed_status status = prepare();
    return status == HEED_OK ? execute() : status;
}

std::vector<float> Call::out() const {
    const Extents e = q_extents(a_.head_dim_v);
    return gather(storage_.q, e, Strides(e, problem.out_layout), a_.dtype, args.out.data);
}

std::vector<float> Call::lse() const {
    if (!problem.want_lse) return {};
    const Strides s(lse_extents(), problem.lse_layout);
    std::vector<float> packed(static_cast<size_t>(a_.num_rows()));
    for (int32_t b = 0; b < a_.batch; b++) {
        for (int32_t h = 0; h < a_.num_heads; h++) {
            for (int32_t i = 0; i < a_.q_len_of(b); i++) {
                const Slot &slot = storage_.q.at(b, i);
                packed[static_cast<size_t>(a_.lse_index(b, h, i))] =
                    static_cast<const float *>(args.lse.data)[slot.outer * s.n[0] + h * s.n[1] + slot.inner * s.n[2]];
            }
        }
    }
    return packed;
}

bool Call::canaries_intact() const {
    if (!device_guards_intact_) return false;
    const Extents out = q_extents(a_.head_dim_v), lse = lse_extents();
    const Strides out_strides(out, problem.out_layout), lse_strides(lse, problem.lse_layout);
    if (!gaps_intact(out_, args.out.data, out, out_strides, element_bytes(a_.dtype))) return false;
    if (problem.want_lse && !gaps_intact(lse_, args.lse.data, lse, lse_strides, sizeof(float))) return false;
    return workspace_.bytes() == 0 || workspace_.slack_intact();
}

bool Call::outputs_untouched() const {
    return is_poison(static_cast<const unsigned char *>(out_.data()), out_.bytes()) &&
           is_poison(static_cast<const unsigned char *>(lse_.data()), lse_.bytes()) && canaries_intact();
}

}  // namespace heed_test
