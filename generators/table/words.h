#pragma once
// The words of kernels: element types, instruction sets.

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace heed::table {

using Words = std::vector<std::string>;

constexpr const char *f32 = "f32", *f16 = "f16", *bf16 = "bf16", *i8 = "i8", *u8 = "u8", *i32 = "i32";
constexpr const char *x86_64 = "x86_64", *avx2 = "avx2", *avx512 = "avx512", *avx512bf16 = "avx512bf16", *amx = "amx";
constexpr const char *sm75 = "sm75", *sm80 = "sm80", *sm90 = "sm90";

// In ascending order: a chip runs the kernels of those before its own; those of sm90 run on no later one.
// Whose kernels of 16-bit numbers compute in floats of whole vectors.
inline bool computes_in_floats(const std::string &isa) { return isa == avx2 || isa == avx512; }

inline Words cpu_isas() { return {x86_64, avx2, avx512, avx512bf16, amx}; }
inline Words cuda_isas() { return {sm75, sm80, sm90}; }

// The names of features, in their order.
Words feature_names();

inline bool contains(const Words &words, const std::string &word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

inline bool is_cuda(const std::string &isa) { return contains(cuda_isas(), isa); }

Words all_isas();
Words split(const std::string &text, char separator);
Words texts(const std::vector<int> &numbers);
std::string joined(const Words &words, const std::string &separator);

// use() gets a word of each list, once for each combination; the last list's words change fastest.
void for_each_of(const std::vector<Words> &lists, const std::function<void(const Words &)> &use,
                 const Words &chosen = {});

}  // namespace heed::table
