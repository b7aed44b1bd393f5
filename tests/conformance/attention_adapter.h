// ONNX's Attention as a problem of Heed: the one place that knows both. It reshapes, transposes, joins the past and
// pads a short mask; causal, windows, lengths and positions stay fields of the problem.
#pragma once

#include "runtime/reference/case_file.h"
#include "tests/conformance/onnx_case.h"

namespace heed_conformance {

struct AttentionCase {
    heed_reference::Case call;
    // What to expect, by ONNX's names. Y has four axes, as heed_reference::make_out() of `call` has.
    std::map<std::string, Array> outputs;
    heed_probs_mode probs_mode = HEED_PROBS_SCORES;  // of qk_matmul_output
};

// Throws InvalidInput for a case that is none of Attention.
AttentionCase adapt_attention(const OnnxCase &onnx);

}  // namespace heed_conformance
