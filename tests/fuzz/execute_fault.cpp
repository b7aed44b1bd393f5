// The caller's mistakes, and what the contract says of each.
#include "tests/fuzz/execute_case.h"

#include "runtime/reference/element.h"

namespace heed_test {
namespace {

struct Words {
    int32_t *values;
    int64_t count;
};

// Each array of the call's metadata, in memory of the test's own.
std::vector<Words> metadata_of(const heed_problem &p, const heed_args &args) {
    const auto words = [](const int32_t *values, int64_t count) { return Words{const_cast<int32_t *>(values), count}; };
    std::vector<Words> arrays;
    if (p.q_storage == HEED_Q_VARLEN) arrays.push_back(words(args.cu_seqlens_q, p.batch + 1));
    if (p.kv_storage == HEED_KV_VARLEN) arrays.push_back(words(args.cu_seqlens_kv, p.batch + 1));
    if (p.has_kv_lens) arrays.push_back(words(args.kv_lens, p.batch));
    if (p.kv_storage == HEED_KV_PAGED) arrays.push_back(words(args.page_table, p.batch * p.max_pages_per_seq));
    return arrays;
}

bool valid_prefix_sums(const int32_t *sums, int32_t batch, int64_t longest, int64_t total) {
    for (int32_t b = 0; b < batch; b++) {
        const int64_t length = int64_t{sums[b + 1]} - sums[b];
        if (length < 0 || length > longest) return false;
    }
    return sums[0] == 0 && sums[batch] == total;
}

bool valid_pages(const heed_problem &p, const heed_args &args, int32_t b) {
    const int64_t columns = (int64_t{args.kv_lens[b]} + p.page_size - 1) / p.page_size;
    if (columns > p.max_pages_per_seq) return false;
    for (int64_t i = 0; i < columns; i++) {
        const int32_t page = args.page_table[int64_t{b} * p.max_pages_per_seq + i];
        if (page < 0 || page >= p.num_pages) return false;
    }
    return true;
}

bool valid_metadata(const heed_problem &p, const heed_args &args) {
    if (p.q_storage == HEED_Q_VARLEN && !valid_prefix_sums(args.cu_seqlens_q, p.batch, p.max_q_len, p.total_q)) {
        return false;
    }
    if (p.kv_storage == HEED_KV_VARLEN && !valid_prefix_sums(args.cu_seqlens_kv, p.batch, p.max_kv_len, p.total_kv)) {
        return false;
    }
    for (int32_t b = 0; p.has_kv_lens && b < p.batch; b++) {
        if (args.kv_lens[b] < 0 || args.kv_lens[b] > p.max_kv_len) return false;
        if (p.kv_storage == HEED_KV_PAGED && !valid_pages(p, args, b)) return false;
    }
    return true;
}

heed_tensor *read_tensor(ByteReader *bytes, const heed_problem &p, heed_args *args) {
    std::vector<heed_tensor *> tensors = {&args->q, &args->k, &args->v, &args->out};
    if (p.want_lse) tensors.push_back(&args->lse);
    if (p.has_mask && p.max_kv_len > 0) tensors.push_back(&args->mask);
    if (p.has_bias && p.max_kv_len > 0) tensors.push_back(&args->bias);
    if (p.kv_dtype == HEED_I8) tensors.insert(tensors.end(), {&args->k_scale, &args->v_scale});
    return tensors[bytes->get<uint8_t>() % tensors.size()];
}

}  // namespace

heed_status make_fault(const ExecuteCase &c, ByteReader *bytes, Call *call) {
    using Fault = ExecuteCase::Fault;
    const heed_problem &p = call->problem;
    heed_args &args = call->args;
    if (c.fault == Fault::none || p.batch == 0 || p.max_q_len == 0) return HEED_OK;
    if (c.fault == Fault::metadata) {
        for (const Words &words : metadata_of(p, args)) {
            const int32_t value = bytes->flag() ? bytes->between(-2, 60) : bytes->get<int32_t>();
            if (words.count > 0) words.values[bytes->get<uint8_t>() % words.count] = value;
        }
        return valid_metadata(p, args) ? HEED_OK : HEED_INVALID_ARGUMENT;
    }
    if (c.fault == Fault::workspace) {
        if (args.workspace_bytes == 0) return HEED_OK;
        args.workspace_bytes--;
        return HEED_WORKSPACE_TOO_SMALL;
    }
    heed_tensor *const tensor = read_tensor(bytes, p, &args);
    if (tensor->size == 0) return HEED_OK;
    if (c.fault == Fault::capacity) {
        tensor->size--;
        return HEED_INVALID_ARGUMENT;
    }
    if (c.fault == Fault::missing) {
        tensor->data = nullptr;
        return HEED_INVALID_ARGUMENT;
    }
    if (element_bytes(tensor->dtype) == 1) return HEED_OK;
    tensor->data = static_cast<char *>(tensor->data) + 1;
    return HEED_INVALID_ARGUMENT;
}

}  // namespace heed_test
