#include "bench/cases.h"

#include <algorithm>

#include "runtime/reference/element.h"

namespace heed_bench {

namespace {

Case attention(const char *name, int32_t num_heads, int32_t num_kv_heads, int32_t q_len, int32_t kv_len,
               int32_t head_dim) {
    Case c;
    c.name = name;
    c.batch = 1;
    c.num_heads = num_heads;
    c.num_kv_heads = num_kv_heads;
    c.q_len = q_len;
    c.kv_len = kv_len;
    c.head_dim = c.head_dim_v = head_dim;
    return c;
}

Case causal(Case c) {
    c.causal = true;
    return c;
}

Case batched(Case c, int32_t batch) {
    c.batch = batch;
    return c;
}

Case value_dim(Case c, int32_t head_dim_v) {
    c.head_dim_v = head_dim_v;
    return c;
}

Case seed(Case c) {
    c.kind = CaseKind::seed;
    return c;
}

Case masked(Case c, CaseMask mask) {
    c.mask = mask;
    return c;
}

Case windowed(Case c, int32_t window_left) {
    c.window_left = window_left;
    return c;
}

// One query row, 32 heads of 128.
Case decode(const char *name, int32_t batch, int32_t num_kv_heads, int32_t kv_len) {
    Case c = batched(attention(name, 32, num_kv_heads, 1, kv_len, 128), batch);
    c.kind = CaseKind::decode;
    return c;
}

// The ragged list varies this square one.
Case square_1k(const char *name, int32_t head_dim = 128) { return attention(name, 16, 16, 1024, 1024, head_dim); }

Case in_layout(const char *name, CaseLayout layout, Case c) {
    c.name = name;
    c.layout = layout;
    return c;
}

std::vector<Case> in_suite(const char *suite, std::vector<Case> cases) {
    for (Case &c : cases) {
        c.suite = suite;
    }
    return cases;
}

std::vector<Case> main_cases() {
    return in_suite("main", {
                                causal(attention("p512_mha", 32, 32, 512, 512, 128)),
                                causal(attention("p2k_gqa", 32, 8, 2048, 2048, 128)),
                                causal(attention("p2k_mqa", 32, 1, 2048, 2048, 128)),
                                attention("p1k_d64_full", 8, 8, 1024, 1024, 64),
                                batched(attention("bert_8x512", 12, 12, 512, 512, 64), 8),
                                causal(attention("p8k_gqa", 32, 8, 8192, 8192, 128)),
                                decode("d4k_mha", 1, 32, 4096),
                                decode("d4k_gqa", 1, 8, 4096),
                                decode("d4k_mqa", 1, 1, 4096),
                                decode("d2k_b16_gqa", 16, 8, 2048),
                                decode("d32k_gqa", 1, 8, 32768),
                                causal(attention("c256_4k_gqa", 32, 8, 256, 4096, 128)),
                                seed(causal(batched(attention("seed1", 8, 1, 100, 100, 16), 10))),
                                seed(causal(value_dim(batched(attention("seed2_dv111", 8, 8, 100, 100, 64), 24), 111))),
                                seed(batched(attention("seed3", 8, 4, 2, 2, 16), 3)),
                            });
}

std::vector<Case> rag_cases() {
    return in_suite("rag", {
                               square_1k("base_1k"),
                               causal(square_1k("base_1k_causal")),
                               attention("gqa_1k", 16, 4, 1024, 1024, 128),
                               masked(square_1k("add_bhqk"), CaseMask::bias_full),
                               masked(square_1k("add_11qk"), CaseMask::bias_shared),
                               masked(square_1k("bool_11qk"), CaseMask::mask_shared),
                               masked(square_1k("bool_keypad"), CaseMask::mask_key_padding),
                               square_1k("d72", 72),
                               square_1k("d80", 80),
                               square_1k("d96", 96),
                               square_1k("d256", 256),
                               value_dim(square_1k("dk128_dv64"), 64),
                               value_dim(square_1k("dk192_dv128", 192), 128),
                               value_dim(square_1k("dk64_dv111", 64), 111),
                               attention("kv1000", 16, 16, 1024, 1000, 128),
                               causal(attention("q1000_kv1000_causal", 16, 16, 1000, 1000, 128)),
                               causal(attention("causal_4k", 16, 16, 4096, 4096, 128)),
                               windowed(causal(attention("win256_4k", 16, 16, 4096, 4096, 128)), 255),
                           });
}

// What changes logits, and dropout, on the square one.
std::vector<Case> logit_cases() {
    Case alibi = causal(square_1k("alibi")), softcap = causal(square_1k("softcap")), dropout = square_1k("dropout"),
         temperature = causal(square_1k("temperature"));
    alibi.has_alibi = true;
    softcap.softcap = 30;
    dropout.dropout_p = 0.1f;
    temperature.temperature_growth = 0.1f;
    return in_suite("logits", {alibi, softcap, dropout, temperature});
}

// Masks with the meaning of a flag, compared with the flag.
std::vector<Case> mask_cases() {
    const auto square = [](const char *name) { return attention(name, 8, 8, 2048, 2048, 128); };
    return in_suite("masks", {square("all_2k"), causal(square("causal_2k")), windowed(causal(square("window_2k")), 255),
                              masked(square("all_2k_mask"), CaseMask::mask_all),
                              masked(square("padding_2k_mask"), CaseMask::mask_left_padding),
                              masked(square("causal_2k_mask"), CaseMask::mask_causal),
                              masked(square("window_2k_mask"), CaseMask::mask_window)});
}

std::vector<Case> layout_cases() {
    const Case gqa = causal(attention("", 32, 8, 2048, 2048, 128)), full = attention("", 8, 8, 1024, 1024, 64),
               chunk = causal(attention("", 32, 8, 256, 4096, 128)), d96 = square_1k("", 96);
    return in_suite("layouts", {
                                   in_layout("p2k_gqa_outside", CaseLayout::heads_outside, gqa),
                                   in_layout("p2k_gqa_padded", CaseLayout::padded, gqa),
                                   in_layout("p2k_gqa_far", CaseLayout::far, gqa),
                                   in_layout("p2k_gqa_pages", CaseLayout::pages, gqa),
                                   in_layout("c256_4k_gqa_pages", CaseLayout::pages, chunk),
                                   in_layout("d96_pages", CaseLayout::pages, d96),
                                   in_layout("p1k_d64_outside", CaseLayout::heads_outside, full),
                                   in_layout("p1k_d64_padded", CaseLayout::padded, full),
                                   in_layout("p1k_d64_far", CaseLayout::far, full),
                               });
}

// 8 heads of 64.
std::vector<Case> small_cases() {
    std::vector<Case> cases;
    for (const int32_t q_len : {1, 4, 16}) {
        for (const int32_t kv_len : {16, 64, 256}) {
            const std::string name = "small_q" + std::to_string(q_len) + "_kv" + std::to_string(kv_len);
            cases.push_back(seed(attention(name.c_str(), 8, 8, q_len, kv_len, 64)));
        }
    }
    return in_suite("small", cases);
}

// By query heads for a head of keys and values, in both layouts and in pages; groups of 1, 4 and 32 are in the main
// suite as well. A latent head that all share; a few queries, as of a draft that is verified.
std::vector<Case> decode_cases() {
    const auto latent = [](const char *name, int32_t num_heads) {
        Case c = value_dim(attention(name, num_heads, 1, 1, 4096, 576), 512);
        c.kind = CaseKind::decode;
        return c;
    };
    const auto few = [](const char *name, int32_t num_kv_heads, int32_t q_len) {
        return causal(attention(name, 32, num_kv_heads, q_len, 4096, 128));
    };
    const auto outside = [](const char *name, int32_t num_kv_heads) {
        return in_layout(name, CaseLayout::heads_outside, decode("", 1, num_kv_heads, 4096));
    };
    const auto in_pages = [](const char *name, int32_t batch, int32_t num_kv_heads, int32_t kv_len) {
        return in_layout(name, CaseLayout::pages, decode("", batch, num_kv_heads, kv_len));
    };
    return in_suite("decode", {decode("d4k_g2", 1, 16, 4096),
                               decode("d4k_g8", 1, 4, 4096),
                               decode("d4k_g16", 1, 2, 4096),
                               outside("d4k_mha_outside", 32),
                               outside("d4k_g2_outside", 16),
                               outside("d4k_gqa_outside", 8),
                               outside("d4k_g8_outside", 4),
                               outside("d4k_g16_outside", 2),
                               outside("d4k_mqa_outside", 1),
                               latent("mla_h16", 16),
                               latent("mla_h32", 32),
                               latent("mla_h128", 128),
                               in_pages("d4k_mha_pages", 1, 32, 4096),
                               in_pages("d4k_gqa_pages", 1, 8, 4096),
                               in_pages("d4k_g8_pages", 1, 4, 4096),
                               in_pages("d4k_g16_pages", 1, 2, 4096),
                               in_pages("d2k_b16_gqa_pages", 16, 8, 2048),
                               few("q4_4k_gqa", 8, 4),
                               few("q8_4k_gqa", 8, 8),
                               few("q16_4k_gqa", 8, 16),
                               few("q8_4k_mha", 32, 8)});
}

// One shape at growing lengths, for plots and exponents: 8 heads on 2 of keys and values, of 128.
std::vector<Case> length_cases() {
    std::vector<Case> cases;
    for (int32_t len = 512; len <= 16384; len *= 2) {
        cases.push_back(causal(attention(("len_" + std::to_string(len)).c_str(), 8, 2, len, len, 128)));
    }
    for (int32_t len = 1024; len <= 262144; len *= 2) {
        Case c = attention(("kv_" + std::to_string(len / 1024) + "k").c_str(), 8, 2, 1, len, 128);
        c.kind = CaseKind::decode;
        cases.push_back(c);
    }
    return in_suite("lengths", cases);
}

// The n-th page of all sequences in memory: a prime spreads them.
int64_t page_of(int64_t n, int64_t num_pages) { return n * 1'000'003 % num_pages; }

TensorLayout laid_out(const Case &c, heed_dtype dtype, int64_t positions, int64_t heads, int64_t elements) {
    const int64_t bytes = heed_reference::element_bytes(dtype);
    const bool outside = c.layout == CaseLayout::heads_outside;
    int64_t head = c.layout == CaseLayout::far ? 4096 / bytes : elements;
    int64_t position = heads * head + (c.layout == CaseLayout::padded ? 64 / bytes : 0);
    if (outside) head = positions * elements, position = elements;
    const int64_t batch = outside ? heads * head : positions * position;
    return {{{batch, position, head, 1}}, c.batch * batch};
}

TensorLayout keys_laid_out(const Case &c, int64_t elements) {
    if (c.layout != CaseLayout::pages) return laid_out(c, c.kv_dtype, c.kv_len, c.num_kv_heads, elements);
    const int64_t pages = (c.kv_len + page_tokens - 1) / page_tokens, token = c.num_kv_heads * elements;
    return {{{page_tokens * token, token, elements, 1}}, c.batch * pages * page_tokens * token, pages, c.batch * pages};
}

bool has_bias(const Case &c) { return c.mask == CaseMask::bias_full || c.mask == CaseMask::bias_shared; }

bool has_mask(const Case &c) { return c.mask != CaseMask::none && !has_bias(c); }

int64_t mask_or_bias_elements(const Case &c) {
    const std::array<int32_t, 4> shape = mask_shape(c);
    return int64_t{shape[0]} * shape[1] * shape[2] * shape[3];
}

}  // namespace

const std::vector<Case> &all_cases() {
    static const std::vector<Case> cases = [] {
        std::vector<Case> all = main_cases();
        for (const std::vector<Case> &more : {rag_cases(), logit_cases(), layout_cases(), mask_cases(), small_cases(),
                                              decode_cases(), length_cases()}) {
            all.insert(all.end(), more.begin(), more.end());
        }
        return all;
    }();
    return cases;
}

Case in_types(Case c, heed_dtype dtype, heed_dtype kv_dtype) {
    c.dtype = dtype;
    c.kv_dtype = kv_dtype;
    return c;
}

const char *kind_name(CaseKind kind) {
    return kind == CaseKind::prefill ? "prefill" : (kind == CaseKind::decode ? "decode" : "seed");
}

const char *mask_name(CaseMask mask) {
    constexpr std::array<const char *, num_masks> names = {
        "none",     "bias_full",         "bias_shared", "mask_shared", "mask_key_padding",
        "mask_all", "mask_left_padding", "mask_causal", "mask_window"};
    return names[static_cast<size_t>(mask)];
}

const char *layout_name(CaseLayout layout) {
    constexpr std::array<const char *, num_layouts> names = {"tokens", "heads_outside", "padded", "far", "pages"};
    return names[static_cast<size_t>(layout)];
}

TensorLayout q_layout(const Case &c) { return laid_out(c, c.dtype, c.q_len, c.num_heads, c.head_dim); }

TensorLayout k_layout(const Case &c) { return keys_laid_out(c, c.head_dim); }

TensorLayout v_layout(const Case &c) { return keys_laid_out(c, c.head_dim_v); }

TensorLayout out_layout(const Case &c) { return laid_out(c, c.dtype, c.q_len, c.num_heads, c.head_dim_v); }

int64_t TensorLayout::offset(int64_t b, int64_t position, int64_t head) const {
    int64_t first = b, second = position;
    if (num_pages > 0) {
        first = page_of(b * pages_of_batch + position / page_tokens, num_pages);
        second = position % page_tokens;
    }
    return first * strides.stride[0] + second * strides.stride[1] + head * strides.stride[2];
}

std::vector<int32_t> page_table(const Case &c) {
    const int64_t num_pages = k_layout(c).num_pages;
    std::vector<int32_t> table(static_cast<size_t>(num_pages));
    for (int64_t n = 0; n < num_pages; n++) {
        table[static_cast<size_t>(n)] = static_cast<int32_t>(page_of(n, num_pages));
    }
    return table;
}

int64_t bias_elements(const Case &c) { return has_bias(c) ? mask_or_bias_elements(c) : 0; }

int64_t mask_elements(const Case &c) { return has_mask(c) ? mask_or_bias_elements(c) : 0; }

int64_t scale_elements(const Case &c) {
    return c.kv_dtype == HEED_I8 ? int64_t{c.batch} * c.num_kv_heads * c.kv_len : 0;
}

std::array<int32_t, 4> mask_shape(const Case &c) {
    const bool of_batch = c.mask == CaseMask::bias_full || c.mask == CaseMask::mask_key_padding;
    return {of_batch ? c.batch : 1, c.mask == CaseMask::bias_full ? c.num_heads : 1, c.q_len, c.kv_len};
}

bool mask_is_random(const Case &c) { return c.mask == CaseMask::mask_shared; }

bool mask_shows(const Case &c, int64_t i, int64_t j) {
    const int64_t position = i + c.kv_len - c.q_len;
    switch (c.mask) {
    case CaseMask::mask_key_padding:
        return j < int64_t{c.kv_len} * 3 / 4;
    case CaseMask::mask_left_padding:
        return j >= 5;
    case CaseMask::mask_causal:
        return j <= position;
    case CaseMask::mask_window:
        return j <= position && j > position - 256;
    default:
        return true;
    }
}

bool visible(const Case &c, int64_t i, int64_t j) {
    const int64_t position = i + c.kv_len - c.q_len;
    return (!c.causal || j <= position) && (c.window_left < 0 || j >= position - c.window_left);
}

double nominal_pairs(const Case &c) {
    const double heads = static_cast<double>(c.batch) * c.num_heads;
    const double all = static_cast<double>(c.q_len) * c.kv_len;
    if (!c.causal && c.window_left < 0) {
        return heads * all;
    }
    if (c.window_left < 0 && c.q_len == c.kv_len) {
        return heads * all / 2;
    }
    double pairs = 0;
    for (int64_t i = 0; i < c.q_len; i++) {
        const int64_t position = i + c.kv_len - c.q_len;
        const int64_t begin = c.window_left < 0 ? 0 : std::max<int64_t>(0, position - c.window_left);
        const int64_t end = c.causal ? std::min<int64_t>(c.kv_len, position + 1) : c.kv_len;
        pairs += static_cast<double>(std::max<int64_t>(0, end - begin));
    }
    return heads * pairs;
}

double nominal_flops(const Case &c) { return 2 * nominal_pairs(c) * (c.head_dim + c.head_dim_v); }

double kv_bytes(const Case &c) {
    const int64_t scale_bytes = 2 * scale_elements(c) * heed_reference::element_bytes(HEED_F32);
    const int64_t elements = int64_t{c.batch} * c.num_kv_heads * c.kv_len * (c.head_dim + c.head_dim_v);
    return static_cast<double>(elements * heed_reference::element_bytes(c.kv_dtype) + scale_bytes);
}

heed_problem make_problem(const Case &c, int threads) {
    heed_problem problem;
    heed_problem_init(&problem);
    problem.dtype = problem.bias_dtype = c.dtype;
    problem.kv_dtype = c.kv_dtype;
    problem.batch = c.batch;
    problem.num_heads = c.num_heads;
    problem.num_kv_heads = c.num_kv_heads;
    problem.head_dim = c.head_dim;
    problem.head_dim_v = c.head_dim_v;
    problem.max_q_len = c.q_len;
    problem.max_kv_len = c.kv_len;
    problem.position = HEED_BOTTOM_RIGHT;
    copy_logit_fields(c, &problem);
#define HEED_USE(name, used, ...) problem.used = c.used;
    HEED_HEAD_ARRAYS(HEED_USE)
#undef HEED_USE
    problem.dropout_p = c.dropout_p;
    problem.max_threads = threads;
    problem.q_layout = q_layout(c).strides;
    problem.k_layout = k_layout(c).strides;
    problem.v_layout = v_layout(c).strides;
    problem.out_layout = out_layout(c).strides;
    if (const TensorLayout pages = k_layout(c); pages.num_pages > 0) {
        problem.kv_storage = HEED_KV_PAGED;
        problem.has_kv_lens = true;
        problem.page_size = page_tokens;
        problem.num_pages = static_cast<int32_t>(pages.num_pages);
        problem.max_pages_per_seq = static_cast<int32_t>(pages.pages_of_batch);
    }
    problem.has_bias = has_bias(c);
    problem.has_mask = has_mask(c);
    if (problem.has_bias || problem.has_mask) {
        const std::array<int32_t, 4> shape = mask_shape(c);
        std::copy(shape.begin(), shape.end(), problem.has_bias ? problem.bias_shape : problem.mask_shape);
    }
    return problem;
}

}  // namespace heed_bench
