#include "generators/driver/linked_score_mod.h"

#include "generators/attention/check_score_mod.h"
#include "generators/attention/derivative.h"
#include "generators/attention/fast_math.h"
#include "generators/common/bad_input.h"

namespace heed {

namespace {

// Calls make(mod), whose exceptions become sentences of the option.
template <typename Make>
ScoreMod checked(const std::string &name, const Make &make) {
    try {
        const ScoreMod mod = score_mod();
        const bool empty = !mod.logit && !mod.visible && !mod.block_visible;
        if (empty != (name == "none")) {
            throw BadInput(empty ? "heed::score_mod() sets none of ScoreMod's logit, visible and block_visible"
                                 : "kernels of this generator must name it");
        }
        return make(mod);
    } catch (const std::exception &error) {
        throw BadInput("score_mod = '" + name + "' is not allowed: " + error.what());
    }
}

}  // namespace

ScoreMod linked_score_mod(const std::string &name, bool on_cuda) {
    return checked(name, [&](const ScoreMod &mod) {
        check_score_mod(mod, on_cuda);
        return with_fast_math(mod, on_cuda);
    });
}

ScoreMod linked_score_gradient(const std::string &name, bool on_cuda) {
    return checked(name, [&](const ScoreMod &mod) {
        const ScoreMod with_gradient = with_derivative(mod);
        check_score_mod(with_gradient, on_cuda);
        return with_fast_math(with_gradient, on_cuda);
    });
}

std::string score_mod_fields(const std::string &name, const ScoreMod &mod) {
    std::string types;
    for (const ScoreElement element : mod.buffers) types += element == ScoreElement::f32 ? 'f' : 'i';
    return "\"" + (name == "none" ? "" : name) + "\", \"" + types + "\"";
}

}  // namespace heed
