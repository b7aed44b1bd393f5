#pragma once
// Where buffers of a kernel are on the device.
//
// Attention kernels take buffers, whose tensors they access by addresses (common/device_memory.h): a load of a buffer's
// own elements would bring Halide's care for its copies. The host reads the address from the buffer; in device code it
// is a parameter of the launch.

#include <map>
#include <string>

#include "Halide.h"

namespace heed {

// Lowers address_of().
class HostAddresses : public Halide::Internal::IRMutator {
public:
    explicit HostAddresses(std::string output) : output(std::move(output)) {}

private:
    const std::string output;
    std::map<std::string, Halide::Expr> addresses;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::ProducerConsumer *op) override;
    Halide::Expr visit(const Halide::Internal::Call *op) override;
};

}  // namespace heed
