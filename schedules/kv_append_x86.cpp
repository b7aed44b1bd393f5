#include "generators/ops/kv_append.h"
#include "schedules/operation.h"

namespace heed {

using namespace Halide;

OpModule make_kv_append(const OpSpec &spec) {
    KvAppendKernel kernel(spec.type());
    RVar outer{"outer"}, inner{"inner"};
    Var lane{"lane"};
    const int lanes = spec.machine().lanes;
    kernel.codes.reorder(kernel.d, kernel.head, kernel.token).vectorize(kernel.d, 4 * lanes, TailStrategy::GuardWithIf);
    kernel.scale.reorder(kernel.head, kernel.token);
    kernel.magnitude.compute_at(kernel.scale, kernel.head).store_in(MemoryType::Register);
    kernel.magnitude.update().split(kernel.over_d, outer, inner, lanes, TailStrategy::GuardWithIf);
    Func by_lane = kernel.magnitude.update().rfactor(inner, lane);
    by_lane.compute_at(kernel.scale, kernel.head)
        .store_in(MemoryType::Register)
        .bound_extent(lane, lanes)
        .vectorize(lane, lanes, TailStrategy::RoundUp)
        .update()
        .reorder(lane, outer)
        .vectorize(lane);
    return compile(spec, kernel);
}

}  // namespace heed
