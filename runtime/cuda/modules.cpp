#include "runtime/cuda/modules.h"

namespace heed::cuda {
namespace {

// What any kernel may use without being asked.
constexpr int default_shared_bytes = 48 << 10;

// Loading counts as unsafe during a capture, though it does not touch the captured stream.
class RelaxedCapture {
public:
    explicit RelaxedCapture(const Driver &driver) : driver_(driver) {
        driver_.thread_exchange_stream_capture_mode(&mode_);
    }
    ~RelaxedCapture() { driver_.thread_exchange_stream_capture_mode(&mode_); }
    RelaxedCapture(const RelaxedCapture &) = delete;
    RelaxedCapture &operator=(const RelaxedCapture &) = delete;

private:
    const Driver &driver_;
    int mode_ = capture_relaxed;
};

Function function_of(const ContextWords &words) { return static_cast<Function>(pointer_of(words[0])); }

}  // namespace

heed_status Image::load(const Driver &driver, uint64_t context_id, const char *entry, Function *function) {
    Module module = nullptr;
    if (const heed_status status = check(driver, driver.module_load_data(&module, data_), "cuModuleLoadData")) {
        return status;
    }
    ContextWords words = {};
    if (kernels_.find(context_id, &words)) {  // another thread was faster
        *function = function_of(words);
        return check(driver, driver.module_unload(module), "cuModuleUnload");
    }
    const heed_status status =
        check(driver, driver.module_get_function(function, module, entry), "cuModuleGetFunction");
    if (status) driver.module_unload(module);
    return status;
}

heed_status Image::find(const Driver &driver, uint64_t context_id, const char *entry, int shared_bytes,
                        Function *function) {
    ContextWords words = {};
    const bool known = kernels_.find(context_id, &words);
    *function = function_of(words);
    if (known && words[1] >= static_cast<uint64_t>(shared_bytes)) return HEED_OK;

    const RelaxedCapture relaxed(driver);
    if (!known) {
        if (const heed_status status = load(driver, context_id, entry, function)) return status;
    }
    if (shared_bytes > default_shared_bytes) {
        const int code = driver.func_set_attribute(*function, function_max_dynamic_shared_bytes, shared_bytes);
        if (const heed_status status = check(driver, code, "cuFuncSetAttribute")) return status;
    }
    const int allowed = shared_bytes > default_shared_bytes ? shared_bytes : default_shared_bytes;
    kernels_.insert(context_id, {reinterpret_cast<uintptr_t>(*function), static_cast<uint64_t>(allowed)});
    return HEED_OK;
}

}  // namespace heed::cuda
