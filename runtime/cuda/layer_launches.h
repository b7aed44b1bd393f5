// What a layer on CUDA launches between projections and attention, on its execution's stream.
#pragma once

#include "cuda/driver.h"
#include "heed/heed.h"
#include "view.h"

namespace heed::cuda {

// Clamps elements to [-limit, limit]; NaN stays.
heed_status launch_clip(const heed_execution &execution, heed_dtype dtype, void *data, int64_t elements, float limit);

// Packed rows of `length` elements, in place; weight and bias of `length` floats.
struct NormRows {
    void *data;
    int64_t rows;
    int32_t length;
    const float *weight, *bias;
    float epsilon;
};
heed_status launch_norm(const heed_execution &execution, heed_dtype dtype, const NormRows &norm);

// A key padding [batch, keys], alone or joined with a mask, for every line (sequence * heads + head) * rows + row.
struct KeyPadding {
    const void *padding;
    const void *mask;  // NULL = none; else `view` of [batch, heads, rows, keys]
    View view;
    int32_t heads, rows, keys;
    int64_t lines;
    bool true_hides;
    bool as_bias;  // f32, 0 and minus infinity; else uint8 as the mask
    void *out;     // [lines, keys]
};
heed_status launch_key_padding(const heed_execution &execution, const KeyPadding &padding);

// Zeroes the bytes; the stream's context is current.
heed_status launch_clear(const Driver &driver, Stream stream, void *data, int64_t bytes);

}  // namespace heed::cuda
