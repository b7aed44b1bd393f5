#pragma once
// Tensors at addresses that a kernel is given: an algorithm reads elements and stores results by these calls, which
// lowering/cuda turns into accesses. Addresses are UInt(64), indices Int(32), in elements.

#include "generators/common/kernel_arguments.h"

namespace heed {

Halide::Expr load_at(const Halide::Type &type, const Halide::Expr &address, const Halide::Expr &index);
// 0 unless `on`: nothing is read then.
Halide::Expr load_at_if(const Halide::Expr &on, const Halide::Type &type, const Halide::Expr &address,
                        const Halide::Expr &index);
// What is copied to shared memory: the same, by chunks of 16 bytes. Where `whole` does not hold they are not aligned,
// and their elements are read one by one, zeros from index `end` on; undefined: chunks end where rows do.
Halide::Expr load_chunks_if(const Halide::Expr &on, const Halide::Expr &whole, const Halide::Type &type,
                            const Halide::Expr &address, const Halide::Expr &index, const Halide::Expr &end = {});
// An element as a float.
Halide::Expr float_at(ElementType type, const Halide::Expr &address, const Halide::Expr &index);
// Its value, UInt(8), means nothing; those of several stores may be added. _if: nothing is stored unless `on`.
Halide::Expr store_at(const Halide::Expr &address, const Halide::Expr &index, const Halide::Expr &value);
Halide::Expr store_at_if(const Halide::Expr &on, const Halide::Expr &address, const Halide::Expr &index,
                         const Halide::Expr &value);
// A UInt(32) where 0 was, atomically; the same sums.
Halide::Expr store_at_if_zero(const Halide::Expr &on, const Halide::Expr &address, const Halide::Expr &value);
// Where a buffer is on the device, 0 where it is not: see lowering/cuda/host_addresses.h.
Halide::Expr address_of(const Halide::OutputImageParam &buffer);
// Word `w` of an entry, Int(32), of a list of words: see lowering/cuda/entry_words.h.
Halide::Expr entry_word(const WordParams &list, const Halide::Expr &entry, int w);

// x * y + z, rounded once; 2^x, to 2 ulp: subnormal results are 0, NaN stays NaN; the greater one, of NaN and x it is
// x; 1 / x, to 1 ulp; the absolute value.
Halide::Expr fused_on_device(const Halide::Expr &x, const Halide::Expr &y, const Halide::Expr &z);
Halide::Expr exp2_on_device(const Halide::Expr &x);
Halide::Expr maximum_on_device(const Halide::Expr &x, const Halide::Expr &y);
Halide::Expr reciprocal_on_device(const Halide::Expr &x);
Halide::Expr magnitude_on_device(const Halide::Expr &x);
// The nearest number of a type of 16 bits, as a float: an operand of LowerTileProducts.
Halide::Expr rounded_on_device(ElementType type, const Halide::Expr &x);
// Two floats as elements of 16 bits, UInt(32), rounded to nearest even; `low` in the low half.
Halide::Expr packed_on_device(ElementType type, const Halide::Expr &low, const Halide::Expr &high);
// -0, a factor whose product is left out of a sum, as it may be NaN: select(bits of a are these, c, c + a * b).
constexpr uint32_t left_out_bits = 0x80000000;
// Which terms LowerTileProducts sums, for RDom::where: Halide does not make bounds of loops of it.
Halide::Expr of_terms(const Halide::Expr &condition);

// A condition that is the same in all threads of a block: see lowering/cuda/block_branches.h.
Halide::Expr same_for_block(const Halide::Expr &condition);
// Whether a stage, at this step of its loop, is computed for the second time: see lowering/cuda/repeat_loops.h.
Halide::Expr in_repetition(const Halide::Expr &step);

// Bytes of `count` elements, and the address after count * bytes, UInt(64).
Halide::Expr bytes_of(const Halide::Type &type, const Halide::Expr &count);
Halide::Expr after(const Halide::Expr &address, const Halide::Expr &count, const Halide::Expr &bytes);

// Elements of 16 bytes.
inline int chunk_of(ElementType type) { return 16 / stored_type(type).bytes(); }

// The output of a kernel whose results go to addresses: a byte that only names the device. The kernel consists of
// parts, each a definition: store_at() for all of a domain. A part whose domain is empty does nothing.
struct Results {
    Halide::Func named{"named"};
    int parts = 0;

    Results();
    void add(const Halide::Expr &stored);
    Halide::Pipeline pipeline() const { return Halide::Pipeline(named); }
};

}  // namespace heed
