#pragma once
// Attention on CUDA cores: f32, and 16 bits before sm_80.

#include "generators/ops/attention_device.h"

namespace heed {

struct AttentionForm {
    AttentionDevice::Tile tile;
    int rows_of_thread, threads_of_row, blocks;  // blocks: that an SM's registers are to hold

    int threads() const { return tile.products.rows / rows_of_thread * threads_of_row; }
};
AttentionForm attention_form_cuda(const AttentionConfig &config);
int attention_cores_shared_bytes(const AttentionConfig &config);
Halide::Module attention_cores_cuda(const std::string &name, const AttentionConfig &config,
                                    const Halide::Target &target);

}  // namespace heed
