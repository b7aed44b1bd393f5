#include "generators/cuda/launch.h"

#include <stdexcept>

namespace heed::cuda {

using namespace Halide;
using namespace Halide::Internal;

namespace {

std::string block_loop(const std::string &name) { return name + ".block_id_x"; }
std::string thread_loop(const std::string &name) { return name + ".thread_id_x"; }

Stmt gpu_loop(const std::string &name, const Expr &extent, ForType type, const Stmt &body) {
    return For::make(name, 0, extent, type, Partition::Never, DeviceAPI::CUDA, body);
}

// A lowering pass that replaces what computes the Func `output`, whatever it is.
class InsertLaunch : public IRMutator {
public:
    InsertLaunch(std::string output, const Launch &launch) : output(std::move(output)), launch(launch) {}
    int replaced = 0;

private:
    const std::string output;
    const Launch &launch;

    using IRMutator::visit;
    Stmt visit(const ProducerConsumer *op) override {
        if (!op->is_producer || op->name != output) return IRMutator::visit(op);
        replaced++;
        const std::string blocks = unique_name("blocks");
        Stmt body = gpu_loop(thread_loop(launch.name), launch.threads, ForType::GPUThread, launch.program);
        if (launch.shared_bytes > 0) {
            body = Allocate::make(launch.name + ".shared", UInt(8), MemoryType::GPUShared, {Expr(launch.shared_bytes)},
                                  const_true(), body);
        }
        body = gpu_loop(block_loop(launch.name), Variable::make(Int(32), blocks), ForType::GPUBlock, body);
        body = LetStmt::make(blocks, simplify(launch.blocks), body);
        for (auto value = launch.host_values.rbegin(); value != launch.host_values.rend(); ++value) {
            body = LetStmt::make(value->first, simplify(value->second), body);
        }
        for (const DeviceTensor &tensor : launch.tensors) body = tensor.define(body);
        return ProducerConsumer::make_produce(op->name, body);
    }
};

}  // namespace

Expr Launch::block(const std::string &name) { return Variable::make(Int(32), block_loop(name)); }
Expr Launch::thread(const std::string &name) { return Variable::make(Int(32), thread_loop(name)); }

Stmt DeviceTensor::define(const Stmt &body) const {
    const Expr buffer = Variable::make(type_of<halide_buffer_t *>(), name + ".buffer");
    auto get = [&](Type type, const std::string &what, const std::vector<Expr> &args) {
        return Call::make(type, "_halide_buffer_get_" + what, args, Call::Extern);
    };
    Stmt result = body;
    for (int i = 0; i < dimensions; i++) {
        result =
            LetStmt::make(name + ".device_extent." + std::to_string(i), get(Int(32), "extent", {buffer, i}), result);
        result =
            LetStmt::make(name + ".device_stride." + std::to_string(i), get(Int(32), "stride", {buffer, i}), result);
    }
    return LetStmt::make(name + ".address", get(UInt(64), "device", {buffer}), result);
}

Module launch_module(const std::string &name, Func output, const std::vector<OutputType> &types,
                     const std::vector<Argument> &arguments, const Launch &launch, const Target &target) {
    std::vector<Var> vars;
    const int dimensions = types[0].dimensions;
    for (int i = 0; i < dimensions; i++) vars.emplace_back("x" + std::to_string(i));
    std::vector<Expr> values;
    for (const OutputType &type : types) values.push_back(make_zero(type.type));
    output(vars) = Tuple(values);
    // Some loops over blocks and threads, for the launch to replace.
    output.gpu_single_thread();
    for (int i = 0; i < dimensions; i++) output.output_buffers()[0].dim(i).set_min(0);
    for (size_t i = 1; i < types.size(); i++) output.output_buffers()[i].dim(0).set_stride(Expr());

    InsertLaunch insert(output.name(), launch);
    Pipeline pipeline(output);
    pipeline.add_custom_lowering_pass(&insert, [] {});
    Module module = pipeline.compile_to_module(arguments, name, target);
    if (insert.replaced != 1) {
        throw std::runtime_error("the launch went to " + std::to_string(insert.replaced) + " places, not 1");
    }
    return module;
}

}  // namespace heed::cuda
