#include "generators/attention/check_score_mod.h"

#include <set>
#include <sstream>
#include <stdexcept>

namespace heed {

using namespace Halide;

namespace {

const char *name_of_element(ScoreElement element) { return element == ScoreElement::f32 ? "f32" : "i32"; }

std::string name_of_type(const Type &type) {
    if (type == Bool()) return "bool";
    std::ostringstream text;
    text << type;
    return text.str();
}

std::string declared_buffers(size_t number) {
    if (number == 0) return "declares none";
    if (number == 1) return "declares 1, buffer 0";
    return "declares " + std::to_string(number) + ", buffers 0.." + std::to_string(number - 1);
}

std::string trial_buffer(size_t n) { return "score_buffers[" + std::to_string(n) + "]"; }

// Finds a name that an expression has not been given, and a call that device code cannot make: of a stage or a buffer
// of the user's, of a function with side effects, of one that needs an array in a thread's own memory.
class FindStranger : public Internal::IRGraphVisitor {
public:
    explicit FindStranger(std::set<std::string> given) : given(std::move(given)) {}
    std::string stranger, not_on_cuda;

protected:
    using Internal::IRGraphVisitor::visit;

    void visit(const Internal::Let *op) override {
        given.insert(op->name);
        Internal::IRGraphVisitor::visit(op);
    }

    void visit(const Internal::Variable *op) override {
        if (given.count(op->name) == 0) stranger = op->name;
    }

    void visit(const Internal::Call *op) override {
        if (op->param.defined()) stranger = op->name;
        if (op->call_type == Internal::Call::Halide) visit_stage(Internal::Function(op->func));
        const bool plain = op->is_intrinsic() || op->call_type == Internal::Call::PureExtern;
        if (!plain || op->name == "sin_f32" || op->name == "cos_f32" || op->name == "tan_f32") not_on_cuda = op->name;
        Internal::IRGraphVisitor::visit(op);
    }

private:
    // An ImageParam is called through a stage of its own.
    void visit_stage(const Internal::Function &stage) {
        given.insert(stage.args().begin(), stage.args().end());
        for (const Expr &value : stage.values()) value.accept(this);
    }

    std::set<std::string> given;
};

// Calls the user's functions with names for all that kernels give them.
class ScoreTrial {
public:
    ScoreTrial(const ScoreMod &mod, bool on_cuda) : on_cuda(on_cuda) {
        std::vector<ScoreBuffers::Buffer> buffers;
        for (size_t n = 0; n < mod.buffers.size(); n++) {
            const std::string name = trial_buffer(n);
            const auto bits = [name](const Expr &index) {
                return Internal::Call::make(Int(32), name, {index}, Internal::Call::PureExtern);
            };
            buffers.push_back({bits, integer(name + ".size"), mod.buffers[n]});
        }
        score_buffers = ScoreBuffers(std::move(buffers));
    }

    template <typename Function, typename... Arguments>
    void require(const char *field, const Function &function, const Type &wanted, const char *advice,
                 const Arguments &...arguments) const {
        if (!function) return;
        const std::string name = std::string("ScoreMod::") + field;
        Expr found;
        try {
            found = function(arguments..., score_buffers);
        } catch (const std::exception &error) {
            throw std::runtime_error(name + ": " + error.what());
        }
        if (!found.defined() || found.type() != wanted) {
            throw std::runtime_error(name + " gives " +
                                     (found.defined() ? name_of_type(found.type()) : "an Expr without a value") +
                                     "; it must give " + name_of_type(wanted) + ", " + advice);
        }
        FindStranger finder(given);
        found.accept(&finder);
        if (!finder.stranger.empty()) {
            throw std::runtime_error(name + " uses " + finder.stranger +
                                     ", which is none of its arguments; what varies must be read from ScoreBuffers");
        }
        if (on_cuda && !finder.not_on_cuda.empty()) {
            throw std::runtime_error(name + " calls " + finder.not_on_cuda +
                                     ", which kernels of CUDA cannot; arithmetic, exp, log, tanh and ScoreBuffers are "
                                     "there");
        }
    }

    Expr integer(const std::string &name) { return of_type(Int(32), name); }
    Expr of_type(const Type &type, const std::string &name) {
        given.insert(name);
        return Internal::Variable::make(type, name);
    }

private:
    bool on_cuda;
    ScoreBuffers score_buffers;
    std::set<std::string> given;
};

}  // namespace

const ScoreBuffers::Buffer &ScoreBuffers::declared(const std::string &call, int buffer) const {
    if (buffer < 0 || static_cast<size_t>(buffer) >= buffers.size()) {
        throw std::runtime_error("ScoreBuffers::" + call + ": there is no buffer " + std::to_string(buffer) +
                                 "; ScoreMod::buffers " + declared_buffers(buffers.size()));
    }
    return buffers[buffer];
}

Expr ScoreBuffers::bits(ScoreElement element, int buffer, const Expr &index) const {
    const std::string call = std::string(name_of_element(element)) + "(" + std::to_string(buffer) + ", index)";
    const Buffer &b = declared(call, buffer);
    if (b.element != element) {
        throw std::runtime_error("ScoreBuffers::" + call + ": ScoreMod::buffers declares buffer " +
                                 std::to_string(buffer) + " as " + name_of_element(b.element) + "; " +
                                 name_of_element(b.element) + "() reads it");
    }
    if (!index.defined() || !index.type().is_scalar() || index.type().is_float() ||
        !Int(32).can_represent(index.type())) {
        throw std::runtime_error("ScoreBuffers::" + call + ": index is " +
                                 (index.defined() ? name_of_type(index.type()) : "an Expr without a value") +
                                 "; it must be int32");
    }
    return b.bits(clamp(cast<int32_t>(index), 0, b.size - 1));
}

Expr ScoreBuffers::i32(int buffer, const Expr &index) const { return bits(ScoreElement::i32, buffer, index); }

Expr ScoreBuffers::f32(int buffer, const Expr &index) const {
    return reinterpret<float>(bits(ScoreElement::f32, buffer, index));
}

Expr ScoreBuffers::size(int buffer) const { return declared("size(" + std::to_string(buffer) + ")", buffer).size; }

void check_score_mod(const ScoreMod &mod, bool on_cuda) {
    if (mod.buffers.size() > max_score_buffers) {
        throw std::runtime_error("ScoreMod::buffers has " + std::to_string(mod.buffers.size()) + " elements; at most " +
                                 std::to_string(max_score_buffers) + " are allowed");
    }
    ScoreTrial trial(mod, on_cuda);
    const auto integer = [&](const char *name) { return trial.integer(name); };
    const ScorePlace place = {integer("b"), integer("h"), integer("i"), integer("j"), integer("p")};
    const ScoreBlock block = {integer("b"),       integer("first_h"), integer("last_h"),
                              integer("first_i"), integer("last_i"),  integer("first_j"),
                              integer("last_j"),  integer("first_p"), integer("last_p")};
    const Expr logit = trial.of_type(Float(32), "logit");
    trial.require("logit", mod.logit, Float(32), "as the logit is: 0.5f and not 0.5, cast<float>(..) of integers",
                  logit, place);
    trial.require("logit_derivative", mod.logit_derivative, Float(32), "as the logit is", logit, place);
    trial.require("visible", mod.visible, Bool(), "as comparisons do", place);
    trial.require("block_visible", mod.block_visible, Bool(), "as comparisons do", block);
}

}  // namespace heed
