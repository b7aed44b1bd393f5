#include "generators/lowering/cuda/shared_memory.h"

#include <algorithm>

#include "generators/common/array_names.h"
#include "generators/common/bad_input.h"
#include "generators/common/serial_loop.h"
#include "generators/cuda/intrinsics.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

constexpr int chunk_bytes = 16, word_bytes = 4, panel_bytes = 1024;
const char *const address_name = "heed_shared_address";

// The arrays of a kernel, one after the other, in a branch from where its sibling begins.
struct SharedArrays : IRVisitor {
    struct Place {
        std::string name;
        int begin;  // byte
    };
    std::vector<Place> places;
    int bytes = 0;  // of all

    SharedArrays(const Stmt &kernel, const std::set<std::string> &first) : first(first) {
        for (const bool of_first : {true, false}) {
            finds_first = of_first;
            kernel.accept(this);
        }
    }

private:
    const std::set<std::string> &first;
    bool finds_first = false;
    int used = 0;

    using IRVisitor::visit;
    void visit(const Allocate *op) override {
        if (is_shared_array(op) && (first.count(func_of_array(op->name)) != 0) == finds_first) {
            const int64_t size = op->constant_allocation_size();
            if (finds_first && size * op->type.bytes() % panel_bytes != 0) {
                throw BadInput(op->name + " is not of whole panels of " + std::to_string(panel_bytes) + " bytes");
            }
            if (size == 0) throw BadInput("the size of " + op->name + ", in shared memory, is not constant");
            places.push_back({op->name, used});
            const int needed = static_cast<int>(size) * op->type.bytes();
            used += (needed + chunk_bytes - 1) / chunk_bytes * chunk_bytes;
            bytes = std::max(bytes, used);
        }
        IRVisitor::visit(op);
    }
    void visit(const IfThenElse *op) override {
        const int before = used;
        op->then_case.accept(this);
        const int after_then = used;
        used = before;
        if (op->else_case.defined()) op->else_case.accept(this);
        used = std::max(used, after_then);
    }
};

int bytes_at_once(const Type &type) { return type.bytes() * type.lanes(); }

Expr scalar_of(const Expr &e) {
    const auto *broadcast = e.as<Broadcast>();
    return broadcast != nullptr ? broadcast->value : e.type().is_scalar() ? e : Expr();
}

Expr without_sign(const Expr &value) { return reinterpret(UInt(value.type().bits()), value); }

Expr load_element(const Type &type, const Expr &at) {
    if (type.bits() == 64) return reinterpret(type, cuda::load_shared_u64(at));
    if (type.bits() == 32) return reinterpret(type, cuda::load_shared_u32(at));
    if (type.bits() == 16) return reinterpret(type, cast<uint16_t>(cuda::load_shared_u16(at)));
    throw BadInput("elements of " + std::to_string(type.bits()) + " bits are not read from shared memory");
}

Expr store_element(const Expr &at, const Expr &value) {
    const Expr bits = without_sign(value);
    if (bits.type().bits() == 64) return cuda::store_shared_u64(at, bits);
    if (bits.type().bits() == 32) return cuda::store_shared_u32(at, bits);
    const Expr word = cast<uint32_t>(bits);
    return bits.type().bits() == 16 ? cuda::store_shared_u16(at, word) : cuda::store_shared_u8(at, word);
}

}  // namespace

bool is_shared_array(const Allocate *op) {
    return op->memory_type == MemoryType::GPUShared || op->memory_type == MemoryType::Stack;
}

Expr shared_address(const std::string &array, const Expr &offset) {
    return Call::make(Int(32), address_name, {StringImm::make(array), offset}, Call::PureExtern);
}
bool is_shared_address(const Call *op) { return op->name == address_name; }

bool begins_chunk(const Expr &index, const Type &type) {
    const ModulusRemainder place = modulus_remainder(index);
    const int64_t elements = chunk_bytes / type.bytes();
    return place.modulus % elements == 0 && place.remainder % elements == 0;
}

std::optional<SharedCopy> SharedCopy::of(const Store *op) {
    const auto *call = op->value.as<Call>();
    const auto *to = op->index.as<Ramp>();
    Expr flipped;
    if (call != nullptr && to != nullptr && call->is_intrinsic(Call::bitwise_xor)) {
        flipped = scalar_of(call->args[1]);
        call = call->args[0].as<Call>();
    }
    const bool is_load = call != nullptr && (call->name == "heed_load_at" || call->name == "heed_load_at_if" ||
                                             call->name == "heed_load_chunks_if");
    if (to == nullptr || !is_load) return {};
    const auto *from = call->args[1].as<Ramp>();
    SharedCopy copy = {op->name, call->type.element_of(), to->base, scalar_of(call->args[0]), {}, {}, {}, flipped, {}};
    const bool sometimes = call->args.size() > 2;
    if (sometimes) copy.on = scalar_of(call->args[2]);
    if (call->args.size() > 3) copy.whole = scalar_of(call->args[3]);
    if (call->args.size() > 4) copy.end = scalar_of(call->args[4]);
    const bool neighbours = from != nullptr && is_const_one(from->stride) && is_const_one(to->stride);
    if (!neighbours || bytes_at_once(call->type) != chunk_bytes || !copy.address.defined() ||
        copy.on.defined() != sometimes) {
        throw BadInput("what is copied to " + op->name + " at once is not 16 bytes of a tensor");
    }
    copy.index = from->base;
    return copy;
}

std::optional<SharedCopy> SharedCopy::of_any(const Store *op) {
    const auto *call = op->value.as<Call>();
    const bool is_load = call != nullptr && (call->name == "heed_load_at" || call->name == "heed_load_at_if");
    if (!is_load || !call->type.is_scalar() || call->type.bytes() != word_bytes) return of(op);
    const Expr on = call->args.size() > 2 ? call->args[2] : Expr();
    return SharedCopy{op->name, call->type, op->index, call->args[0], call->args[1], on, {}, {}, {}, word_bytes};
}

Expr SharedCopy::ahead(const Expr &at, const Expr &from, const Expr &some) const {
    return bytes == word_bytes ? cuda::copy_word_async(at, from, some) : cuda::copy_async(at, from, some);
}

Stmt SharedCopy::element(const Expr &at, const Expr &from, const Expr &e) const {
    const int size = type.bytes();
    const Expr source = from + cast<uint64_t>(e * size), to_element = at + e * size;
    const Expr asked = end.defined() ? select(cast<int32_t>(index) + e < end, on, 0) : on;
    if (size == 1) return Evaluate::make(cuda::store_shared_u8(to_element, cuda::load_u8_if(source, asked)));
    if (size != 2) throw BadInput("elements of " + array + ", of 4 bytes and more, are copied one by one");
    Expr bits = cuda::load_u16_if(source, asked);
    if (flipped.defined()) bits = bits ^ cast<uint32_t>(flipped);
    return Evaluate::make(cuda::store_shared_u16(to_element, bits));
}

Stmt SharedCopy::each_element(const std::string &each, const Type &type, const Stmt &body) {
    const int count = chunk_bytes / type.bytes();
    return serial_loop(each, 0, count, body);
}

Expr SharedCopy::to_address() const { return shared_address(array, cast<int32_t>(to) * type.bytes()); }

// ---- Where arrays are
Stmt LowerSharedMemory::visit(const For *op) {
    const bool is_kernel = op->for_type == ForType::GPUBlock;
    if (is_kernel && kernels++ == 0) lay_out(op);
    Stmt result = IRMutator::visit(op);
    kernels -= is_kernel ? 1 : 0;
    return result;
}

void LowerSharedMemory::lay_out(const Stmt &kernel) {
    const SharedArrays all(kernel, first);
    for (const SharedArrays::Place &array : all.places) {
        arrays[array.name] = {array.begin, found == 0};
        found++;
    }
    used = all.bytes;
    if (used > bytes || (used < bytes && !may_need_less)) {
        throw BadInput("arrays in shared memory need " + std::to_string(used) + " bytes; the kernel has " +
                       std::to_string(bytes));
    }
}

// The first allocation is that of all arrays: Halide's host code launches the kernel with its size.
Stmt LowerSharedMemory::visit(const Allocate *op) {
    const auto array = arrays.find(op->name);
    if (kernels == 0 || array == arrays.end()) return IRMutator::visit(op);
    const Stmt body = mutate(op->body);
    if (!array->second.is_first) return body;
    return Allocate::make(op->name, UInt(8), MemoryType::GPUShared, {Expr(used)}, const_true(), body);
}

Stmt LowerSharedMemory::visit(const Free *op) {
    const auto array = arrays.find(op->name);
    return array == arrays.end() || array->second.is_first ? Stmt(op) : Evaluate::make(0);
}

Stmt LowerSharedMemory::visit(const LetStmt *op) {
    if (kernels > 0) lets.add(op->name, op->value);
    return IRMutator::visit(op);
}

Expr LowerSharedMemory::address(const std::string &array, const Expr &index, const Type &type) const {
    return cuda::shared_begin() + (cast<int32_t>(index) * type.bytes() + arrays.at(array).begin);
}

Expr LowerSharedMemory::first_of(const std::string &array, const Expr &index, const Type &type) const {
    const auto *ramp = index.as<Ramp>();
    if (ramp != nullptr && is_const_one(ramp->stride) && bytes_at_once(type) == chunk_bytes) {
        if (begins_chunk(lets.in_full(ramp->base), type)) return ramp->base;
    }
    throw BadInput("what is accessed of " + array + ", in shared memory, is neither an element nor 16 bytes");
}

// ---- Accesses
Stmt LowerSharedMemory::copied(SharedCopy copy, const Expr &to) {
    const Expr bytes = make_const(UInt(64), copy.type.bytes());
    const Expr from_value = mutate(copy.address) + cast<uint64_t>(mutate(copy.index)) * bytes;
    const std::string name = unique_name("copied_from"), each = unique_name("element");
    const Expr from = Variable::make(UInt(64), name), at = address(copy.array, mutate(to), copy.type);
    if (copy.on.defined()) copy.on = mutate(copy.on);
    if (copy.end.defined()) copy.end = mutate(copy.end);
    copy.index = mutate(copy.index);
    Expr chunk = copy.on.defined() ? cuda::load_fragment_if(from, copy.on) : cuda::load_fragment(from);
    if (copy.flipped.defined()) {
        copy.flipped = mutate(copy.flipped);
        const Expr both = cast<uint32_t>(copy.flipped);
        chunk = cuda::negate_signs(chunk, both | both << 16);
    }
    Stmt result = Evaluate::make(cuda::store_shared_fragment(at, chunk));
    if (copy.whole.defined()) {
        const Stmt one = copy.element(at, from, Variable::make(Int(32), each));
        result = IfThenElse::make(mutate(copy.whole) != 0, result, SharedCopy::each_element(each, copy.type, one));
    }
    return LetStmt::make(name, from_value, result);
}

Stmt LowerSharedMemory::visit(const Store *op) {
    if (arrays.count(op->name) == 0) return IRMutator::visit(op);
    const Type type = op->value.type();
    if (!is_const_one(op->predicate)) throw BadInput("a store to " + op->name + ", in shared memory, has a condition");
    if (const auto copy = SharedCopy::of(op)) return copied(*copy, first_of(op->name, op->index, type));
    if (type == UInt(16, 2)) return store_pair(op);
    if (!type.is_scalar()) throw BadInput("a vector that is no copy is stored to " + op->name + ", in shared memory");
    const Expr value = mutate(op->value);
    return Evaluate::make(store_element(address(op->name, mutate(op->index), type), value));
}

Expr LowerSharedMemory::visit(const Load *op) {
    if (arrays.count(op->name) == 0) return IRMutator::visit(op);
    if (!is_const_one(op->predicate)) throw BadInput("a load from " + op->name + ", in shared memory, has a condition");
    if (op->type.is_scalar()) return load_element(op->type, address(op->name, mutate(op->index), op->type));
    const Type element = op->type.element_of();
    if (op->type.lanes() == 2 && element == UInt(16)) return load_pair(op);
    const Expr at = address(op->name, mutate(first_of(op->name, op->index, op->type)), element);
    if (op->type.lanes() != 4) throw BadInput("vectors loaded from " + op->name + " are not of 4 x 32 bits");
    const std::string name = unique_name("four");
    const Expr four = Variable::make(UInt(128), name);
    std::vector<Expr> elements;
    for (int i = 0; i < 4; i++) elements.push_back(reinterpret(element, cuda::float_of(four, i)));
    return Let::make(name, cuda::load_shared_fragment(at), Shuffle::make_concat(elements));
}

Expr LowerSharedMemory::address_of_pair(const std::string &array, const Expr &index) {
    const auto *ramp = index.as<Ramp>();
    const Expr place = ramp != nullptr && is_const_one(ramp->stride) ? lets.in_full(ramp->base) : Expr();
    if (!place.defined() || !is_const_zero(simplify(place % 2))) {
        throw BadInput("pairs of " + array + ", in shared memory, are not neighbours of 4 aligned bytes");
    }
    return address(array, mutate(ramp->base), UInt(16));
}

Expr LowerSharedMemory::load_pair(const Load *op) {
    const std::string name = unique_name("pair");
    const Expr both = Variable::make(UInt(32), name);
    const Expr pair = Shuffle::make_concat({cast<uint16_t>(both), cast<uint16_t>(both >> 16)});
    return Let::make(name, cuda::load_shared_u32(address_of_pair(op->name, op->index)), pair);
}

Stmt LowerSharedMemory::store_pair(const Store *op) {
    const Expr pair = mutate(op->value);
    const auto half = [&](int i) { return cast<uint32_t>(Shuffle::make_extract_element(pair, i)); };
    return Evaluate::make(cuda::store_shared_u32(address_of_pair(op->name, op->index), half(0) | half(1) << 16));
}

Expr LowerSharedMemory::visit(const Call *op) {
    if (!is_shared_address(op)) return IRMutator::visit(op);
    const auto *array = op->args[0].as<StringImm>();
    return address(array->value, mutate(op->args[1]), UInt(8));
}

}  // namespace heed
