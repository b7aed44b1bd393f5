#pragma once
// heed_generate list=FUNCTION TARGET WORDS..: what the call FUNCTION(TARGET WORDS..) of CMake adds, a line for each
// kernel: its arguments of heed_generate. FUNCTION: heed_add_kernels, heed_add_attention_kernels, heed_add_op_kernels,
// heed_add_all_operations; heed_add_kernel_library, whose call is only checked. list=cpu_isas: the
// instruction sets of CPUs, in ascending order.

namespace heed {

// Whether the program is asked for a list.
bool is_asked_for_list(int argc, char **argv);

// The program's exit status; prints the list, or why the call is refused.
int print_list(int argc, char **argv);

}  // namespace heed
