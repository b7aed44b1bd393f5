#pragma once
// What CUDA device code can say that Halide cannot: each function makes a call that Halide's PTX backend leaves as a
// call of an unknown function and the rewriter (ptx_rewriter.h) replaces by the PTX of intrinsic_templates().
//
// A fragment is four 32-bit registers of a thread, a value of type UInt(128). Shared memory is one array from
// shared_begin() on; its addresses are Int(32), those of global memory UInt(64). Fragments of mma.m16n8k16 (PTX ISA,
// "Matrix Fragments"), for a lane with g = lane / 4 and q = lane % 4:
//   A (16 x 16, 16 bit)  (g, 2q..), (g + 8, 2q..), (g, 2q + 8..), (g + 8, 2q + 8..)
//   B (16 x 8, 16 bit)   (2q.., g), (2q + 8.., g): 64 bits
//   C (16 x 8, f32)      (g, 2q), (g, 2q + 1), (g + 8, 2q), (g + 8, 2q + 1)

#include <map>
#include <string>
#include <vector>

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed::cuda {

using Halide::Expr;

// ---- Fragments
Expr fragment(const Expr &a, const Expr &b, const Expr &c, const Expr &d);  // of four f32 or four u32
Expr zero_fragment();
Expr float_of(const Expr &fragment, int i);
Expr low_half(const Expr &fragment);   // UInt(64): the B fragment in registers 0 and 1
Expr high_half(const Expr &fragment);  // UInt(64): in registers 2 and 3
// c + a x b, products of f16 or bf16 summed in f32.
Expr mma(ElementType type, const Expr &a, const Expr &b, const Expr &c);
// Two floats as 16-bit elements, rounded to nearest even; `low` in the low half.
Expr pack(ElementType type, const Expr &low, const Expr &high);
// A fragment of ones, zeros where elements of another one have their sign set; made anew where it is used.
Expr ones_unless_negative(ElementType type, const Expr &fragment);
Expr negate_signs(const Expr &fragment, const Expr &mask);  // xor of each register with a UInt(32)
// Two B fragments of eight int8 codes in a UInt(64), exactly: of neighbouring codes, a half of the result from each
// word; or of f16, every other code of both words, beginning with the first one and with the second one.
Expr neighbouring_codes(ElementType type, const Expr &two_words);
Expr alternate_codes(const Expr &two_words);

// ---- Where the thread is, read anew: what is computed from these does not stay in registers from earlier on
Expr thread_index();
Expr block_index();

// ---- Shared memory
Expr shared_begin();
// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8. Transposed: each.
Expr load_matrices(const Expr &address);
Expr load_matrices_transposed(const Expr &address);
Expr load_shared_u16(const Expr &address);  // as UInt(32)
Expr load_shared_u32(const Expr &address);
Expr load_shared_u64(const Expr &address);
Expr load_shared_fragment(const Expr &address);
Expr store_shared_u8(const Expr &address, const Expr &value);   // value UInt(32)
Expr store_shared_u16(const Expr &address, const Expr &value);  // value UInt(32)
Expr store_shared_u32(const Expr &address, const Expr &value);
Expr store_shared_u64(const Expr &address, const Expr &value);
Expr store_shared_fragment(const Expr &address, const Expr &value);
// 16 bytes from global to shared memory, asynchronously; of the source only `bytes` (0 or 16) are read, the rest is 0.
Expr copy_async(const Expr &to, const Expr &from, const Expr &bytes);
Expr copy_word_async(const Expr &to, const Expr &from, const Expr &bytes);  // the same of 4 bytes
Expr commit_copies();              // the copies since the last commit are a group
Expr wait_copies();                // until none of this thread's copies is under way
Expr barrier();                    // of all threads of the block
Expr barrier_any(const Expr &on);  // the same; Int(32) not 0 when `on` (Int(32)) is not 0 in some thread

// ---- Global memory
Expr advance(const Expr &address, const Expr &bytes);  // their sum, which the compiler takes apart for no loop
Expr load_fragment(const Expr &address);
Expr load_fragment_if(const Expr &address, const Expr &on);  // zero unless `on` (Int(32))
Expr load_u8_if(const Expr &address, const Expr &on);        // as UInt(32)
Expr load_u16_if(const Expr &address, const Expr &on);       // as UInt(32)
Expr load_u32_if(const Expr &address, const Expr &on);
Expr load_u8(const Expr &address);   // as UInt(32)
Expr load_u16(const Expr &address);  // as UInt(32)
Expr load_i32(const Expr &address);
Expr store_fragment(const Expr &address, const Expr &value);
Expr store_u8(const Expr &address, const Expr &value);   // value UInt(32)
Expr store_u16(const Expr &address, const Expr &value);  // value UInt(32)
Expr store_u32(const Expr &address, const Expr &value);
Expr store_u64(const Expr &address, const Expr &value);
Expr store_u32_if_zero(const Expr &address, const Expr &value);  // atomically

// ---- Arithmetic
Expr from_lane(const Expr &x, int mask);  // x of the lane whose number differs by this bit
Expr any_lane(const Expr &on);            // Int(32) not 0 when `on` (Int(32)) is not 0 in some lane
Expr add_infinity(const Expr &x, bool negative);

// PTX of each intrinsic: $0, $1, .. are its arguments, $r its result, of 128-bit values $0.0 and $0.1 the halves.
// Lines between braces have registers of their own.
const std::map<std::string, std::string> &intrinsic_templates();

}  // namespace heed::cuda
