// A call of the API on a CUDA device, with tensors that a test has on the host.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "runtime/reference/element.h"
#include "tests/support/device.h"

namespace heed_test {

// Tensors of one call, moved to the device in place: the structs then hold device addresses.
class OnDevice {
public:
    void written(heed_tensor *tensor) { move(tensor, true); }
    void read(heed_tensor *tensor) { move(tensor, false); }

    // Memory of the call on the device alone.
    void workspace(heed_execution *execution, size_t bytes) {
        workspace_ = std::make_unique<DeviceBuffer>(bytes, 0, true);
        execution->workspace = workspace_->data();
        execution->workspace_bytes = bytes;
    }

    template <typename Call>
    heed_status run(heed_execution *execution, const Call &call) {
        execution->device = HEED_CUDA;
        execution->stream = CudaDevice::get().stream();
        return run(call);
    }
    // The same for a call that names device and stream itself.
    template <typename Call>
    heed_status run(const Call &call) {
        const heed_status status = call();
        CudaDevice::get().synchronize();
        EXPECT_TRUE(mirror_.bring_back());
        EXPECT_TRUE(workspace_ == nullptr || workspace_->guards_intact());
        return status;
    }

private:
    // A tensor in the memory of one that was moved already goes with it.
    void move(heed_tensor *tensor, bool written) {
        void *const host = tensor->data;
        if (host == nullptr) return;
        if (mirror_.on_device(host) == host) {
            mirror_.add(host, static_cast<size_t>(tensor->size * element_bytes(tensor->dtype)), written);
        }
        tensor->data = mirror_.on_device(host);
    }

    DeviceMirror mirror_;
    std::unique_ptr<DeviceBuffer> workspace_;
};

}  // namespace heed_test
