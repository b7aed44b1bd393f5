#pragma once
// A kernel of an operation around attention. schedules/NAME_x86.cpp defines make_NAME() of every operation whose
// arguments on CPUs the contract lists: it makes the algorithm, schedules it and compiles it.
//
// Kernels are serial: the runtime hands each of its threads a block of rows that stays in the L1 cache. All but
// products, gradients, attention weights and the dropout mask are bound by memory: vectors along the elements of a row,
// one pass, no scratch beyond registers and the stack frame. Attention weights have a row in scratch (OpScratch).

#include <string>

#include "generators/common/element_type.h"
#include "generators/common/kernel_arguments.h"
#include "generators/contract/operations.h"
#include "generators/lowering/passes.h"
#include "heed/user_score.h"
#include "schedules/machine.h"

namespace heed {

// What is to be made: a kernel of the contract's table.
struct OpSpec {
    std::string name, dtype, kv_dtype, isa;
    Op op = Op::add;
    int rows = 0;             // linear and linear_rows of CPUs: of the register tile; others 0
    int head_dim = 0;         // attention_backward_keys and _queries: the largest; others 0
    ScoreMod score_mod = {};  // a user's, with its derivative, where may_have_score_mod()
    Halide::Target target;

    ElementType type() const { return element_type_of(dtype); }
    ElementType kv_type() const { return element_type_of(kv_dtype); }
    Machine machine() const { return machine_of(target); }
};

struct OpModule {
    Halide::Module module;
    int rows, columns;           // of the tile, where the runtime must know it
    bool streams_tiles = false;  // see generators/driver/tile_hints.h
};

#define HEED_DECLARE_MAKER(name, cpu, cuda, ...) OpModule make_##name(const OpSpec &spec);
HEED_OPERATIONS(HEED_DECLARE_MAKER)
#undef HEED_DECLARE_MAKER

// Compiles an algorithm that has been scheduled. Throws BadInput where its outputs are not those of the contract.
template <typename Kernel>
OpModule compile(const OpSpec &spec, const Kernel &kernel, const Passes &passes = {}, int rows = 0, int columns = 0) {
    Halide::Pipeline pipeline = kernel.pipeline();
    passes.add_to(pipeline);
    const Halide::Module module = pipeline.compile_to_module(kernel.arguments(), spec.name, spec.target);
    check_outputs(module, kernel.output_types());
    passes.check();
    return {module, rows, columns};
}

// Schedules sums over all rows of at most sum_columns columns: those of a block of rows, in the stack frame, then
// `sums` of them.
void sum_by_blocks(Halide::Func &sums, const Halide::RVar &over_blocks, Halide::Func &of_block,
                   const Halide::RVar &over_block, const Halide::Var &block, const Halide::Var &column, int lanes);

}  // namespace heed
