// A thin C++17 layer over heed.h: ownership and exceptions, nothing else. Every rule of heed.h holds.
#ifndef HEED_HEED_HPP
#define HEED_HEED_HPP

#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "heed.h"

namespace heed {

// A failed call: its status, and heed_last_error() as what().
class Error : public std::runtime_error {
public:
    Error(heed_status status, const std::string &sentence) : std::runtime_error(sentence), status_(status) {}

    heed_status status() const noexcept { return status_; }

private:
    heed_status status_;
};

inline void check(heed_status status) {
    if (status != HEED_OK) throw Error(status, heed_last_error());
}

// heed_problem and heed_args with their defaults.
struct Problem : heed_problem {
    Problem() : heed_problem() { check(heed_problem_init(this)); }
};

struct Args : heed_args {
    Args() : heed_args() { check(heed_args_init(this)); }
};

// Views of `size` elements. Heed writes to out and lse only.
inline heed_tensor tensor(const float *data, size_t size) {
    return {const_cast<float *>(data), static_cast<int64_t>(size), HEED_F32};
}
inline heed_tensor tensor(const uint8_t *data, size_t size) {
    return {const_cast<uint8_t *>(data), static_cast<int64_t>(size), HEED_U8};
}
// 16-bit patterns: `dtype` is HEED_F16 or HEED_BF16.
inline heed_tensor tensor(const uint16_t *data, size_t size, heed_dtype dtype) {
    return {const_cast<uint16_t *>(data), static_cast<int64_t>(size), dtype};
}

// Memory for heed_args.workspace, aligned as it must be. One per running call.
class Workspace {
public:
    explicit Workspace(size_t bytes) : bytes_(bytes), data_(bytes == 0 ? nullptr : ::operator new(bytes, alignment)) {}

    void *data() const noexcept { return data_.get(); }
    size_t bytes() const noexcept { return bytes_; }
    void attach(heed_args &args) const noexcept {
        args.workspace = data();
        args.workspace_bytes = bytes_;
    }

private:
    static constexpr std::align_val_t alignment{128};
    struct Free {
        void operator()(void *data) const noexcept { ::operator delete(data, alignment); }
    };
    size_t bytes_;
    std::unique_ptr<void, Free> data_;
};

// A plan, owned. Movable; execute may run in many threads at once, each with its own workspace and outputs.
class Plan {
public:
    explicit Plan(const heed_problem &problem) {
        heed_plan *plan = nullptr;
        check(heed_plan_create(&problem, &plan));
        plan_.reset(plan);
    }

    void execute(const heed_args &args) const { check(heed_execute(plan_.get(), &args)); }
    size_t workspace_bytes() const noexcept { return heed_plan_workspace_bytes(plan_.get()); }
    Workspace make_workspace() const { return Workspace(workspace_bytes()); }
    std::string kernel_name() const { return heed_plan_kernel_name(plan_.get()); }
    std::string explain() const { return heed_plan_explain(plan_.get()); }
    int32_t num_splits() const noexcept { return heed_plan_num_splits(plan_.get()); }
    const heed_plan *get() const noexcept { return plan_.get(); }

private:
    struct Destroy {
        void operator()(heed_plan *plan) const noexcept { heed_plan_destroy(plan); }
    };
    std::unique_ptr<heed_plan, Destroy> plan_;
};

// Every row of the kernel table.
inline std::vector<heed_kernel_info_t> kernels() {
    std::vector<heed_kernel_info_t> rows(static_cast<size_t>(heed_kernel_count()));
    for (size_t i = 0; i < rows.size(); i++) {
        rows[i].struct_size = sizeof(rows[i]);
        check(heed_kernel_info(static_cast<int32_t>(i), &rows[i]));
    }
    return rows;
}

}  // namespace heed

#endif
