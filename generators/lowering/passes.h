#pragma once
// The lowering passes that a schedule asks for, in the order in which they run, after Halide's own. Why Halide needs
// each is said in its header; docs/internals/lowering.md has them on one page.

#include <memory>
#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

class Passes {
public:
    // `finds`: in how many places the pass must find its work.
    template <typename Pass, typename... Args>
    void add_exactly(int finds, const std::string &what, Args &&...args) {
        auto pass = std::make_shared<Pass>(std::forward<Args>(args)...);
        checks.push_back({what, finds, [pass] { return pass->found; }});
        passes.push_back(pass);
    }
    template <typename Pass, typename... Args>
    void add(Args &&...args) {
        passes.push_back(std::make_shared<Pass>(std::forward<Args>(args)...));
    }

    // Until the pipeline has been compiled, this must live.
    void add_to(Halide::Pipeline &pipeline) const;

    // Throws BadInput, after the compilation, when a pass found its work in other places than it must.
    void check() const;

private:
    struct Check {
        std::string what;
        int finds;
        std::function<int()> found;
    };
    std::vector<std::shared_ptr<Halide::Internal::IRMutator>> passes;
    std::vector<Check> checks;
};

}  // namespace heed
