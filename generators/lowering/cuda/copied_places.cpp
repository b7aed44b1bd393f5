#include "generators/lowering/cuda/copied_places.h"

#include <algorithm>

#include "generators/common/bad_input.h"
#include "generators/lowering/cuda/accessed_arrays.h"
#include "generators/lowering/cuda/take_stages.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

CopiedPlaces::CopiedPlaces(const For *loop, Stmt *body, const std::vector<SharedCopy *> &copies,
                           const std::map<std::string, int> &elements, int buffers)
    : loop(loop), buffers(buffers) {
    const std::set<std::string> stored = accesses_in(*body).stored;
    for (const SharedCopy *copy : copies) {
        for (const std::string &array : accesses_in(copy->address).read) {
            if (stored.count(array) != 0) sizes[array] = elements.at(array);
        }
    }
    if (sizes.empty()) return;
    const auto is_place = [&](const std::string &array) { return sizes.count(array) != 0; };
    TakeStages take([&](const ProducerConsumer *stage) {
        const std::set<std::string> arrays = accesses_in(stage->body).stored;
        return !arrays.empty() && std::all_of(arrays.begin(), arrays.end(), is_place);
    });
    *body = take.mutate(*body);
    stages = take.taken;
    lets = take.lets;
    const AccessedArrays left = accesses_in(*body);
    for (const auto &[array, size] : sizes) {
        if (left.read.count(array) != 0 || left.stored.count(array) != 0) {
            throw BadInput(array + " says where copies are, and is used otherwise");
        }
    }
    for (SharedCopy *copy : copies) copy->address = in_buffer().mutate(copy->address);
}

InBuffer CopiedPlaces::in_buffer() const {
    return {sizes, Variable::make(Int(32), loop->name) % buffers, InBuffer::Stores::move};
}

Stmt CopiedPlaces::find(const Expr &step, const Expr &steps) const {
    if (stages.empty()) return Evaluate::make(0);
    const Stmt all = in_buffer().mutate(Block::make(stages));
    return IfThenElse::make(step < steps, substitute(loop->name, step, substitute(lets, all)));
}

}  // namespace heed
