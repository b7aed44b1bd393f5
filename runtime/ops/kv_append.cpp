// heed_kv_append.
#include "runtime/backend.h"
#include "runtime/float_environment.h"
#include "runtime/ops/append_call.h"

namespace heed {
namespace {

heed_status run_append(const heed_kv_append_args &a, const AppendCall &call) {
    if (const heed_status status = backend_of(a.execution.device).append(a, call)) return status;
    for (int32_t b = 0; b < a.cache.batch; b++) a.cache.kv_lens[b] = call.lengths[b].kv_len + call.lengths[b].new_len;
    return HEED_OK;
}

}  // namespace
}  // namespace heed

extern "C" heed_status heed_kv_append(const heed_kv_append_args *args) {
    const heed::DefaultFloatEnvironment environment;
    heed_status status = heed::check_given("heed_kv_append", "args", "heed_kv_append_args", args);
    if (status) return status;
    heed_kv_append_args a = *args;
    heed_rope_tables rope = {};
    if (a.rope != nullptr) {
        rope = *a.rope;
        a.rope = &rope;
    }
    heed::AppendCall call(a.execution);
    status = heed::check_append(a, &call);
    return status ? status : heed::run_append(a, call);
}
