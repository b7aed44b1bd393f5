#include "bench/workload.h"

#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>

#include "runtime/reference/element.h"
#include "runtime/reference/forced_kernel.h"

namespace heed_bench {

namespace {

heed_tensor tensor(const void *data, int64_t size, heed_dtype dtype) {
    return {const_cast<void *>(data), size, dtype};  // the API has one type for inputs and outputs
}

heed::Plan make_plan(const heed_problem &problem, const std::string &kernel) {
    if (kernel.empty()) return heed::Plan(problem);
    const heed_reference::ForcedKernel forced(kernel);
    return heed::Plan(problem);
}

}  // namespace

Workload::Workload(const Case &c, const std::string &kernel, int threads, const Arena &arena)
    : case_(c), plan_(make_plan(make_problem(c, threads), kernel)), arena_(arena), placement_(placement(c)),
      page_table_(page_table(c)), kv_lens_(static_cast<size_t>(c.batch), c.kv_len), workspace_(plan_.make_workspace()) {
    make_mask();
    if (!page_table_.empty()) {
        args_.page_table = page_table_.data();
        args_.kv_lens = kv_lens_.data();
    }
    workspace_.attach(args_);
    const Numbers numbers = numbers_of(c.dtype);
    args_.q = tensor(arena_.input(numbers, placement_.q), q_layout(c).elements, c.dtype);
    args_.out = tensor(arena_.out(), out_layout(c).elements, c.dtype);
    if (bias_elements(c) > 0) {
        args_.bias = tensor(arena_.input(numbers, placement_.bias), bias_elements(c), c.dtype);
    }
    for (int32_t h = 0; h < c.num_heads; h++) of_heads_.push_back(std::exp2(-8.f * (h + 1) / c.num_heads));
#define HEED_SET(name, used, ...) args_.name = c.used ? of_heads_.data() : nullptr;
    HEED_HEAD_ARRAYS(HEED_SET)
#undef HEED_SET
    if (mask_elements(c) > 0) {
        args_.mask = tensor(mask_.data(), mask_elements(c), HEED_U8);
    }
}

void Workload::make_mask() {
    mask_.resize(static_cast<size_t>(mask_elements(case_)));
    std::mt19937 random(7);
    for (size_t n = 0; n < mask_.size(); n++) {
        const auto row = static_cast<int64_t>(n) / case_.kv_len, j = static_cast<int64_t>(n) % case_.kv_len;
        mask_[n] = mask_is_random(case_) ? j == 0 || random() % 5 != 0 : mask_shows(case_, row % case_.q_len, j);
    }
}

void Workload::point_at(int64_t copy) {
    const Placement &p = placement_;
    const Numbers numbers = numbers_of(case_.kv_dtype);
    args_.k = tensor(arena_.input(numbers, p.k + copy * p.kv_step), k_layout(case_).elements, case_.kv_dtype);
    args_.v = tensor(arena_.input(numbers, p.v + copy * p.kv_step), v_layout(case_).elements, case_.kv_dtype);
    if (scale_elements(case_) > 0) {
        const auto scales = [&](int64_t first) {
            const void *data = arena_.input(Numbers::scales, first + copy * p.scale_step);
            return tensor(data, scale_elements(case_), HEED_F32);
        };
        args_.k_scale = scales(p.k_scale);
        args_.v_scale = scales(p.v_scale);
    }
}

void Workload::run(int64_t copy) {
    point_at(copy);
    if (heed_execute(plan_.get(), &args_) != HEED_OK) {
        throw std::runtime_error(case_.name + ": " + heed_last_error());
    }
}

CheckResult Workload::check() {
    // All bits set: NaN in every type.
    std::memset(arena_.out(), 0xff,
                static_cast<size_t>(out_layout(case_).elements * heed_reference::element_bytes(case_.dtype)));
    run(0);
    return compare_sampled_queries(case_, args_);
}

}  // namespace heed_bench
