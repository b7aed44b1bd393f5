#include "generators/lowering/cuda/private_registers.h"

#include <optional>
#include <tuple>

#include "generators/common/bad_input.h"
#include "generators/cuda/intrinsics.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// Places in the array, relative to that of the first access.
class RegisterPlaces {
public:
    RegisterPlaces(std::string array, int threads) : array(std::move(array)), threads(threads) {}

    struct Places {
        std::vector<int64_t> all;
        int other_lane;  // whose: the bit by which its number differs; 0: the thread's own
    };
    Places of(const Expr &index, const Lets &lets) {
        const auto *ramp = index.as<Ramp>();
        const Expr begin = lets.in_full(ramp != nullptr ? ramp->base : index);
        if (!first.defined()) first = begin;
        const auto step = ramp != nullptr ? as_const_int(ramp->stride) : std::optional<int64_t>(0);
        if (!step) refuse();
        Places result;
        int64_t place;
        std::tie(place, result.other_lane) = place_of(begin);
        for (int i = 0; i < index.type().lanes(); i++) result.all.push_back(place + i * *step);
        return result;
    }

private:
    const std::string array;
    const int threads;
    Expr first;

    [[noreturn]] void refuse() const {
        throw BadInput("a thread's places in the registers of " + array + " are not constant");
    }
    std::pair<int64_t, int> place_of(const Expr &begin) const {
        if (const auto place = as_const_int(simplify(begin - first))) return {*place, 0};
        for (const int bit : {0, 1, 2, 4, 8, 16}) {
            if (const auto place = place_of_all(begin, bit)) return {*place, bit};
        }
        refuse();
    }
    // The place, if it is the same for all threads.
    std::optional<int64_t> place_of_all(const Expr &begin, int bit) const {
        std::optional<int64_t> result;
        for (int thread = 0; thread < threads; thread++) {
            const auto place = as_const_int(simplify(substitute(thread_variable, thread, begin) -
                                                     substitute(thread_variable, thread ^ bit, first)));
            if (!place || (result && *place != *result)) return {};
            result = *place;
        }
        return result;
    }
};

class UsedPlaces : public LetVisitor {
public:
    std::map<int64_t, int> registers;  // by place

    UsedPlaces(const Allocate *array, int threads, Lets lets)
        : LetVisitor(std::move(lets)), array(array->name), places(this->array, threads) {
        array->body.accept(this);
        int number = 0;
        for (auto &[place, reg] : registers) reg = number++;
        for (const int64_t place : read) {
            if (registers.count(place) == 0) {
                throw BadInput("a thread reads an element of " + this->array + " that another one stores");
            }
        }
    }

    RegisterPlaces &all() { return places; }

private:
    const std::string array;
    RegisterPlaces places;
    std::set<int64_t> read;

    using LetVisitor::visit;
    void visit(const Load *op) override {
        IRVisitor::visit(op);
        if (op->name != array) return;
        for (const int64_t place : places.of(op->index, lets).all) read.insert(place);
    }
    void visit(const Store *op) override {
        IRVisitor::visit(op);
        if (op->name != array) return;
        const RegisterPlaces::Places own = places.of(op->index, lets);
        if (own.other_lane != 0) throw BadInput("a thread stores to the registers of " + array + " of another one");
        for (const int64_t place : own.all) registers[place] = 0;
    }
};

// Accesses to the thread's own registers.
class OwnRegisters : public IRMutator {
public:
    OwnRegisters(const std::string &array, Lets lets, UsedPlaces &used)
        : array(array), lets(std::move(lets)), used(used) {}

private:
    const std::string &array;
    Lets lets;
    UsedPlaces &used;

    using IRMutator::visit;
    Stmt visit(const LetStmt *op) override {
        lets.add(op->name, op->value);
        return IRMutator::visit(op);
    }
    Expr visit(const Let *op) override {
        lets.add(op->name, op->value);
        return IRMutator::visit(op);
    }
    Expr visit(const Load *op) override {
        if (op->name != array) return IRMutator::visit(op);
        std::vector<Expr> elements;
        const RegisterPlaces::Places from = used.all().of(op->index, lets);
        for (const int64_t place : from.all) {
            const Expr at = used.registers.at(place);
            elements.push_back(Load::make(op->type.element_of(), array, at, Buffer<>(), Parameter(), const_true(), {}));
            if (from.other_lane == 0) continue;
            const Expr bits = reinterpret<float>(elements.back());
            elements.back() = reinterpret(op->type.element_of(), cuda::from_lane(bits, from.other_lane));
        }
        return elements.size() == 1 ? elements[0] : Shuffle::make_concat(elements);
    }
    Stmt visit(const Store *op) override {
        if (op->name != array) return IRMutator::visit(op);
        const Expr value = mutate(op->value);
        const std::vector<int64_t> places = used.all().of(op->index, lets).all;
        const auto store = [&](const Expr &element, int64_t place) {
            return Store::make(array, element, used.registers.at(place), Parameter(), const_true(), {});
        };
        if (places.size() == 1) return store(value, places[0]);
        const std::string name = unique_name("elements");
        std::vector<Stmt> stores;
        for (size_t i = 0; i < places.size(); i++) {
            const Expr all = Variable::make(value.type(), name);
            stores.push_back(store(Shuffle::make_extract_element(all, static_cast<int>(i)), places[i]));
        }
        return LetStmt::make(name, value, Block::make(stores));
    }
};

}  // namespace

Stmt PrivateRegisters::visit(const LetStmt *op) {
    lets.add(op->name, op->value);
    return IRMutator::visit(op);
}

Stmt PrivateRegisters::visit(const Allocate *op) {
    if (op->memory_type != MemoryType::Register) return IRMutator::visit(op);
    found++;
    UsedPlaces used(op, threads, lets);
    const Stmt body = mutate(OwnRegisters(op->name, lets, used).mutate(op->body));
    const int registers = static_cast<int>(used.registers.size());
    return Allocate::make(op->name, op->type, op->memory_type, {Expr(registers)}, const_true(), body);
}

}  // namespace heed
