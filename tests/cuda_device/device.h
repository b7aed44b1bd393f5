// The emulated device, as tests use it: opened by dlopen, called by name.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/cuda_device/cuda_abi.h"

namespace heed::device {

// Calls a function of the library; arguments must have exactly the types of its prototype.
template <typename Result = CUresult, typename... Arguments>
Result call(const char *name, Arguments... arguments) {
    static void *const library = dlopen(HEED_CUDA_DEVICE_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    void *symbol = dlsym(library, name);
    if (symbol == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<Result (*)(Arguments...)>(symbol)(arguments...);
}

inline std::string last_error() { return call<const char *>("heed_device_last_error"); }
inline int configure(const char *options) { return call<int>("heed_device_configure", options); }
inline void reset() { call<void>("heed_device_reset"); }
inline uint64_t instructions(const char *prefix) { return call<uint64_t>("heed_device_instructions", prefix); }

struct Dim {
    unsigned x = 1, y = 1, z = 1;
};

// A module's text around one kernel `k`: parameters p0, p1, ... of 64 bits, registers %p, %h, %r and %d (64 bits)
// from 0 to 39.
inline std::string ptx(int num_parameters, const std::string &body, const std::string &limits = "",
                       const std::string &variables = ".extern .shared .align 16 .b8 dynamic[];") {
    std::string parameters;
    for (int i = 0; i < num_parameters; i++)
        parameters += std::string(i == 0 ? "" : ", ") + ".param .u64 p" + std::to_string(i);
    return ".version 8.4\n.target sm_80\n.address_size 64\n" + variables + "\n.visible .entry k(" + parameters + ")\n" +
           limits + "\n{\n.reg .pred %p<40>;\n.reg .b16 %h<40>;\n.reg .b32 %r<40>;\n.reg .b64 %d<40>;\n" + body +
           "\nret;\n}\n";
}

// Loads parameter i into %d<i>.
inline std::string load_parameters(int count) {
    std::string text;
    for (int i = 0; i < count; i++) text += "ld.param.u64 %d" + std::to_string(i) + ", [p" + std::to_string(i) + "];\n";
    return text;
}

// A context, device memory and kernels, until the end of a test. Every test starts from the default options.
class DeviceTest : public testing::Test {
protected:
    DeviceTest() {
        EXPECT_EQ(call("cuInit", 0u), 0);
        EXPECT_EQ(configure("order=default,arrival=early,products=early,checks=on,steps=1000000"), 0);
        call<void>("heed_device_replace", static_cast<const char *>(nullptr), static_cast<const char *>(nullptr), 0);
        reset();
        EXPECT_EQ(call("cuCtxCreate_v2", &context_, 0u, 0), 0);
    }
    ~DeviceTest() override { EXPECT_EQ(call("cuCtxDestroy_v2", context_), 0); }

    template <typename T>
    CUdeviceptr upload(const std::vector<T> &values) {
        CUdeviceptr address = 0;
        const size_t bytes = values.size() * sizeof(T);
        EXPECT_EQ(call("cuMemAlloc_v2", &address, bytes), 0);
        EXPECT_EQ(call("cuMemcpyHtoD_v2", address, static_cast<const void *>(values.data()), bytes), 0);
        return address;
    }

    template <typename T>
    std::vector<T> download(CUdeviceptr address, size_t count) {
        std::vector<T> values(count);
        EXPECT_EQ(call("cuMemcpyDtoH_v2", static_cast<void *>(values.data()), address, count * sizeof(T)), 0);
        return values;
    }

    // Null, with the reason in last_error(), where the text is refused.
    CUfunction load(const std::string &text, const char *name = "k") {
        CUmodule module = nullptr;
        CUfunction function = nullptr;
        load_result_ = call("cuModuleLoadData", &module, static_cast<const void *>(text.c_str()));
        if (load_result_ != 0) return nullptr;
        EXPECT_EQ(call("cuModuleGetFunction", &function, module, name), 0);
        return function;
    }

    static CUresult launch(CUfunction function, Dim grid, Dim block, unsigned shared, std::vector<uint64_t> parameters,
                           CUstream stream = nullptr) {
        std::vector<void *> pointers;
        for (uint64_t &parameter : parameters) pointers.push_back(&parameter);
        return call("cuLaunchKernel", function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream,
                    pointers.data(), static_cast<void **>(nullptr));
    }

    CUresult run(const std::string &text, Dim grid, Dim block, unsigned shared,
                 const std::vector<uint64_t> &parameters) {
        CUfunction function = load(text);
        EXPECT_NE(function, nullptr) << last_error();
        return function == nullptr ? -1 : launch(function, grid, block, shared, parameters);
    }

    // The launch fails with `code` and a sentence that contains `text`.
    void expect_fault(CUresult result, CUresult code, const std::string &text) {
        EXPECT_EQ(result, code);
        EXPECT_NE(last_error().find(text), std::string::npos) << last_error();
        reset();
    }

    CUcontext context_ = nullptr;
    CUresult load_result_ = 0;
};

}  // namespace heed::device
