#include "generators/lowering/cuda/host_addresses.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

Stmt HostAddresses::visit(const ProducerConsumer *op) {
    if (!op->is_producer || op->name != output) return IRMutator::visit(op);
    Stmt body = mutate(op->body);
    for (const auto &[name, value] : addresses) body = LetStmt::make(name, value, body);
    return ProducerConsumer::make_produce(op->name, body);
}

Expr HostAddresses::visit(const Call *op) {
    if (op->name != "heed_address_of") return IRMutator::visit(op);
    const std::string name = op->args[0].as<Variable>()->name + ".address";
    addresses[name] = Call::make(UInt(64), "_halide_buffer_get_device", op->args, Call::Extern);
    return Variable::make(UInt(64), name);
}

}  // namespace heed
