#include "generators/lowering/passes.h"

#include "generators/common/bad_input.h"

namespace heed {

void Passes::add_to(Halide::Pipeline &pipeline) const {
    for (const auto &pass : passes) pipeline.add_custom_lowering_pass(pass.get(), [] {});
}

void Passes::check() const {
    for (const Check &check : checks) {
        if (check.found() == check.finds) continue;
        throw BadInput(check.what + ": found " + std::to_string(check.found()) + " times; it must be " +
                       std::to_string(check.finds));
    }
}

}  // namespace heed
