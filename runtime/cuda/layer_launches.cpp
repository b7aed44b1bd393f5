#include "cuda/layer_launches.h"

#include <algorithm>

#include "cuda/op_session.h"
#include "status.h"

namespace heed::cuda {
heed_status launch_clip(const heed_execution &execution, heed_dtype dtype, void *data, int64_t elements, float limit) {
    OpSession session;
    heed_status status = session.open(execution, Op::clip, dtype, dtype);
    const int64_t bytes = dtype_bytes(dtype), most = max_count - 16;  // a multiple of 16 bytes
    for (int64_t first = 0; first < elements && !status; first += most) {
        const auto count = static_cast<int32_t>(std::min(elements - first, most));
        char *const at = static_cast<char *>(data) + first * bytes;
        ClipArguments arguments;
        arguments.count = count;
        arguments.wide = (address_of(at) | static_cast<uint64_t>(count * bytes)) % 16 == 0;
        arguments.limit = limit;
        arguments.x_first = address_of(at);
        arguments.named = named(at);
        status = launch_op(session.row(), arguments, session.launches());
    }
    return status;
}

heed_status launch_norm(const heed_execution &execution, heed_dtype dtype, const NormRows &norm) {
    if (norm.rows > max_count) {
        return fail(HEED_UNSUPPORTED, "%lld rows of q or k are to be normalised; CUDA serves 2^30",
                    static_cast<long long>(norm.rows));
    }
    OpSession session;
    if (const heed_status status = session.open(execution, Op::layer_norm, dtype, dtype)) return status;
    const auto row_bytes = static_cast<uint64_t>(norm.length * int64_t{dtype_bytes(dtype)});
    LayerNormArguments arguments;
    arguments.rows = static_cast<int32_t>(norm.rows);
    arguments.length = norm.length;
    arguments.wide = (address_of(norm.data) | row_bytes) % 16 == 0;
    arguments.epsilon = norm.epsilon;
    arguments.x_first = address_of(norm.data);
    arguments.weight_first = address_of(norm.weight);
    arguments.bias_first = address_of(norm.bias);
    arguments.named = named(norm.data);
    return launch_op(session.row(), arguments, session.launches());
}

heed_status launch_key_padding(const heed_execution &execution, const KeyPadding &p) {
    int64_t elements = 0;
    // Blocks of a launch; a block has 256 keys of a line or fewer.
    if (!checked_mul(p.lines, p.keys / 256 + 1, &elements) || elements > INT32_MAX) {
        return fail(HEED_UNSUPPORTED, "key_padding joins %lld lines of %d keys; CUDA serves 2^31 blocks of 256 keys",
                    static_cast<long long>(p.lines), p.keys);
    }
    OpSession session;
    if (const heed_status status = session.open(execution, Op::key_padding, HEED_U8, HEED_U8)) return status;
    const auto stride = [&](int axis) { return static_cast<uint64_t>(p.mask == nullptr ? 0 : p.view.stride[axis]); };
    KeyPaddingArguments arguments;
    arguments.lines = static_cast<int32_t>(p.lines);
    arguments.heads = p.heads;
    arguments.rows = p.rows;
    arguments.keys = p.keys;
    arguments.true_hides = p.true_hides;
    arguments.as_bias = p.as_bias;
    arguments.padding_first = address_of(p.padding);
    arguments.mask_first = address_of(p.mask);
    arguments.mask_batch = stride(0);
    arguments.mask_head = stride(1);
    arguments.mask_row = stride(2);
    arguments.mask_key = stride(3);
    arguments.out_first = address_of(p.out);
    arguments.named = named(p.out);
    return launch_op(session.row(), arguments, session.launches());
}

heed_status launch_clear(const heed_execution &execution, void *data, int64_t bytes) {
    const char *reason = nullptr;
    const Driver *const driver = find_driver(&reason);
    if (driver == nullptr) return fail(HEED_NO_DEVICE, "execution.device is HEED_CUDA; %s", reason);
    const auto stream = static_cast<Stream>(execution.stream);
    return check(*driver, driver->memset_async(address_of(data), 0, static_cast<size_t>(bytes), stream),
                 "cuMemsetD8Async");
}

}  // namespace heed::cuda
