#include "generators/lowering/prefetch_line.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

Stmt prefetch_line(const std::string &buffer, const Expr &offset, Wanted wanted) {
    const Expr address = reinterpret(UInt(64), Variable::make(Handle(), buffer)) + cast<uint64_t>(offset);
    const Expr writes = wanted == Wanted::to_write ? 1 : 0, locality = wanted == Wanted::in_l2 ? 2 : 3, data = 1;
    return Evaluate::make(Call::make(Int(32), "llvm.prefetch.p0",
                                     {reinterpret(Handle(), address), writes, locality, data}, Call::Extern));
}

}  // namespace heed
