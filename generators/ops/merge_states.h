#pragma once
// Merges attention states over disjoint key sets: out = sum_n w_n x_n with w_n = exp(lse_n - lse), where lse is the
// logarithm of the sum of all exp(lse_n) and of exp(sink).
//
// A state without keys (lse_n = -inf) changes no bit, whatever its x holds; a single state comes out bit by bit.
// Without any key out = +0. NaN in lse or sink gives NaN in that row.

#include "generators/common/kernel_arguments.h"
#include "generators/contract/operation_arguments.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(MergeStatesArguments, HEED_MERGE_STATES)

struct MergeStatesKernel : MergeStatesArguments {
    Halide::Var d{"d"}, row{"row"}, state{"state"};
    Halide::RDom over_states;
    Halide::Func row_max{"row_max"};      // (row) largest lse_n or sink
    Halide::Func row_sum{"row_sum"};      // (row) sum relative to row_max, 0 without keys and sink
    Halide::Func weights{"weights"};      // (row, state)
    Halide::Func num_keyed{"num_keyed"};  // (row) states with keys
    Halide::Func sum{"sum"};              // (d, row)
    Halide::Func merged_lse{"merged_lse"}, out{"out"};

    explicit MergeStatesKernel(ElementType type);

    Halide::Pipeline pipeline() const { return Halide::Pipeline({row_max, row_sum, weights, merged_lse, out}); }

private:
    void state_buffer_contract();
};

}  // namespace heed
