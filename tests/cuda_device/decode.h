// What a statement means, as micro-operations. Throws ParseError where it is not understood.
#pragma once

#include "tests/cuda_device/kernel_builder.h"

namespace heed::device {

// `target`: of the module, 80 for sm_80.
void decode(KernelBuilder &builder, const Statement &statement, int target);

// Parts of the above. False where the opcode is none of theirs.
bool decode_memory(KernelBuilder &builder, const Statement &statement, int target);
bool decode_warp(KernelBuilder &builder, const Statement &statement, int target);

// Shared by the parts.
void expect_operands(const Statement &statement, size_t at_least, size_t at_most);
void expect_target(int target, int needed);
// "{a, b}" as its pieces; anything else as one.
std::vector<std::string> elements(const std::string &text);
// "a|b" as two.
std::vector<std::string> alternatives(const std::string &text);

}  // namespace heed::device
