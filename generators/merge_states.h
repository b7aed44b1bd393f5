#pragma once
// Merges attention states over disjoint key sets: out = sum_n w_n x_n with w_n = exp(lse_n - lse), where lse is the
// logarithm of the sum of all exp(lse_n) and of exp(sink).
//
// A state without keys (lse_n = -inf) changes no bit, whatever its x holds; a single state comes out bit by bit.
// Without any key out = +0. NaN in lse or sink gives NaN in that row.

#include "element_type.h"

namespace heed {

struct MergeStatesKernel {
    ElementType type;
    Halide::ImageParam x;                                   // (d, row, state)
    Halide::ImageParam lse{Halide::Float(32), 2, "lse"};    // (row, state)
    Halide::ImageParam sink{Halide::Float(32), 1, "sink"};  // (row), -inf = none

    Halide::Var d{"d"}, row{"row"}, state{"state"};
    Halide::RDom over_states;
    Halide::Func row_max{"row_max"};      // (row) largest lse_n or sink
    Halide::Func row_sum{"row_sum"};      // (row) sum relative to row_max, 0 without keys and sink
    Halide::Func weights{"weights"};      // (row, state)
    Halide::Func num_keyed{"num_keyed"};  // (row) states with keys
    Halide::Func sum{"sum"};              // (d, row)
    Halide::Func merged_lse{"merged_lse"}, out{"out"};

    explicit MergeStatesKernel(ElementType type);

    std::vector<Halide::Argument> arguments() const { return {x, lse, sink}; }
    Halide::Pipeline pipeline() const { return Halide::Pipeline({row_max, row_sum, weights, merged_lse, out}); }

private:
    void state_buffer_contract();
};

}  // namespace heed
