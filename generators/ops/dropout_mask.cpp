#include "generators/ops/dropout_mask.h"

namespace heed {

using namespace Halide;

DropoutMaskKernel::DropoutMaskKernel() {
    Expr row_first = first + cast<uint64_t>(i) * row_length;
    const std::array<Expr, 4> four =
        philox_words(DropoutStream::of(seed, offset), (row_first >> 2) + cast<uint64_t>(counter));
    words(counter, i) = Tuple(four[0], four[1], four[2], four[3]);
    Tuple at = words(k / 4, i);
    kept(k, i) = cast<uint8_t>(dropout_keeps(mux(k % 4, {at[0], at[1], at[2], at[3]}), threshold));
    keep(j, i) = kept(j + clamp(cast<int32_t>(row_first & 3), 0, 3), i);
    keep.output_buffer().dim(0).set_min(0);
    keep.output_buffer().dim(1).set_min(0);
}

}  // namespace heed
