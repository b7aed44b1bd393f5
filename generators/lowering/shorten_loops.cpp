#include "generators/lowering/shorten_loops.h"

#include <algorithm>

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

Stmt ShortenLoops::visit(const For *op) {
    const bool asked = std::any_of(loops.begin(), loops.end(), [&](const std::string &loop) {
        return op->name == loop || ends_with(op->name, "." + loop);
    });
    if (!asked) return IRMutator::visit(op);
    // A loop that Halide partitioned has no constant extent.
    const bool whole = is_const(op->extent) || op->partition_policy == Partition::Never;
    if (op->for_type != ForType::Serial || !is_const_zero(op->min) || !whole) {
        throw CompileError("ShortenLoops: the loop over " + op->name + " is no whole serial one");
    }
    return For::make(op->name, op->min, min(op->extent, extent), op->for_type, op->partition_policy, op->device_api,
                     mutate(op->body));
}

}  // namespace heed
