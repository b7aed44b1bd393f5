#pragma once
// A padding of keys joined with a mask: a key is hidden where either hides it. The result is bytes of the mask's
// convention, or a bias.

#include "generators/common/device_memory.h"
#include "generators/contract/cuda_layer_arguments.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(KeyPaddingArguments, HEED_CUDA_KEY_PADDING)

struct KeyPaddingDevice : KeyPaddingArguments, Results {
    Halide::Var j{"j"}, line{"line"};
    Halide::Func hidden{"hidden"};  // (j, line)
    Halide::RDom all;               // key, line

    KeyPaddingDevice() : all(0, keys, 0, lines, "all") {
        using Halide::Expr;
        const Expr above = line / rows, i = line % rows, b = above / heads, h = above % heads;
        const auto hides = [&](const Expr &byte) { return (byte != 0) == (true_hides != 0); };
        const Expr padding = load_at(Halide::UInt(8), after(padding_first, b, bytes_of(Halide::UInt(8), keys)), j);
        const Expr line_first = after(after(after(mask_first, b, mask_batch), h, mask_head), i, mask_row);
        const Expr has_mask = mask_first != Halide::cast<uint64_t>(0);
        const Expr mask = load_at_if(has_mask, Halide::UInt(8), after(line_first, j, mask_key), 0);
        hidden(j, line) = hides(padding) || (has_mask && hides(mask));

        const Expr hides_key = hidden(all.x, all.y);
        const Expr byte = Halide::cast<uint8_t>(hides_key == (true_hides != 0));
        const Expr bias = select(hides_key, negative_infinity_bits, 0);
        const auto out_at = [&](const Expr &value) { return after(out_first, all.y, bytes_of(value.type(), keys)); };
        add(store_at_if(as_bias == 0, out_at(byte), all.x, byte) +
            store_at_if(as_bias != 0, out_at(bias), all.x, bias));
    }
};

}  // namespace heed
