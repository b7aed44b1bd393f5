#include "generators/cuda/token_segments.h"

namespace heed::cuda {

using namespace Halide;

Segment read_segment(DeviceCode &code, const MoveInputs &in, const Expr &number) {
    const std::vector<Expr> words = LaunchWords(in.word).find(code, number);
    return {words[0], words[1], words[2], code.let("tokens", cast<int32_t>(cast<uint32_t>(words[3]))),
            code.let("table_row", cast<uint32_t>(words[3] >> 32))};
}

}  // namespace heed::cuda
