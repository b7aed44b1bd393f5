#include "generators/attention/derivative.h"

#include <map>
#include <stdexcept>

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// Forward mode over one expression: the rule of each node, and `none` where the variable does not reach. Halide's own
// autodiff works on Funcs, whose gradients are sums that a schedule would have to place; a score function is pointwise.
class Derivative : public IRVisitor {
public:
    explicit Derivative(const std::string &name) { of_names[name] = 1.f; }

    // Undefined: 0.
    Expr of(const Expr &e) {
        const auto known = results.find(e);
        if (known != results.end()) return known->second;
        result = Expr();
        e.accept(this);
        return results[e] = result;
    }

private:
    using IRVisitor::visit;

    std::map<std::string, Expr> of_names;
    std::map<Expr, Expr, ExprCompare> results;
    Expr result;

    static Expr sum(const Expr &a, const Expr &b) { return !a.defined() ? b : b.defined() ? a + b : a; }
    static Expr times(const Expr &a, const Expr &factor) { return a.defined() ? a * factor : a; }
    static Expr or_zero(const Expr &e, const Type &type) { return e.defined() ? e : make_zero(type); }
    static Expr choose(const Expr &condition, const Expr &a, const Expr &b, const Type &type) {
        if (!a.defined() && !b.defined()) return Expr();
        return select(condition, or_zero(a, type), or_zero(b, type));
    }

    void visit(const Variable *op) override {
        const auto found = of_names.find(op->name);
        result = found == of_names.end() ? Expr() : found->second;
    }
    void visit(const Cast *op) override {
        const Expr of_value = of(op->value);
        result = of_value.defined() && op->type.is_float() ? Expr(cast(op->type, of_value)) : Expr();
    }
    void visit(const Reinterpret *op) override { refuse_if_reached(op->value, "reinterpret"); }
    void visit(const Add *op) override { result = sum(of(op->a), of(op->b)); }
    void visit(const Sub *op) override {
        const Expr a = of(op->a), b = of(op->b);
        result = b.defined() ? sum(a, -b) : a;
    }
    void visit(const Mul *op) override { result = sum(times(of(op->a), op->b), times(of(op->b), op->a)); }
    void visit(const Div *op) override {
        const Expr a = of(op->a), b = of(op->b);
        const Expr first = a.defined() ? a / op->b : a;
        result = b.defined() ? sum(first, -(b * op->a / (op->b * op->b))) : first;
    }
    void visit(const Mod *op) override {
        refuse_if_reached(op->b, "%");
        result = of(op->a);
    }
    void visit(const Min *op) override { result = choose(op->a <= op->b, of(op->a), of(op->b), op->type); }
    void visit(const Max *op) override { result = choose(op->a >= op->b, of(op->a), of(op->b), op->type); }
    void visit(const Select *op) override {
        result = choose(op->condition, of(op->true_value), of(op->false_value), op->type);
    }
    void visit(const Let *op) override {
        of_names[op->name] = of(op->value);
        const Expr body = of(op->body);
        result = body.defined() ? Let::make(op->name, op->value, body) : body;
    }
    void visit(const Call *op) override {
        bool reached = false;
        for (const Expr &argument : op->args) reached = of(argument).defined() || reached;
        result = reached ? of_call(op) : Expr();
    }

    void refuse_if_reached(const Expr &e, const std::string &what) {
        if (of(e).defined()) {
            throw std::runtime_error("there is no derivative of " + what + " here: give ScoreMod::logit_derivative");
        }
        result = Expr();
    }

    Expr of_call(const Call *op) {
        const Expr x = op->args[0], by = of(x), value = op;
        const auto is = [&](const char *name) { return op->name == std::string(name) + "_f32"; };
        if (op->is_intrinsic(Call::abs)) return by * select(x < 0.f, -1.f, 1.f);
        if (op->is_strict_float_intrinsic() || op->is_intrinsic(Call::likely)) return of_arithmetic(op);
        if (is("floor") || is("ceil") || is("round") || is("trunc")) return Expr();
        if (!by.defined()) refuse_if_reached(op->args.back(), op->name);
        if (is("exp")) return by * value;
        if (is("log")) return by / x;
        if (is("tanh")) return by * (1.f - value * value);
        if (is("sqrt")) return by / (2.f * value);
        if (is("sin")) return by * cos(x);
        if (is("cos")) return -(by * sin(x));
        if (is("atan")) return by / (1.f + x * x);
        if (is("pow")) {
            refuse_if_reached(op->args[1], "pow by its exponent");
            return by * op->args[1] * pow(x, op->args[1] - 1.f);
        }
        refuse_if_reached(x, op->name);
        return Expr();
    }

    // What strict_float() and likely() wrap.
    Expr of_arithmetic(const Call *op) {
        const std::vector<Expr> &args = op->args;
        if (op->is_intrinsic(Call::strict_add)) return of(args[0] + args[1]);
        if (op->is_intrinsic(Call::strict_sub)) return of(args[0] - args[1]);
        if (op->is_intrinsic(Call::strict_mul)) return of(args[0] * args[1]);
        if (op->is_intrinsic(Call::strict_div)) return of(args[0] / args[1]);
        if (op->is_intrinsic(Call::strict_min)) return of(min(args[0], args[1]));
        if (op->is_intrinsic(Call::strict_max)) return of(max(args[0], args[1]));
        if (args.size() == 1) return of(args[0]);
        return Expr();
    }
};

}  // namespace

Expr derivative(const Expr &value, const std::string &name) {
    const Expr found = Derivative(name).of(value);
    return found.defined() ? found : make_zero(value.type());
}

ScoreMod with_derivative(ScoreMod mod) {
    if (!mod.logit || mod.logit_derivative) return mod;
    mod.logit_derivative = [logit = mod.logit](const Expr &x, const ScorePlace &place, const ScoreBuffers &buffers) {
        const std::string name = unique_name("logit");
        return substitute(name, x, derivative(logit(Variable::make(Float(32), name), place, buffers), name));
    };
    return mod;
}

}  // namespace heed
