#include "generators/common/array_names.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

std::string name_of_array(const Stmt &kernel, const std::string &name) {
    struct Find : IRVisitor {
        const std::string begin;
        std::string found;
        explicit Find(std::string begin) : begin(std::move(begin)) {}
        using IRVisitor::visit;
        void visit(const Allocate *op) override {
            const bool fits = op->name.compare(0, begin.size(), begin) == 0;
            if (fits && op->name.find_first_not_of("0123456789", begin.size()) == std::string::npos) found = op->name;
            IRVisitor::visit(op);
        }
    } find(name + ".");
    kernel.accept(&find);
    return find.found.empty() ? name : find.found;
}

std::string func_of_array(std::string array) {
    for (size_t dot = array.rfind('.'); dot != std::string::npos; dot = array.rfind('.')) {
        if (array.find_first_not_of("0123456789", dot + 1) != std::string::npos) break;
        array.resize(dot);
    }
    return array;
}

}  // namespace heed
