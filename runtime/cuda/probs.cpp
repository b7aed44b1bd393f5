#include "cuda/probs.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

#include "cuda/op_session.h"
#include "cuda/sequence_words.h"
#include "make_call.h"
#include "status.h"

namespace heed {
namespace {

// A launch numbers its rows with 32 bits.
heed_status check_size(const heed_problem &p) {
    int64_t rows = 0;
    if (checked_mul(int64_t{p.num_heads} * probs_sequences, p.max_q_len, &rows) && rows <= (int64_t{1} << 30)) {
        return HEED_OK;
    }
    return fail(HEED_UNSUPPORTED, "num_heads * max_q_len is %d * %d; heed_attention_probs on CUDA serves up to 2^25",
                p.num_heads, p.max_q_len);
}

// The metadata's values, before anything is written.
heed_status check_sequences(const heed_plan &plan, const heed_args &args) {
    SequenceReader reader(plan.problem, args);
    heed_status status = reader.start();
    Sequence sequence;
    for (int32_t b = 0; b < plan.problem.batch && !status; b++) status = reader.next(&sequence);
    return status ? status : reader.finish();
}

class ProbsLaunches {
public:
    ProbsLaunches(const heed_plan &plan, const heed_args &args, heed_probs_mode mode, const heed_tensor &out,
                  const View &probs)
        : plan_(plan), args_(args), call_(make_call(plan, args)), mode_(mode), as_f32_(out.dtype == HEED_F32),
          out_{reinterpret_cast<uintptr_t>(out.data)}, named_{out.data, HEED_U8, 1, {1}, {1}} {
        for (int i = 0; i < 3; i++) out_[1 + i] = static_cast<uint64_t>(probs.stride[i] * dtype_bytes(out.dtype));
    }

    heed_status run(cuda::OpSession *session) {
        const heed_problem &p = plan_.problem;
        SequenceReader reader(p, args_);
        heed_status status = reader.start();
        uint64_t words[probs_sequences * words_per_sequence] = {};
        for (int32_t b = 0; b < p.batch && !status; b++) {
            Sequence sequence;
            status = reader.next(&sequence);
            const int32_t n = b % probs_sequences;
            if (!status) pack_sequence(p, sequence, words + n * words_per_sequence);
            if (!status && (n == probs_sequences - 1 || b == p.batch - 1))
                status = launch(session, words, b - n, n + 1);
        }
        return status ? status : reader.finish();
    }

private:
    heed_status launch(cuda::OpSession *session, const uint64_t (&words)[probs_sequences * words_per_sequence],
                       int32_t first, int32_t count) {
        const heed_problem &p = plan_.problem;
        const int32_t symmetric = p.alibi_symmetric;
        OpArgument arguments[max_op_arguments];
        OpArgument *next = arguments;
        for (const KernelBuffer *x :
             {&call_.q, &call_.k, &call_.mask, &call_.bias, &call_.bias_16, &call_.sink, &call_.alibi_slopes}) {
            *next++ = *x;
        }
        next = std::copy(std::begin(words), std::end(words), next);
        for (const int32_t *x :
             std::initializer_list<const int32_t *>{&count, &first, &p.max_q_len, &p.max_kv_len, &mode_,
                                                    &call_.mask_form, &call_.bias_form, &symmetric, &as_f32_}) {
            *next++ = *x;
        }
        *next++ = call_.scale;
        *next++ = call_.softcap;
        next = std::copy(std::begin(out_), std::end(out_), next);
        *next++ = named_;
        return cuda::launch_op(session->row(), arguments, static_cast<int>(next - arguments), session->launches());
    }

    const heed_plan &plan_;
    const heed_args &args_;
    const KernelCall call_;
    const int32_t mode_, as_f32_;
    uint64_t out_[4];  // address, strides in bytes
    const KernelBuffer named_;
};

}  // namespace

heed_status probs_on_cuda(const heed_plan &plan, const heed_args &args, heed_probs_mode mode, const heed_tensor &out,
                          const View &probs) {
    const heed_problem &p = plan.problem;
    if (p.metadata_on_device || p.kv_storage == HEED_KV_PAGED || p.kv_dtype == HEED_I8) {
        return fail(HEED_UNSUPPORTED,
                    "heed_attention_probs on CUDA serves neither metadata_on_device nor paged or "
                    "int8 keys in Heed %s",
                    heed_version());
    }
    heed_status status = check_size(p);
    if (!status) status = check_sequences(plan, args);
    if (status) return status;
    cuda::OpSession session;
    heed_execution execution = {};
    execution.stream = args.stream;
    status = session.open(execution, Op::attention_probs, p.dtype, p.kv_dtype);
    if (status) return status;
    heed_args a = args;
    a.workspace = args.q.data;  // no launch touches what would lie there
    return ProbsLaunches(plan, a, mode, out, probs).run(&session);
}

}  // namespace heed
