// Kernels of operations by instruction set.
#pragma once

#include "runtime/cpu.h"
#include "runtime/ops/op_kernels.h"
#include "tests/support/device.h"
#include "tests/support/table_kernels.h"

namespace heed_test {

// Calls `test` with the kernels up to each instruction set that the CPU has and with all of them; for CUDA, whose
// kernels that does not change, once.
template <class Test>
void on_each_cpu_target(const Test &test) {
    std::vector<heed::KernelTarget> targets = {heed::highest_cpu_target};
    for (const heed::Isa isa : {heed::Isa::x86_64, heed::Isa::avx2, heed::Isa::avx512, heed::Isa::avx512bf16}) {
        if (test_device() == HEED_CPU && heed::cpu_supports(isa)) targets.emplace_back(isa);
    }
    for (const heed::KernelTarget target : targets) {
        SCOPED_TRACE(testing::Message() << "kernels up to " << isa_name(target.value));
        heed::limit_op_target(target);
        test();
        heed::limit_op_target(heed::highest_cpu_target);
    }
}

}  // namespace heed_test
