#pragma once
// Writes device code: statements in the order in which a thread runs them, as Halide IR. Expressions are Halide's own
// (score_mod.h serves here too) and intrinsics.h; what an expression reads from Registers it reads where the statement
// that uses it is.

#include <functional>
#include <string>
#include <vector>

#include "Halide.h"

namespace heed::cuda {

// An array of registers of each thread; only constant indices.
struct Registers {
    std::string name;
    Halide::Type type;

    Halide::Expr operator[](int i) const;
};

class DeviceCode {
public:
    // The value, computed here.
    Halide::Expr let(const std::string &name, const Halide::Expr &value);
    Registers registers(const std::string &name, Halide::Type type, int count);
    void set(const Registers &registers, int i, const Halide::Expr &value);
    // A call for its effect.
    void run(const Halide::Expr &call);
    void when(const Halide::Expr &condition, const std::function<void()> &then,
              const std::function<void()> &otherwise = nullptr);
    // body(i) for i = 0 .. count - 1, Int(32).
    void loop(const std::string &name, const Halide::Expr &count, const std::function<void(Halide::Expr)> &body);

    // All of it, once.
    Halide::Internal::Stmt finish();

private:
    // Makes a statement from the one after it.
    using Step = std::function<Halide::Internal::Stmt(const Halide::Internal::Stmt &)>;
    std::vector<Step> steps;

    void append(const Halide::Internal::Stmt &statement);
    Halide::Internal::Stmt nested(const std::function<void()> &body);
};

}  // namespace heed::cuda
