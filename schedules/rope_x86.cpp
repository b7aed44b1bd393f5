#include "generators/ops/rope.h"
#include "schedules/operation.h"

namespace heed {

using namespace Halide;

// Both parts of a vector of pairs are computed before either is stored: out may be x. Interleaved pairs leave as one
// dense store of both parts.
OpModule make_rope(const OpSpec &spec) {
    RopeKernel kernel(spec.type());
    Var no{"no"}, ni{"ni"};
    const int lanes = spec.machine().lanes;
    kernel.out.bound(kernel.part, 0, 2)
        .split(kernel.n, no, ni, lanes, TailStrategy::GuardWithIf)
        .reorder(ni, kernel.part, no, kernel.head, kernel.token)
        .vectorize(ni)
        .unroll(kernel.part);
    kernel.rotated.compute_at(kernel.out, no)
        .store_in(MemoryType::Stack)
        .bound_extent(kernel.part, 2)
        .bound_extent(kernel.head, 1)
        .bound_extent(kernel.token, 1)
        .bound_storage(kernel.n, lanes)
        .reorder(kernel.n, kernel.part, kernel.head, kernel.token)
        .vectorize(kernel.n, lanes, TailStrategy::GuardWithIf)
        .unroll(kernel.part);
    kernel.out.specialize(kernel.is_half_split());
    kernel.out.specialize(kernel.is_interleaved());
    kernel.out.specialize_fail("the pairs are neither half-split nor interleaved");
    return compile(spec, kernel);
}

}  // namespace heed
