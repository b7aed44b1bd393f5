#include "describe.h"

#include <cmath>
#include <sstream>

#include "element.h"

namespace heed_test {
namespace {

std::string list(const char *name, const std::vector<int32_t> &values) {
    if (values.empty()) return "";
    std::ostringstream text;
    text << ", " << name;
    for (size_t n = 0; n < values.size(); n++) text << (n == 0 ? " [" : " ") << values[n];
    text << ']';
    return text.str();
}

template <class T>
std::string shape_of(const char *name, const PerLogit<T> &values) {
    return values.used ? list(name, {values.shape.begin(), values.shape.end()}) : "";
}

std::string scores(const Attention &a) {
    const char *const positions[] = {"top_left", "bottom_right", "explicit"};
    std::ostringstream text;
    text << ", " << positions[a.position] << (a.causal ? " causal" : "");
    if (a.window_left != -1 || a.window_right != -1) text << ", window " << a.window_left << "/" << a.window_right;
    if (!std::isnan(a.scale)) text << ", scale " << a.scale;
    if (a.softcap > 0) text << ", softcap " << a.softcap;
    text << shape_of(a.mask_true_hides ? "hiding mask" : "mask", a.mask);
    text << shape_of(a.bias_dtype == HEED_F32 ? "bias" : "bias of 16 bits", a.bias);
    if (!a.sink.empty()) text << ", sink";
    if (!a.alibi_slopes.empty()) text << (a.alibi_symmetric ? ", symmetric alibi" : ", alibi");
    if (a.dropout_p > 0) {
        text << ", dropout " << a.dropout_p << " of seed " << a.dropout_seed << " and offset " << a.dropout_offset;
    }
    return text.str();
}

std::string places(const CallOptions &options) {
    const char *const layouts[] = {"bshd", "bhsd", "sbhd", "padded", "packed"};
    std::ostringstream text;
    if (options.q_storage == HEED_Q_VARLEN) text << ", varlen queries";
    if (options.kv_storage == HEED_KV_VARLEN) text << ", varlen keys";
    if (options.kv_storage == HEED_KV_PAGED) text << ", pages of " << options.page_size;
    const struct {
        const char *name;
        Layout layout;
    } tensors[] = {{"q", options.q}, {"k", options.k}, {"v", options.v}, {"out", options.out}};
    for (const auto &[name, layout] : tensors) {
        if (layout != Layout::packed) text << ", " << name << " " << layouts[static_cast<size_t>(layout)];
    }
    if (options.fused_qkv) text << ", fused qkv";
    if (options.garbage_strides) text << ", garbage strides";
    if (options.offset != 0) text << ", offset " << options.offset;
    return text.str();
}

}  // namespace

std::string describe(const Attention &a, const CallOptions &options) {
    std::ostringstream text;
    text << (options.kernel.empty() ? "any row" : options.kernel) << ": " << dtype_name(a.dtype)
         << (a.int8_kv ? ", int8 keys" : "") << ", batch " << a.batch << ", heads " << a.num_heads << "/"
         << a.num_kv_heads << ", q_len " << a.q_len << ", kv_len " << a.kv_len << ", head_dim " << a.head_dim << "/"
         << a.head_dim_v << list("q_lens", a.q_lens) << list("kv_lens", a.kv_lens) << list("q_offsets", a.q_offsets)
         << scores(a) << places(options) << ", threads " << options.num_threads;
    if (options.num_splits > 0) text << ", splits " << options.num_splits;
    if (options.batch_invariant) text << ", batch_invariant";
    if (!options.want_lse) text << ", no lse";
    return text.str();
}

}  // namespace heed_test
