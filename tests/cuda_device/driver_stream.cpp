// Streams, captures, graphs and events of the emulated driver.
#include "tests/cuda_device/state.h"

using namespace heed::device;

namespace {

thread_local int thread_capture_mode = capture_global;

Stream *find_stream(const Context &context, CUstream handle, CUresult *code) {
    Stream *stream = state().streams.find(handle);
    if (stream != nullptr && stream->context == &context) return stream;
    *code = report(cuda_invalid_handle,
                   stream == nullptr ? "there is no such stream" : "the stream belongs to another context");
    return nullptr;
}

CUresult run_all(const std::vector<Work> &work) {
    for (const Work &step : work) {
        const CUresult code = step();
        if (code != cuda_success) return code;
    }
    return cuda_success;
}

bool is_default(CUstream handle) { return reinterpret_cast<uintptr_t>(handle) <= 2; }

}  // namespace

// What cuThreadExchangeStreamCaptureMode says: a relaxed thread may do anything; others not during a capture of their
// own that is not relaxed, and, unless they are thread-local, during any thread's global one.
bool heed::device::breaks_capture() {
    if (thread_capture_mode == capture_relaxed) return false;
    bool broken = false;
    state().streams.for_each([&](const void *, Stream &stream) {
        if (stream.capture != capture_active) return;
        const bool own = stream.thread == std::this_thread::get_id();
        const bool forbids = own ? stream.mode != capture_relaxed
                                 : stream.mode == capture_global && thread_capture_mode == capture_global;
        if (!forbids) return;
        stream.capture = capture_broken;
        broken = true;
    });
    return broken;
}

HEED_EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    return in_context([&](Context &context) -> CUresult {
        if (flags > 1) return cuda_invalid_value;
        Stream made;
        made.context = &context;
        made.blocking = flags == 0;
        *stream = reinterpret_cast<CUstream>(state().streams.add(made));
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
    return in_context([&](Context &context) {
        CUresult code = cuda_success;
        if (find_stream(context, handle, &code) != nullptr) state().streams.remove(handle);
        return code;
    });
}

HEED_EXPORT CUresult cuStreamSynchronize(CUstream handle) {
    return in_context([&](Context &context) {
        CUresult code = cuda_success;
        if (is_default(handle)) return submit(context, handle, [] { return CUresult{cuda_success}; });
        Stream *stream = find_stream(context, handle, &code);
        if (stream == nullptr || stream->capture == capture_none) return code;
        stream->capture = capture_broken;
        return report(cuda_capture_unsupported, "cuStreamSynchronize of a stream that captures");
    });
}

HEED_EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *context) {
    return locked([&]() -> CUresult {
        if (is_default(handle)) {
            *context = current_handle();
            return *context == nullptr ? cuda_invalid_context : cuda_success;
        }
        const Stream *stream = state().streams.find(handle);
        if (stream == nullptr) return report(cuda_invalid_handle, "there is no such stream");
        *context = stream->context->handle;
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuStreamIsCapturing(CUstream handle, int *status) {
    return in_context([&](Context &) -> CUresult {
        *status = capture_none;
        if (is_default(handle)) return cuda_success;
        const Stream *stream = state().streams.find(handle);
        if (stream == nullptr) return report(cuda_invalid_handle, "there is no such stream");
        *status = stream->capture;
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
    return in_context([&](Context &context) -> CUresult {
        CUresult code = cuda_success;
        if (is_default(handle)) return report(cuda_capture_unsupported, "the default stream does not capture");
        if (mode < capture_global || mode > capture_relaxed) return cuda_invalid_value;
        Stream *stream = find_stream(context, handle, &code);
        if (stream == nullptr) return code;
        if (stream->capture != capture_none) return report(cuda_invalid_value, "the stream captures already");
        stream->capture = capture_active;
        stream->mode = mode;
        stream->thread = std::this_thread::get_id();
        stream->captured.clear();
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    return in_context([&](Context &context) -> CUresult {
        CUresult code = cuda_success;
        Stream *stream = find_stream(context, handle, &code);
        if (stream == nullptr) return code;
        if (stream->capture == capture_none) return report(cuda_invalid_value, "the stream does not capture");
        if (stream->mode != capture_relaxed && stream->thread != std::this_thread::get_id())
            return report(cuda_capture_wrong_thread, "another thread began the capture");
        const bool broken = stream->capture == capture_broken;
        stream->capture = capture_none;
        *graph = nullptr;
        if (broken) return report(cuda_capture_invalidated, "something during the capture made it invalid");
        *graph = reinterpret_cast<CUgraph>(state().graphs.add({&context, std::move(stream->captured)}));
        stream->captured.clear();
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    return locked([&]() -> CUresult {
        if (mode == nullptr || *mode < capture_global || *mode > capture_relaxed) return cuda_invalid_value;
        std::swap(*mode, thread_capture_mode);
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph handle, unsigned long long) {
    return in_context([&](Context &context) -> CUresult {
        const Graph *graph = state().graphs.find(handle);
        if (graph == nullptr || graph->context != &context)
            return report(cuda_invalid_handle, "there is no such graph");
        *exec = reinterpret_cast<CUgraphExec>(state().graph_execs.add({&context, graph->work}));
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream) {
    return in_context([&](Context &context) -> CUresult {
        const GraphExec *exec = state().graph_execs.find(handle);
        if (exec == nullptr || exec->context != &context) return report(cuda_invalid_handle, "there is no such graph");
        return submit(context, stream, [work = exec->work] { return run_all(work); });
    });
}

HEED_EXPORT CUresult cuGraphExecDestroy(CUgraphExec handle) {
    return in_context([&](Context &) -> CUresult {
        return state().graph_execs.remove(handle) ? cuda_success
                                                  : report(cuda_invalid_handle, "there is no such graph");
    });
}

HEED_EXPORT CUresult cuGraphDestroy(CUgraph handle) {
    return in_context([&](Context &) -> CUresult {
        return state().graphs.remove(handle) ? cuda_success : report(cuda_invalid_handle, "there is no such graph");
    });
}

HEED_EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
    return in_context([&](Context &context) -> CUresult {
        constexpr unsigned disable_timing = 2;
        Event made;
        made.context = &context;
        made.times = (flags & disable_timing) == 0;
        *event = reinterpret_cast<CUevent>(state().events.add(made));
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuEventRecord(CUevent handle, CUstream stream) {
    return in_context([&](Context &context) -> CUresult {
        const Event *event = state().events.find(handle);
        if (event == nullptr || event->context != &context)
            return report(cuda_invalid_handle, "there is no such event");
        return submit(context, stream, [handle]() -> CUresult {
            Event *recorded = state().events.find(handle);
            if (recorded == nullptr) return report(cuda_invalid_handle, "there is no such event");
            recorded->recorded = true;
            recorded->time = std::chrono::steady_clock::now();
            return cuda_success;
        });
    });
}

HEED_EXPORT CUresult cuEventSynchronize(CUevent handle) {
    return in_context([&](Context &) -> CUresult {
        return state().events.find(handle) != nullptr ? cuda_success
                                                      : report(cuda_invalid_handle, "there is no such event");
    });
}

HEED_EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
    return in_context([&](Context &) -> CUresult {
        const Event *first = state().events.find(from), *last = state().events.find(to);
        if (first == nullptr || last == nullptr || !first->times || !last->times || !first->recorded || !last->recorded)
            return report(cuda_invalid_handle, "there is no such event, or it has no time");
        *milliseconds = std::chrono::duration<float, std::milli>(last->time - first->time).count();
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to) {
    return cuEventElapsedTime(milliseconds, from, to);
}

HEED_EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
    return in_context([&](Context &) -> CUresult {
        return state().events.remove(handle) ? cuda_success : report(cuda_invalid_handle, "there is no such event");
    });
}
