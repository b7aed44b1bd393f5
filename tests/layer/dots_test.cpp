// Dense layers of bf16 where dot products of pairs are slower than floats.
#include "runtime/cpu.h"
#include "runtime/ops/op_kernels.h"
#include "tests/layer/small_layer.h"

namespace heed_test {
namespace {

TEST(LayerDots, SlowOnesLeaveTheirProductsToFloats) {
    if (!machine_has(HEED_AVX512_BF16) || machine_has(HEED_AMX) || !heed::has_slow_bf16_dots()) {
        GTEST_SKIP() << "dot products of bf16 are fast, or AMX has them, or this machine has none";
    }
    const SmallLayer small(HEED_BF16);
    const heed::Layer layer = small.make();
    heed::limit_op_target(heed::Isa::avx512);
    const heed::Layer in_floats = small.make();
    heed::limit_op_target(heed::Isa::avx512bf16);
    const heed::Layer in_dots = small.make();
    heed::limit_op_target(heed::highest_cpu_target);
    const std::vector<float> y = GuardedCall(layer, HEED_BF16, 3, 24).run();
    EXPECT_EQ(y, GuardedCall(in_floats, HEED_BF16, 3, 24).run());
    expect_near(GuardedCall(in_dots, HEED_BF16, 3, 24).run(), y, 0x1p-6);
}

}  // namespace
}  // namespace heed_test
