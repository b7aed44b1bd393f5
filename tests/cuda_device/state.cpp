#include "tests/cuda_device/state.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace heed::device {
namespace {

int number_from_environment(const char *name, int otherwise) {
    const char *text = std::getenv(name);
    return text == nullptr || *text == '\0' ? otherwise : std::atoi(text);
}

// "8.0" as 80.
int capability_from_environment() {
    const char *text = std::getenv("HEED_CUDA_DEVICE_CAPABILITY");
    int major = 9, minor = 0;
    if (text != nullptr && std::sscanf(text, "%d.%d", &major, &minor) != 2)
        std::fprintf(stderr, "heed_cuda_device: HEED_CUDA_DEVICE_CAPABILITY=%s is not understood\n", text);
    return major * 10 + minor;
}

bool parse_option(const std::string &key, const std::string &value, Options *options) {
    const auto number = [](const std::string &text, uint64_t *to) {
        char *end = nullptr;
        *to = std::strtoull(text.c_str(), &end, 10);
        return !text.empty() && *end == '\0';
    };
    if (key == "order") {
        if (value == "default") return options->order = Order::any, true;
        if (value == "ascending") return options->order = Order::ascending, true;
        if (value == "descending") return options->order = Order::descending, true;
        options->order = Order::random;
        return value.compare(0, 7, "random:") == 0 && number(value.substr(7), &options->seed);
    }
    if (key == "arrival" && (value == "early" || value == "late")) return options->late_arrival = value == "late", true;
    if (key == "products" && (value == "early" || value == "late")) {
        return options->late_products = value == "late", true;
    }
    if (key == "checks" && (value == "on" || value == "off")) return options->checks = value == "on", true;
    if (key == "traffic" && (value == "on" || value == "off")) return options->traffic = value == "on", true;
    return key == "steps" && number(value, &options->step_limit) && options->step_limit > 0;
}

}  // namespace

bool parse_options(const std::string &text, Options *options) {
    Options parsed = *options;
    size_t begin = 0;
    while (begin < text.size()) {
        const size_t end = std::min(text.find_first_of(", ", begin), text.size());
        const std::string option = text.substr(begin, end - begin);
        const size_t equals = option.find('=');
        begin = end + 1;
        if (option.empty()) continue;
        if (equals == std::string::npos || !parse_option(option.substr(0, equals), option.substr(equals + 1), &parsed))
            return false;
    }
    *options = parsed;
    return true;
}

State &state() {
    // Never destroyed: other threads may still call at exit.
    static State *const the_state = [] {
        auto *made = new State;
        made->num_devices = number_from_environment("HEED_CUDA_DEVICES", 1);
        made->capability = capability_from_environment();
        const char *options = std::getenv("HEED_CUDA_DEVICE_OPTIONS");
        if (options != nullptr && !parse_options(options, &made->options))
            std::fprintf(stderr, "heed_cuda_device: HEED_CUDA_DEVICE_OPTIONS=%s is not understood\n", options);
        return made;
    }();
    return *the_state;
}

CUresult report(CUresult code, const std::string &sentence) {
    state().last_error = sentence;
    std::fprintf(stderr, "heed_cuda_device: %s\n", sentence.c_str());
    return code;
}

uint32_t max_shared_bytes() {
    const int capability = state().capability;
    const int kib = capability < 80                        ? 64
                    : capability == 80 || capability == 87 ? 163
                    : capability < 90                      ? 99
                    : capability < 120                     ? 227
                                                           : 99;
    return static_cast<uint32_t>(kib) * 1024;
}

std::vector<CUcontext> &context_stack() {
    static thread_local std::vector<CUcontext> stack;
    return stack;
}

CUcontext current_handle() {
    const std::vector<CUcontext> &stack = context_stack();
    return stack.empty() || state().contexts.find(stack.back()) == nullptr ? nullptr : stack.back();
}

Context *current_context() { return state().contexts.find(current_handle()); }

void destroy_context(CUcontext handle) {
    State &s = state();
    const Context *context = s.contexts.find(handle);
    const auto belongs = [context](const auto &object) { return object.context == context; };
    s.modules.remove_if(belongs);
    s.functions.remove_if(belongs);
    s.streams.remove_if(belongs);
    s.events.remove_if(belongs);
    s.graphs.remove_if(belongs);
    s.graph_execs.remove_if(belongs);
    s.memory.free_all(context->id);
    s.contexts.remove(handle);
}

CUresult submit(Context &context, CUstream handle, Work work) {
    const auto number = reinterpret_cast<uintptr_t>(handle);
    if (number <= 2) {
        // The default streams wait for every blocking stream, which a capturing one cannot do.
        bool implicit = false;
        state().streams.for_each([&](const void *, Stream &stream) {
            if (stream.context != &context || !stream.blocking || stream.capture != capture_active) return;
            stream.capture = capture_broken;
            implicit = true;
        });
        if (implicit) return report(cuda_capture_implicit, "work on the default stream while a stream captures");
        return work();
    }
    Stream *stream = state().streams.find(handle);
    if (stream == nullptr) return report(cuda_invalid_handle, "there is no such stream");
    if (stream->context != &context) return report(cuda_invalid_handle, "the stream belongs to another context");
    if (stream->capture == capture_broken) return cuda_capture_invalidated;
    if (stream->capture == capture_none) return work();
    stream->captured.push_back(std::move(work));
    return cuda_success;
}

}  // namespace heed::device
