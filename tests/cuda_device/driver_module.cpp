// Modules, functions and launches of the emulated driver; the controls for tests.
#include <cstdio>
#include <cstring>

#include "tests/cuda_device/ptx_parser.h"
#include "tests/cuda_device/state.h"

using namespace heed::device;

namespace {

// `any_chip`: machine code for this chip is taken as the program, whatever its .target.
CUresult check_program(const Program &program, bool any_chip) {
    const int capability = state().capability;
    if (program.version > 90) return report(cuda_unsupported_ptx_version, "the driver knows PTX up to version 9.0");
    if (!any_chip && (program.target > capability || (program.exact_target && program.target != capability)))
        return report(cuda_no_binary_for_gpu, "the PTX is for sm_" + std::to_string(program.target) +
                                                  ", the device is sm_" + std::to_string(capability));
    for (const Kernel &kernel : program.kernels)
        if (kernel.static_shared_bytes > 48 * 1024)
            return report(cuda_invalid_ptx, "kernel " + kernel.name + " has more than 48 KB of static shared memory");
    return cuda_success;
}

CUresult load_module(CUmodule *module, const void *image) {
    return in_context([&](Context &context) -> CUresult {
        if (breaks_capture()) return report(cuda_capture_unsupported, "a module is loaded while a stream captures");
        if (module == nullptr || image == nullptr) return cuda_invalid_value;
        CUresult code = cuda_invalid_ptx;
        try {
            Module made;
            made.context = &context;
            bool any_chip = false;
            made.program = std::make_shared<Program>(parse_ptx(find_ptx(image, &code, &any_chip)));
            code = check_program(*made.program, any_chip);
            if (code == cuda_success) *module = reinterpret_cast<CUmodule>(state().modules.add(made));
            return code;
        } catch (const ParseError &error) {
            return report(code, error.what());
        }
    });
}

Function *find_function(const Context &context, CUfunction handle, CUresult *code) {
    Function *function = state().functions.find(handle);
    *code = cuda_success;
    if (function == nullptr) *code = report(cuda_invalid_handle, "there is no such function");
    if (function != nullptr && function->context != &context)
        *code = report(cuda_invalid_handle, "the function belongs to another context");
    return *code == cuda_success ? function : nullptr;
}

// An empty string where the launch may run.
std::string check_launch(const Function &function, const Launch &launch, uint32_t dynamic_shared) {
    const Kernel &kernel = *function.kernel;
    const std::string name = "kernel " + kernel.name + ": ";
    const uint32_t limits[3] = {1024, 1024, 64}, grid_limits[3] = {0x7fffffff, 65535, 65535};
    uint64_t threads = 1, allowed = 1;
    for (int axis = 0; axis < 3; axis++) {
        const uint32_t extent = launch.block[axis], blocks = launch.grid[axis];
        if (extent == 0 || extent > limits[axis]) return name + "a block of " + std::to_string(extent) + " threads";
        if (blocks == 0 || blocks > grid_limits[axis]) return name + "a grid of " + std::to_string(blocks) + " blocks";
        if (kernel.required_threads[0] != 0 && extent != static_cast<uint32_t>(kernel.required_threads[axis]))
            return name + ".reqntid says otherwise than the launch's " + std::to_string(extent) + " threads";
        threads *= extent;
        allowed *= static_cast<uint64_t>(kernel.max_threads[axis]);
    }
    if (threads > 1024) return name + "a block of " + std::to_string(threads) + " threads";
    if (kernel.max_threads[0] != 0 && threads > allowed)
        return name + "a block of " + std::to_string(threads) + " threads, .maxntid says " + std::to_string(allowed);
    if (dynamic_shared > function.max_dynamic_shared)
        return name + std::to_string(dynamic_shared) + " bytes of dynamic shared memory, its attribute allows " +
               std::to_string(function.max_dynamic_shared);
    if (launch.shared_bytes > max_shared_bytes())
        return name + std::to_string(launch.shared_bytes) + " bytes of shared memory, the device has " +
               std::to_string(max_shared_bytes());
    return {};
}

CUresult run(Context &context, const Launch &launch) {
    State &s = state();
    s.launches++;
    try {
        const Counts counts = run_launch(launch, s.options);
        for (size_t i = 0; i < counts.instructions.size(); i++)
            if (launch.kernel->code[i].counted) s.instructions[launch.kernel->opcodes[i]] += counts.instructions[i];
        s.traffic += counts.traffic;
        return cuda_success;
    } catch (const Fault &fault) {
        context.error = fault.code;
        return report(fault.code, fault.what());
    }
}

}  // namespace

HEED_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) { return load_module(module, image); }

// The only option that does anything is the buffer for errors.
HEED_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options,
                                        void **values) {
    constexpr int error_log = 5, error_log_bytes = 6;
    const CUresult code = load_module(module, image);
    char *log = nullptr;
    size_t bytes = 0;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == error_log) log = static_cast<char *>(values[i]);
        if (options[i] == error_log_bytes) bytes = reinterpret_cast<uintptr_t>(values[i]);
    }
    if (log != nullptr && bytes != 0) {
        const std::lock_guard<std::mutex> lock(state().mutex);
        std::snprintf(log, bytes, "%s", code == cuda_success ? "" : state().last_error.c_str());
    }
    return code;
}

HEED_EXPORT CUresult cuModuleUnload(CUmodule handle) {
    return in_context([&](Context &context) -> CUresult {
        if (breaks_capture()) return report(cuda_capture_unsupported, "a module is unloaded while a stream captures");
        const Module *module = state().modules.find(handle);
        if (module == nullptr || module->context != &context)
            return report(cuda_invalid_handle, "there is no such module");
        state().functions.remove_if([handle](const Function &function) { return function.module == handle; });
        state().modules.remove(handle);
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name) {
    return in_context([&](Context &context) -> CUresult {
        const Module *module = state().modules.find(handle);
        if (module == nullptr || module->context != &context)
            return report(cuda_invalid_handle, "there is no such module");
        for (const Kernel &kernel : module->program->kernels) {
            if (kernel.name != name) continue;
            Function made;
            made.context = &context, made.module = handle, made.program = module->program, made.kernel = &kernel;
            made.max_dynamic_shared = 48 * 1024 - kernel.static_shared_bytes;
            *function = reinterpret_cast<CUfunction>(state().functions.add(made));
            return cuda_success;
        }
        return report(cuda_not_found, std::string("the module has no kernel ") + name);
    });
}

HEED_EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction handle) {
    return in_context([&](Context &context) {
        CUresult code = cuda_success;
        const Function *function = find_function(context, handle, &code);
        if (function == nullptr) return code;
        const Kernel &kernel = *function->kernel;
        const int *most = kernel.required_threads[0] != 0 ? kernel.required_threads : kernel.max_threads;
        switch (attribute) {
        case 0:
            *value = most[0] != 0 ? most[0] * most[1] * most[2] : 1024;
            break;  // MAX_THREADS_PER_BLOCK
        case 1:
            *value = static_cast<int>(kernel.static_shared_bytes);
            break;  // SHARED_SIZE_BYTES
        case 3:
            *value = static_cast<int>(kernel.local_bytes);
            break;  // LOCAL_SIZE_BYTES
        case 8:
            *value = static_cast<int>(function->max_dynamic_shared);
            break;  // MAX_DYNAMIC_SHARED_SIZE_BYTES
        default:
            return report(cuda_invalid_value, "function attribute " + std::to_string(attribute) + " is not there");
        }
        return code;
    });
}

HEED_EXPORT CUresult cuFuncSetAttribute(CUfunction handle, int attribute, int value) {
    return in_context([&](Context &context) {
        CUresult code = cuda_success;
        Function *function = find_function(context, handle, &code);
        if (function == nullptr) return code;
        if (attribute != 8)
            return report(cuda_invalid_value, "function attribute " + std::to_string(attribute) + " is not there");
        if (value < 0 || static_cast<uint32_t>(value) + function->kernel->static_shared_bytes > max_shared_bytes())
            return report(cuda_invalid_value,
                          std::to_string(value) + " bytes of shared memory are more than the device has");
        function->max_dynamic_shared = static_cast<uint32_t>(value);
        return code;
    });
}

HEED_EXPORT CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned dynamic_shared,
                                    CUstream stream, void **parameters, void **extra) {
    return in_context([&](Context &context) {
        CUresult code = cuda_success;
        const Function *function = find_function(context, handle, &code);
        if (function == nullptr) return code;
        const Kernel &kernel = *function->kernel;
        if (extra != nullptr || (parameters == nullptr && !kernel.parameters.empty()))
            return report(cuda_invalid_value,
                          "kernel " + kernel.name + ": parameters are taken from kernelParams only");
        Launch launch;
        launch.program = function->program, launch.kernel = &kernel, launch.memory = &state().memory;
        launch.owner = context.id;
        const uint32_t grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
        std::memcpy(launch.grid, grid, sizeof(grid));
        std::memcpy(launch.block, block, sizeof(block));
        const uint64_t shared_bytes = uint64_t{kernel.static_shared_bytes} + dynamic_shared;
        launch.shared_bytes = shared_bytes > ~0u ? ~0u : static_cast<uint32_t>(shared_bytes);
        const std::string wrong = check_launch(*function, launch, dynamic_shared);
        if (!wrong.empty()) return report(cuda_invalid_value, wrong);
        launch.parameters.resize(kernel.parameter_bytes);
        for (size_t i = 0; i < kernel.parameters.size(); i++)
            std::memcpy(launch.parameters.data() + kernel.parameters[i].offset, parameters[i],
                        kernel.parameters[i].bytes);
        return submit(context, stream, [&context, launch] { return run(context, launch); });
    });
}

HEED_EXPORT int heed_device_configure(const char *options) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    return options != nullptr && parse_options(options, &state().options) ? 0 : 1;
}

HEED_EXPORT void heed_device_reset() {
    const std::lock_guard<std::mutex> lock(state().mutex);
    State &s = state();
    s.contexts.for_each([](const void *, Context &context) { context.error = cuda_success; });
    s.launches = 0;
    s.instructions.clear();
    s.traffic = Traffic();
    s.last_error.clear();
}

HEED_EXPORT uint64_t heed_device_launches() {
    const std::lock_guard<std::mutex> lock(state().mutex);
    return state().launches;
}

HEED_EXPORT uint64_t heed_device_sectors(int written) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    return written != 0 ? state().traffic.written : state().traffic.read;
}

HEED_EXPORT uint64_t heed_device_instructions(const char *opcode_prefix) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    const std::string prefix = opcode_prefix == nullptr ? "" : opcode_prefix;
    uint64_t sum = 0;
    for (const auto &[opcode, count] : state().instructions)
        if (opcode.compare(0, prefix.size(), prefix) == 0) sum += count;
    return sum;
}

HEED_EXPORT const char *heed_device_last_error() {
    static thread_local std::string text;
    const std::lock_guard<std::mutex> lock(state().mutex);
    text = state().last_error;
    return text.c_str();
}

HEED_EXPORT void heed_device_replace(const char *from, const char *to, int occurrence) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    State &s = state();
    s.replaces = from != nullptr && *from != '\0';
    s.replace_from = s.replaces ? from : "";
    s.replace_to = to == nullptr ? "" : to;
    s.replace_occurrence = occurrence;
}
