#include "generators/lowering/cuda/join_launches.h"

#include <optional>

#include "generators/common/bad_input.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

using Places = std::map<std::string, Expr>;

// Loops over blocks, innermost first, and what a block does.
struct Launch {
    std::vector<Expr> extents;
    std::function<Stmt(const std::vector<Expr> &)> body;
};

class Launches {
public:
    explicit Launches(int threads) : threads(threads) {}

    int found = 0;
    std::vector<std::pair<std::string, Expr>> lets;  // of the host

    // Nothing stays of the host's calls between launches: they look after a buffer that its kernels do not touch.
    std::optional<Launch> read(const Stmt &s) {
        if (s.as<Evaluate>() != nullptr || s.as<AssertStmt>() != nullptr) return std::nullopt;
        if (const auto *let = s.as<LetStmt>()) {
            const auto *call = let->value.as<Call>();
            if (call != nullptr && call->call_type == Call::Extern) return read(let->body);
            return read(substitute(let->name, host_value(let->name, let->value), let->body));
        }
        if (const auto *block = s.as<Block>()) {
            const auto first = read(block->first), rest = read(block->rest);
            return first && rest ? one_after_the_other(*first, *rest) : first ? first : rest;
        }
        if (const auto *loop = s.as<For>()) return of_grid(loop);
        throw BadInput("a part of a kernel is no launch");
    }

    Expr host_value(const std::string &name, const Expr &value) {
        lets.emplace_back(unique_name(name), simplify(value));
        return Variable::make(value.type(), lets.back().first);
    }

private:
    const int threads;

    Launch one_after_the_other(const Launch &a, const Launch &b) {
        for (size_t i = 1; i < std::max(a.extents.size(), b.extents.size()); i++) {
            if (a.extents.size() != b.extents.size() || !equal(a.extents[i], b.extents[i])) {
                throw BadInput("parts of a kernel differ in the outer dimensions of their blocks");
            }
        }
        Launch both = a;
        both.extents[0] = host_value("blocks", a.extents[0] + b.extents[0]);
        both.body = [=](const std::vector<Expr> &block) {
            std::vector<Expr> in_b = block;
            in_b[0] = block[0] - a.extents[0];
            return IfThenElse::make(block[0] < a.extents[0], a.body(block), b.body(in_b));
        };
        return both;
    }

    Launch of_grid(const For *outermost) {
        std::vector<std::string> names;
        Launch launch;
        Stmt body = outermost;
        for (const For *loop = outermost; loop != nullptr && loop->for_type == ForType::GPUBlock;
             loop = body.as<For>()) {
            if (!is_const_zero(loop->min)) throw BadInput("blocks " + loop->name + " do not begin with 0");
            names.insert(names.begin(), loop->name);
            launch.extents.insert(launch.extents.begin(), simplify(max(loop->extent, 0)));
            body = loop->body;
        }
        if (names.empty()) throw BadInput("loop " + outermost->name + " is on the host");
        check_threads(body);
        found++;
        launch.extents[0] = host_value("blocks", launch.extents[0]);
        launch.body = [=](const std::vector<Expr> &block) {
            Places places;
            for (size_t i = 0; i < names.size(); i++) places[names[i]] = block[i];
            return substitute(places, body);
        };
        return launch;
    }

    void check_threads(const Stmt &body) const {
        struct Check : IRVisitor {
            const int threads;
            explicit Check(int threads) : threads(threads) {}
            using IRVisitor::visit;
            void visit(const For *op) override {
                if (op->for_type == ForType::GPUThread && !is_const(op->extent, threads)) {
                    throw BadInput("loop " + op->name + " has not " + std::to_string(threads) + " threads");
                }
                IRVisitor::visit(op);
            }
        } check(threads);
        body.accept(&check);
    }
};

// a / b of what is not negative.
Expr quotient(const Expr &a, const Expr &b) { return cast<int32_t>(cast<uint32_t>(a) / cast<uint32_t>(b)); }

// The body of block number `block` of a grid, along its first dimension first.
Stmt numbered(const Launch &launch, Expr block) {
    std::vector<std::pair<std::string, Expr>> lets;
    const auto let = [&](const std::string &name, const Expr &value) {
        lets.emplace_back(unique_name(name), value);
        return Expr(Variable::make(Int(32), lets.back().first));
    };
    std::vector<Expr> places;
    for (size_t i = 0; i + 1 < launch.extents.size(); i++) {
        const Expr outer = let("outer", quotient(block, launch.extents[i]));
        places.push_back(let("inner", block - outer * launch.extents[i]));
        block = outer;
    }
    places.push_back(block);
    Stmt body = simplify(launch.body(places));
    for (auto it = lets.rbegin(); it != lets.rend(); ++it) body = LetStmt::make(it->first, it->second, body);
    return body;
}

}  // namespace

Stmt JoinLaunches::visit(const ProducerConsumer *op) {
    if (!op->is_producer || op->name != output) return IRMutator::visit(op);
    Launches launches(threads);
    const std::optional<Launch> launch = launches.read(op->body);
    if (!launch) throw BadInput("a kernel without a launch");
    found += launches.found;
    Expr blocks = 1;
    for (const Expr &extent : launch->extents) blocks = blocks * extent;
    blocks = launches.host_value("blocks", blocks);
    const std::string block = output + ".block_id_x";
    Stmt result = For::make(block, 0, blocks, ForType::GPUBlock, Partition::Never, DeviceAPI::CUDA,
                            numbered(*launch, Variable::make(Int(32), block)));
    for (auto let = launches.lets.rbegin(); let != launches.lets.rend(); ++let) {
        result = LetStmt::make(let->first, let->second, result);
    }
    return ProducerConsumer::make_produce(op->name, result);
}

}  // namespace heed
