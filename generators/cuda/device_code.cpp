#include "generators/cuda/device_code.h"

#include "generators/common/serial_loop.h"

namespace heed::cuda {

using namespace Halide;
using namespace Halide::Internal;

Expr Registers::operator[](int i) const {
    return Load::make(type, name, i, Buffer<>(), Parameter(), const_true(), ModulusRemainder());
}

Expr DeviceCode::let(const std::string &name, const Expr &value) {
    const std::string unique = unique_name(name);
    const Expr simple = common_subexpression_elimination(simplify(value));
    steps.push_back([=](const Stmt &rest) { return LetStmt::make(unique, simple, rest); });
    return Variable::make(value.type(), unique);
}

Registers DeviceCode::registers(const std::string &name, Type type, int count) {
    const Registers result{unique_name(name), type};
    steps.push_back([=](const Stmt &rest) {
        return Allocate::make(result.name, type, MemoryType::Register, {Expr(count)}, const_true(), rest);
    });
    return result;
}

void DeviceCode::set(const Registers &registers, int i, const Expr &value) {
    append(Store::make(registers.name, common_subexpression_elimination(simplify(value)), i, Parameter(), const_true(),
                       ModulusRemainder()));
}

void DeviceCode::run(const Expr &call) { append(Evaluate::make(common_subexpression_elimination(simplify(call)))); }

void DeviceCode::when(const Expr &condition, const std::function<void()> &then,
                      const std::function<void()> &otherwise) {
    append(IfThenElse::make(simplify(condition), nested(then), otherwise ? nested(otherwise) : Stmt()));
}

void DeviceCode::loop(const std::string &name, const Expr &count, const std::function<void(Expr)> &body) {
    const std::string unique = unique_name(name);
    const Expr i = Variable::make(Int(32), unique);
    append(serial_loop(unique, 0, simplify(count), nested([&] { body(i); })));
}

Stmt DeviceCode::finish() {
    Stmt result = Evaluate::make(0);
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
        result = (*step)(result);
    }
    steps.clear();
    return result;
}

void DeviceCode::append(const Stmt &statement) {
    steps.push_back([=](const Stmt &rest) { return Block::make(statement, rest); });
}

Stmt DeviceCode::nested(const std::function<void()> &body) {
    std::vector<Step> outer;
    outer.swap(steps);
    body();
    Stmt result = finish();
    steps.swap(outer);
    return result;
}

}  // namespace heed::cuda
