#include "generators/ops/dropout_mask.h"
#include "schedules/operation.h"

namespace heed {

using namespace Halide;

// A counter gives four bytes: a vector of counters per step, its words interleaved into the row's scratch, from where
// the row is copied at its own alignment.
OpModule make_dropout_mask(const OpSpec &spec) {
    DropoutMaskKernel kernel;
    constexpr int tile = 256;
    const int lanes = spec.machine().lanes;
    Var jt{"jt"}, ji{"ji"}, kc{"kc"}, kw{"kw"}, kct{"kct"};
    kernel.keep.split(kernel.j, jt, ji, tile, TailStrategy::GuardWithIf)
        .reorder(ji, jt, kernel.i)
        .vectorize(ji, 4 * lanes);
    kernel.kept.compute_at(kernel.keep, jt)
        .store_in(MemoryType::Stack)
        .align_bounds(kernel.k, 4)
        .bound_storage(kernel.k, tile + 8 * lanes)
        .split(kernel.k, kc, kw, 4, TailStrategy::RoundUp)
        .split(kc, kct, kc, lanes, TailStrategy::RoundUp)
        .reorder(kc, kw, kct, kernel.i)
        .vectorize(kc)
        .unroll(kw);
    kernel.words.compute_at(kernel.kept, kct)
        .store_in(MemoryType::Register)
        .vectorize(kernel.counter, lanes, TailStrategy::RoundUp);
    return compile(spec, kernel);
}

}  // namespace heed
