#include "tests/support/describe.h"

#include <cstring>
#include <sstream>

#include "runtime/reference/element.h"

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

// Where the field is not at its default.
template <class T>
void describe_field(const char *name, T value, T initial, std::ostringstream *text) {
    if (std::memcmp(&value, &initial, sizeof(value)) != 0) *text << ", " << name << ' ' << value;
}

std::string scores(const Attention &a) {
#define HEED_WORD(value, word) word,
    const char *const positions[] = {HEED_POSITION_WORDS(HEED_WORD)};
#undef HEED_WORD
    std::ostringstream text;
    text << ", " << positions[a.position];
#define HEED_DESCRIBE(name, initial, ...) describe_field(#name, a.name, LogitFields().name, &text);
    HEED_LOGIT_FIELDS(HEED_DESCRIBE)
#undef HEED_DESCRIBE
    text << shape_of("mask", a.mask);
    text << shape_of(a.bias_dtype == HEED_F32 ? "bias" : "bias of 16 bits", a.bias);
#define HEED_DESCRIBE(name, ...) text << (a.name.empty() ? "" : ", " #name);
    HEED_HEAD_ARRAYS(HEED_DESCRIBE)
#undef HEED_DESCRIBE
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
    text << (options.kernel.empty() ? "any kernel" : options.kernel) << ": " << dtype_name(a.dtype)
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
