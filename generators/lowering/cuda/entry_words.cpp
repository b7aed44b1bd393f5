#include "generators/lowering/cuda/entry_words.h"

#include "generators/common/serial_loop.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// A call's arguments: the entry, then the same word of each entry.
bool is_search(const Call *op) { return op->name == "heed_entry_word"; }

struct Search {
    Expr entry;
    std::vector<std::vector<Expr>> words;  // that are asked for, of all entries

    size_t add(const Call *op) {
        const std::vector<Expr> of_entries(op->args.begin() + 1, op->args.end());
        for (size_t i = 0; i < words.size(); i++) {
            if (equal(words[i][0], of_entries[0])) return i;
        }
        words.push_back(of_entries);
        return words.size() - 1;
    }

    Stmt branches(const std::string &array, size_t first, size_t count) const {
        if (count > 1) {
            const size_t half = count / 2;
            return IfThenElse::make(entry < static_cast<int>(first + half), branches(array, first, half),
                                    branches(array, first + half, count - half));
        }
        std::vector<Stmt> stores;
        for (size_t i = 0; i < words.size(); i++) {
            stores.push_back(Store::make(array, words[i][first], static_cast<int>(i), Parameter(), const_true(), {}));
        }
        return Block::make(stores);
    }
};

// Takes the first search whose entry depends on a variable, and the others of the same entry.
class Take : public IRMutator {
public:
    explicit Take(std::string variable) : variable(std::move(variable)) {}

    const std::string variable, array = unique_name("entry");
    Search search;

private:
    using IRMutator::visit;
    Expr visit(const Call *op) override {
        if (!is_search(op) || !expr_uses_var(op->args[0], variable)) return IRMutator::visit(op);
        if (!search.entry.defined()) search.entry = op->args[0];
        if (!equal(search.entry, op->args[0])) return op;
        const int place = static_cast<int>(search.add(op));
        return Load::make(op->type, array, place, Buffer<>(), Parameter(), const_true(), {});
    }
};

}  // namespace

Stmt LowerEntryWords::searched(const std::string &variable, Stmt body) {
    for (;;) {
        Take take(variable);
        body = take.mutate(body);
        if (!take.search.entry.defined()) return body;
        found++;
        const int words = static_cast<int>(take.search.words.size());
        const Stmt branches = take.search.branches(take.array, 0, take.search.words[0].size());
        body = Allocate::make(take.array, UInt(64), MemoryType::Register, {Expr(words)}, const_true(),
                              Block::make(branches, body));
    }
}

Stmt LowerEntryWords::visit(const LetStmt *op) {
    return LetStmt::make(op->name, op->value, searched(op->name, mutate(op->body)));
}

Stmt LowerEntryWords::visit(const For *op) { return with_body(op, searched(op->name, mutate(op->body))); }

}  // namespace heed
