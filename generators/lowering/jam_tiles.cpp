#include "generators/lowering/jam_tiles.h"

#include <algorithm>
#include <map>
#include <set>

#include "generators/common/serial_loop.h"
#include "generators/lowering/step_stages.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// The tile that an iteration of a loop computes, outside of further loops over tiles.
class FindTile : public IRVisitor {
public:
    explicit FindTile(const std::vector<std::string> &tiles) : tiles(tiles) {}

    std::string tile;
    std::set<int64_t> sums;  // where vectors of it begin
    int64_t elements = 0;
    bool one_tile = true, carries = false;

    void look_at(const Stmt &body) {
        body.accept(this);
        for (const std::string &array : read_in_lets) carries = carries || stored.count(array) != 0;
    }

private:
    using IRVisitor::visit;
    const std::vector<std::string> &tiles;
    std::set<std::string> stored, read_in_lets;
    bool in_loop = false, in_let = false;

    void visit(const ProducerConsumer *op) override {
        const bool is_tile = std::any_of(tiles.begin(), tiles.end(),
                                         [&](const std::string &name) { return starts_with(op->name, name); });
        if (op->is_producer && is_tile) {
            one_tile = one_tile && tile.empty() && !in_loop;
            tile = op->name;
        }
        IRVisitor::visit(op);
    }
    void visit(const For *op) override {
        const bool outer = in_loop;
        in_loop = true;
        IRVisitor::visit(op);
        in_loop = outer;
    }
    // A name for what another tile has changed meanwhile would be out of date.
    void visit(const LetStmt *op) override {
        in_let = true;
        op->value.accept(this);
        in_let = false;
        op->body.accept(this);
    }
    void visit(const Load *op) override {
        if (in_let) read_in_lets.insert(op->name);
        IRVisitor::visit(op);
    }
    void visit(const Store *op) override {
        stored.insert(op->name);
        const auto *ramp = op->index.as<Ramp>();
        if (op->name == tile && ramp != nullptr) {
            const auto first = as_const_int(ramp->base);
            one_tile = one_tile && first.has_value();
            if (first && sums.insert(*first).second) elements = std::max(elements, *first + ramp->lanes);
        }
        IRVisitor::visit(op);
    }
};

// A statement with names of its own.
class OwnNames : public IRMutator {
    using IRMutator::visit;
    std::map<std::string, std::string> names;

    Expr visit(const Variable *op) override {
        const auto found = names.find(op->name);
        return found == names.end() ? Expr(op) : Variable::make(op->type, found->second);
    }
    Stmt visit(const LetStmt *op) override {
        const Expr value = mutate(op->value);
        const std::string &name = names[op->name] = unique_name(op->name);
        return LetStmt::make(name, value, mutate(op->body));
    }
};

// Statements of one form, side by side.
Stmt jam(const Stmt &a, const Stmt &b) {
    if (const auto *let = a.as<LetStmt>()) {
        const auto *other = b.as<LetStmt>();
        return LetStmt::make(let->name, let->value,
                             LetStmt::make(other->name, other->value, jam(let->body, other->body)));
    }
    if (const auto *block = a.as<Block>()) {
        const auto *other = b.as<Block>();
        return Block::make(jam(block->first, other->first), jam(block->rest, other->rest));
    }
    if (const auto *stage = a.as<ProducerConsumer>()) {
        return ProducerConsumer::make(stage->name, stage->is_producer,
                                      jam(stage->body, b.as<ProducerConsumer>()->body));
    }
    if (const auto *loop = a.as<For>()) {
        const auto *other = b.as<For>();
        if (equal(loop->min, other->min) && equal(loop->extent, other->extent)) {
            return with_body(loop, jam(loop->body, other->body));  // both have the loop's name
        }
    }
    return Block::make(a, b);
}

}  // namespace

Stmt JamTiles::visit(const For *op) {
    FindTile found(tiles);
    found.look_at(op->body);
    const auto extent = as_const_int(op->extent);
    const auto sums = static_cast<int>(found.sums.size());
    const bool jams = found.one_tile && !found.carries && sums > 0 && sums <= most_sums && extent && *extent % 2 == 0 &&
                      is_const_zero(op->min);
    if (!jams) return IRMutator::visit(op);
    const std::string other = unique_name(found.tile + ".other");
    const Expr pair = Variable::make(Int(32), op->name);
    const Stmt first = substitute(op->name, pair * 2, op->body);
    const auto same_place = [](const Expr &index) { return index; };
    const Stmt second = OwnNames().mutate(
        ReplaceArray(found.tile, other, same_place).mutate(substitute(op->name, pair * 2 + 1, op->body)));
    const Stmt loop = For::make(op->name, op->min, static_cast<int>(*extent / 2), op->for_type, op->partition_policy,
                                op->device_api, jam(first, second));
    return Allocate::make(other, Float(32), MemoryType::Register, {static_cast<int>(found.elements)}, const_true(),
                          Block::make(loop, Free::make(other)));
}

}  // namespace heed
