#include "cuda/layer_launches.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

#include "cuda/op_session.h"
#include "status.h"

namespace heed::cuda {
namespace {

heed_status launch(OpSession *session, std::initializer_list<OpArgument> arguments) {
    return launch_op(session->row(), arguments.begin(), static_cast<int>(arguments.size()), session->launches());
}

}  // namespace

heed_status launch_clip(const heed_execution &execution, heed_dtype dtype, void *data, int64_t elements, float limit) {
    OpSession session;
    heed_status status = session.open(execution, Op::clip, dtype, dtype);
    const int64_t bytes = dtype_bytes(dtype), most = max_count - 16;  // a multiple of 16 bytes
    for (int64_t first = 0; first < elements && !status; first += most) {
        const auto count = static_cast<int32_t>(std::min(elements - first, most));
        char *const at = static_cast<char *>(data) + first * bytes;
        const int32_t wide = (address_of(at) | static_cast<uint64_t>(count * bytes)) % 16 == 0;
        status = launch(&session, {count, wide, limit, address_of(at), named(at)});
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
    const int32_t rows = static_cast<int32_t>(norm.rows), wide = (address_of(norm.data) | row_bytes) % 16 == 0;
    return launch(&session, {rows, norm.length, wide, norm.epsilon, address_of(norm.data), address_of(norm.weight),
                             address_of(norm.bias), named(norm.data)});
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
    const int32_t lines = static_cast<int32_t>(p.lines), hides = p.true_hides, as_bias = p.as_bias;
    const auto stride = [&](int axis) { return static_cast<uint64_t>(p.mask == nullptr ? 0 : p.view.stride[axis]); };
    return launch(&session, {lines, p.heads, p.rows, p.keys, hides, as_bias, address_of(p.padding), address_of(p.mask),
                             stride(0), stride(1), stride(2), stride(3), address_of(p.out), named(p.out)});
}

heed_status launch_clear(const Driver &driver, Stream stream, void *data, int64_t bytes) {
    const int code = driver.memset_async(address_of(data), 0, static_cast<size_t>(bytes), stream);
    return check(driver, code, "cuMemsetD8Async");
}

}  // namespace heed::cuda
