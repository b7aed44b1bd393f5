#include "generators/lowering/cuda/device_memory.h"

#include "generators/common/bad_input.h"
#include "generators/cuda/intrinsics.h"
#include "generators/lowering/cuda/neighbours.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

bool is_load(const Call *op) { return op->name == "heed_load_at" || op->name == "heed_load_at_if"; }
bool is_store_if_zero(const Call *op) { return op->name == "heed_store_at_if_zero"; }
bool is_store(const Call *op) {
    return op->name == "heed_store_at" || op->name == "heed_store_at_if" || is_store_if_zero(op);
}

bool has_load(const Expr &e) {
    struct Find : IRVisitor {
        bool found = false;
        using IRVisitor::visit;
        void visit(const Call *op) override {
            found = found || is_load(op);
            IRVisitor::visit(op);
        }
    } find;
    e.accept(&find);
    return find.found;
}

// The stores whose sum a value is, the byte that names the device apart.
void add_stores(const Expr &e, std::vector<const Call *> &stores) {
    if (const auto *sum = e.as<Add>()) {
        add_stores(sum->a, stores);
        add_stores(sum->b, stores);
    } else if (const auto *cast = e.as<Cast>()) {
        add_stores(cast->value, stores);
    } else if (const auto *call = e.as<Call>(); call != nullptr && is_store(call)) {
        stores.push_back(call);
    }
}

Expr bits_of(const Expr &value) { return reinterpret(UInt(value.type().bits()), value); }
Expr address_of(const Expr &base, const Expr &index, int bytes) {
    return base + cast<uint64_t>(index) * make_const(UInt(64), bytes);
}

// `on`: undefined for always.
Expr load_one(const Type &type, const Expr &at, const Expr &on) {
    const auto load = [&](Expr (*always)(const Expr &), Expr (*sometimes)(const Expr &, const Expr &)) {
        return on.defined() ? sometimes(at, on) : always(at);
    };
    const Expr word = type.bits() == 8    ? load(cuda::load_u8, cuda::load_u8_if)
                      : type.bits() == 16 ? load(cuda::load_u16, cuda::load_u16_if)
                                          : load(cuda::load_i32, cuda::load_u32_if);
    return reinterpret(type, cast(UInt(type.bits()), word));
}
Expr store_one(const Expr &at, const Expr &value) {
    if (value.type().bits() == 64) return cuda::store_u64(at, value);
    const Expr word = cast<uint32_t>(value);
    return value.type().bits() == 8    ? cuda::store_u8(at, word)
           : value.type().bits() == 16 ? cuda::store_u16(at, word)
                                       : cuda::store_u32(at, word);
}

// An access of one element; other calls as they are, of what `mutator` makes of their arguments.
Expr visit_call(const Call *op, IRMutator &mutator) {
    if (is_store(op)) throw BadInput("a result that goes to an address is the value of no definition");
    std::vector<Expr> args;
    for (const Expr &arg : op->args) args.push_back(mutator.mutate(arg));
    if (is_load(op)) {
        return load_one(op->type, address_of(args[0], args[1], op->type.bytes()), args.size() > 2 ? args[2] : Expr());
    }
    return Call::make(op->type, op->name, args, op->call_type, op->func, op->value_index, op->image, op->param);
}

// Statements without a branch: lets and stores in their order.
class StraightLine : public IRMutator {
public:
    // `outer` does the rest; `indices`: values of integers, in terms of loops and parameters.
    StraightLine(IRMutator &outer, std::map<std::string, Expr> &indices, const Stmt &s)
        : outer(outer), indices(indices) {
        flatten(s);
        loads.make_chunks();
        stores.make_chunks();
        for (const Step &step : std::vector<Step>(std::move(steps))) emit(step);
    }

    Stmt result() const {
        Stmt s = Evaluate::make(0);
        for (auto step = emitted.rbegin(); step != emitted.rend(); ++step) {
            s = step->value.defined() ? LetStmt::make(step->name, step->value, s) : Block::make(step->leaf, s);
        }
        return s;
    }

private:
    struct Step {
        std::string name;
        Expr value;
        Stmt leaf;
    };
    IRMutator &outer;
    std::map<std::string, Expr> &indices;
    std::vector<Step> steps, emitted;
    Accesses loads, stores;

    Expr in_full(const Expr &e) const { return simplify(substitute(indices, e)); }
    Access load_of(const Call *op) const {
        const Expr on = op->args.size() > 2 ? in_full(op->args[2]) : Expr();
        return {op->type, in_full(op->args[0]), in_full(op->args[1]), on};
    }
    Access store_of(const Call *op) const {
        return {UInt(op->args[2].type().bits()), in_full(op->args[0]), in_full(op->args[1]), Expr()};
    }

    // ---- What there is
    void flatten(const Stmt &s) {
        if (const auto *block = s.as<Block>()) {
            flatten(block->first);
            flatten(block->rest);
        } else if (const auto *let = s.as<LetStmt>()) {
            flatten(substitute(let->name, add_let(let->name, let->value), let->body));
        } else if (const auto *store = s.as<Store>()) {
            const Expr value = without_lets(store->value);
            add_store(store, value);
        } else if (const auto *evaluate = s.as<Evaluate>()) {
            const Expr value = without_lets(evaluate->value);
            count_loads(value);
            steps.push_back({"", Expr(), Evaluate::make(value)});
        } else {
            steps.push_back({"", Expr(), s});
        }
    }

    // The value once the lets around it, and around loads in it, are steps: loads come before the value.
    Expr without_lets(Expr value) {
        while (const auto *let = value.as<Let>()) {
            value = substitute(let->name, add_let(let->name, let->value), let->body);
        }
        struct Lift : IRMutator {
            using IRMutator::visit;
            StraightLine &line;
            explicit Lift(StraightLine &line) : line(line) {}
            Expr visit(const Let *op) override { return has_load(op) ? line.without_lets(op) : IRMutator::visit(op); }
        } lift(*this);
        return lift.mutate(value);
    }

    void add_store(const Store *op, const Expr &value) {
        std::vector<const Call *> calls;
        add_stores(value, calls);
        if (calls.empty()) {
            count_loads(value);
            const Stmt store = Store::make(op->name, value, op->index, op->param, op->predicate, op->alignment);
            steps.push_back({"", Expr(), store});
        }
        for (const Call *call : calls) {
            for (const Expr &arg : call->args) count_loads(arg);
            if (call->args.size() == 3) stores.add(store_of(call));
            steps.push_back({"", Expr(), Evaluate::make(call)});
        }
    }

    Expr add_let(const std::string &old_name, const Expr &given) {
        const Expr value = without_lets(given);
        const std::string name = unique_name(old_name);
        count_loads(value);
        if (!value.type().is_float()) indices[name] = in_full(value);
        steps.push_back({name, value, Stmt()});
        return Variable::make(value.type(), name);
    }

    void count_loads(const Expr &e) {
        struct Count : IRVisitor {
            using IRVisitor::visit;
            StraightLine &line;
            explicit Count(StraightLine &line) : line(line) {}
            void visit(const Call *op) override {
                IRVisitor::visit(op);
                if (is_load(op)) line.loads.add(line.load_of(op));
            }
        } count(*this);
        e.accept(&count);
    }

    // ---- What comes of it
    Expr let(const std::string &name, const Expr &value) {
        emitted.push_back({unique_name(name), common_subexpression_elimination(simplify(value)), Stmt()});
        return Variable::make(value.type(), emitted.back().name);
    }
    void run(const Expr &call) { emitted.push_back({"", Expr(), Evaluate::make(call)}); }

    void emit(const Step &step) {
        if (step.value.defined()) {
            const Expr value = mutate(step.value);
            emitted.push_back({step.name, value, Stmt()});
        } else if (const auto *evaluate = step.leaf.as<Evaluate>()) {
            emit_call(evaluate->value);
        } else if (const auto *store = step.leaf.as<Store>()) {
            const Expr value = mutate(store->value);
            emitted.push_back({"", Expr(),
                               Store::make(store->name, value, mutate(store->index), store->param, store->predicate,
                                           store->alignment)});
        } else {
            emitted.push_back({"", Expr(), outer.mutate(step.leaf)});
        }
    }

    void emit_call(const Expr &e) {
        const auto *call = e.as<Call>();
        if (call == nullptr || !is_store(call)) return run(mutate(e));
        const Expr value = let("stored", bits_of(mutate(call->args[2])));
        const Expr at = address_of(mutate(call->args[0]), mutate(call->args[1]), value.type().bytes());
        if (call->args.size() > 3) {
            const Expr on = simplify(mutate(call->args[3]));
            const Expr store = is_store_if_zero(call) ? cuda::store_u32_if_zero(at, value) : store_one(at, value);
            emitted.push_back({"", Expr(), simplify(IfThenElse::make(on, Evaluate::make(store)))});
            return;
        }
        const auto [chunk, place] = stores.find(store_of(call));
        if (chunk->count == 1) return run(store_one(at, value));
        chunk->elements[place] = value;
        const int bytes = value.type().bytes() * static_cast<int>(place);
        if (--chunk->missing == 0) write(*chunk, at - cast<uint64_t>(bytes));
    }

    void write(const Chunk &chunk, const Expr &first) {
        const Expr at = let("at", first);
        std::vector<Expr> words;
        const int of_word = 4 / chunk.first.type.bytes();
        for (int w = 0; w < chunk.bytes() / 4; w++) {
            Expr word = cast<uint32_t>(chunk.elements[static_cast<size_t>(w * of_word)]);
            for (int i = 1; i < of_word; i++) {
                word = word | cast<uint32_t>(chunk.elements[static_cast<size_t>(w * of_word + i)])
                                  << (32 / of_word * i);
            }
            words.push_back(let("word", word));
        }
        run(words.size() == 1 ? cuda::store_u32(at, words[0])
                              : cuda::store_fragment(at, cuda::fragment(words[0], words[1], words[2], words[3])));
    }

    void read(Chunk &chunk, const Expr &first, const Expr &on) {
        const Expr at = let("at", first);
        if (chunk.count == 1) {
            chunk.elements[0] = let("element", load_one(chunk.first.type, at, on));
            return;
        }
        std::vector<Expr> words;
        if (chunk.bytes() == 4) {
            words.push_back(let("word", load_one(UInt(32), at, on)));
        } else {
            const Expr all = let("chunk", on.defined() ? cuda::load_fragment_if(at, on) : cuda::load_fragment(at));
            for (int w = 0; w < 4; w++) words.push_back(let("word", reinterpret<uint32_t>(cuda::float_of(all, w))));
        }
        const Type type = chunk.first.type;
        const int of_word = 4 / type.bytes();
        for (int i = 0; i < chunk.count; i++) {
            const Expr word = words[static_cast<size_t>(i / of_word)] >> (32 / of_word * (i % of_word));
            chunk.elements[static_cast<size_t>(i)] = reinterpret(type, cast(UInt(type.bits()), word));
        }
    }

    using IRMutator::visit;
    Expr visit(const Call *op) override {
        if (!is_load(op)) return visit_call(op, *this);
        const auto [chunk, place] = loads.find(load_of(op));
        if (!chunk->elements[0].defined()) {
            const int bytes = op->type.bytes();
            const Expr first =
                address_of(mutate(op->args[0]), simplify(mutate(op->args[1]) - static_cast<int>(place)), bytes);
            read(*chunk, first, op->args.size() > 2 ? mutate(op->args[2]) : Expr());
        }
        return chunk->elements[place];
    }
};

}  // namespace

Stmt LowerDeviceMemory::mutate(const Stmt &s) {
    const bool straight =
        kernels > 0 && (s.as<Block>() != nullptr || s.as<LetStmt>() != nullptr || s.as<Store>() != nullptr);
    return straight ? StraightLine(*this, indices, s).result() : IRMutator::mutate(s);
}

Stmt LowerDeviceMemory::visit(const For *op) {
    const bool is_kernel = op->for_type == ForType::GPUBlock;
    kernels += is_kernel ? 1 : 0;
    Stmt result = IRMutator::visit(op);
    kernels -= is_kernel ? 1 : 0;
    return result;
}

Expr LowerDeviceMemory::visit(const Call *op) { return visit_call(op, *this); }

}  // namespace heed
