#pragma once
// Arrays in shared memory: MemoryType::GPUShared, of which Halide lays some over each other, and MemoryType::Stack,
// which have a place of their own. Halide goes by the order of stages: it lays an array of a loop over one from before
// the loop that earlier stages of the loop read, and a small array that lives long over a large one that was free,
// which the next one of its size then has not got.
//
// Halide addresses them from 0 on, where sm_90 has a KiB of its own; kernels here have one array, at
// cuda::shared_begin(). This pass lays out the arrays of a kernel in it, one after the other, and makes an instruction
// with its address there of each access: of an element, of two neighbours of 16 bits, of four of 32 that are read, or
// a copy of 16 bytes from a tensor at an address. It refuses other vectors.

#include <map>
#include <optional>
#include <set>
#include <string>

#include "Halide.h"
#include "generators/lowering/cuda/lets.h"

namespace heed {

bool is_shared_array(const Halide::Internal::Allocate *op);

// The address, Int(32), of byte number `offset` of an array, for passes that make instructions of their own.
Halide::Expr shared_address(const std::string &array, const Halide::Expr &offset);
bool is_shared_address(const Halide::Internal::Call *op);

// Whether element number `index`, in full, of an array is at a multiple of 16 bytes.
bool begins_chunk(const Halide::Expr &index, const Halide::Type &type);

// 16 bytes of a tensor at an address that are stored in an array: elements from number `index` on become those from
// number `to` on; or one element of 4 bytes. on: Int(32), undefined for always; zeros are stored where it is 0. whole:
// Int(32), undefined for always; where it is 0 the bytes are not aligned, and elements from index `end` on are zeros;
// undefined: there are none. flipped: bits of elements; undefined: none.
struct SharedCopy {
    std::string array;
    Halide::Type type;  // of an element
    Halide::Expr to, address, index, on, whole, flipped, end;
    int bytes = 16;

    // Of 16 bytes; none for a store of one element.
    static std::optional<SharedCopy> of(const Halide::Internal::Store *op);
    // The same, and of 4 bytes.
    static std::optional<SharedCopy> of_any(const Halide::Internal::Store *op);
    Halide::Expr to_address() const;
    // `some`: bytes that are read of it.
    Halide::Expr ahead(const Halide::Expr &at, const Halide::Expr &from, const Halide::Expr &some) const;
    // Copies element e, `from` the address of the first.
    Halide::Internal::Stmt element(const Halide::Expr &at, const Halide::Expr &from, const Halide::Expr &e) const;
    // The loop over elements, of `type`, whose number is the variable `each`.
    static Halide::Internal::Stmt each_element(const std::string &each, const Halide::Type &type,
                                               const Halide::Internal::Stmt &body);
};

class LowerSharedMemory : public Halide::Internal::IRMutator {
public:
    // bytes: of a block, which the arrays must need exactly; may_need_less: not what a score function leaves unread.
    // first: names of Funcs whose arrays come before all others, panels (cuda/warpgroup.h), which begin at multiples of
    // 1024 bytes.
    explicit LowerSharedMemory(int bytes, bool may_need_less = false, std::set<std::string> first = {})
        : bytes(bytes), may_need_less(may_need_less), first(std::move(first)) {}
    int found = 0;  // arrays

private:
    struct Array {
        int begin;  // byte
        bool is_first;
    };
    const int bytes;
    const bool may_need_less;
    const std::set<std::string> first;
    int kernels = 0, used = 0;
    std::map<std::string, Array> arrays;
    Lets lets;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::LetStmt *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Free *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Store *op) override;
    Halide::Expr visit(const Halide::Internal::Load *op) override;
    Halide::Expr visit(const Halide::Internal::Call *op) override;

    Halide::Expr address_of_pair(const std::string &array, const Halide::Expr &index);
    Halide::Expr load_pair(const Halide::Internal::Load *op);
    Halide::Internal::Stmt store_pair(const Halide::Internal::Store *op);
    Halide::Internal::Stmt copied(SharedCopy copy, const Halide::Expr &to);
    void lay_out(const Halide::Internal::Stmt &kernel);
    Halide::Expr address(const std::string &array, const Halide::Expr &index, const Halide::Type &type) const;
    // The first of neighbours that are 16 bytes, aligned.
    Halide::Expr first_of(const std::string &array, const Halide::Expr &index, const Halide::Type &type) const;
};

}  // namespace heed
