#include "workload.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>

#include "machine.h"

namespace heed_bench {

namespace {

constexpr size_t workspace_alignment = 128;

// Tensors start on a cache line.
int64_t aligned(int64_t elements) { return (elements + 15) / 16 * 16; }

int64_t kv_copy_elements(const Case &c) { return aligned(k_elements(c)) + aligned(v_elements(c)); }

heed_tensor tensor(const void *data, int64_t size, heed_dtype dtype = HEED_F32) {
    return {const_cast<void *>(data), size, dtype};  // the API has one type for inputs and outputs
}

// HEED_FORCE_KERNEL for the time of one plan.
heed_status create_plan(const heed_problem &problem, const std::string &row, heed_plan **plan) {
    if (row.empty()) {
        return heed_plan_create(&problem, plan);
    }
    setenv("HEED_FORCE_KERNEL", row.c_str(), 1);
    const heed_status status = heed_plan_create(&problem, plan);
    unsetenv("HEED_FORCE_KERNEL");
    return status;
}

}  // namespace

Arena::Arena(int64_t input_elements, int64_t out_elements, Pages pages)
    : input_elements_(aligned(input_elements)), memory_(nullptr, {0}) {
    const size_t bytes = static_cast<size_t>(input_elements_ + out_elements) * sizeof(float);
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        throw std::runtime_error("no memory for " + std::to_string(bytes >> 20) + " MiB of tensors");
    }
    memory_ = {static_cast<float *>(memory), {bytes}};
    if (pages != Pages::standard) {
        madvise(memory, bytes, pages == Pages::huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    }
    // Repeated with a prime period, so that no two tensors of a case, and no two copies, are alike.
    constexpr int64_t period = 4000037;
    std::mt19937 random(1234);
    std::normal_distribution<float> normal;
    float *data = memory_.get();
    std::generate(data, data + std::min(period, input_elements_), [&] { return normal(random); });
    for (int64_t done = period; done < input_elements_; done += period) {
        std::memcpy(data + done, data, static_cast<size_t>(std::min(period, input_elements_ - done)) * sizeof(float));
    }
}

void Arena::Unmap::operator()(float *memory) const { munmap(memory, bytes); }

int64_t input_elements(const Case &c) {
    const int64_t once = aligned(q_elements(c)) + kv_copy_elements(c) + aligned(bias_elements(c));
    if (c.kind != CaseKind::decode) {
        return once;
    }
    const int64_t cold_bytes = std::max<int64_t>(int64_t{1} << 30, 8 * cache_bytes(3));
    const int64_t cold_elements = cold_bytes / static_cast<int64_t>(sizeof(float));
    const int64_t copies = (cold_elements + kv_copy_elements(c) - 1) / kv_copy_elements(c);
    return aligned(q_elements(c)) + copies * kv_copy_elements(c);
}

std::unique_ptr<Workload> Workload::create(const Case &c, const std::string &row, int threads, const Arena &arena,
                                           std::string &reason) {
    const heed_problem problem = make_problem(c, threads);
    heed_plan *plan = nullptr;
    if (create_plan(problem, row, &plan) != HEED_OK) {
        reason = heed_last_error();
        return nullptr;
    }
    return std::unique_ptr<Workload>(new Workload(c, plan, arena));
}

Workload::Workload(const Case &c, heed_plan *plan, const Arena &arena)
    : case_(c), plan_(plan), arena_(arena),
      num_copies_((input_elements(c) - aligned(q_elements(c))) / kv_copy_elements(c)) {
    make_mask();
    const size_t bytes = heed_plan_workspace_bytes(plan);
    if (bytes > 0) {
        const size_t whole = (bytes + workspace_alignment - 1) / workspace_alignment * workspace_alignment;
        workspace_.reset(std::aligned_alloc(workspace_alignment, whole));
    }
    heed_args_init(&args_);
    args_.q = tensor(arena_.input(0), q_elements(c));
    args_.out = tensor(arena_.out(), out_elements(c));
    args_.workspace = workspace_.get();
    args_.workspace_bytes = bytes;
    if (bias_elements(c) > 0) {
        args_.bias = tensor(v_of(0) + aligned(v_elements(c)), bias_elements(c));
    }
    if (mask_elements(c) > 0) {
        args_.mask = tensor(mask_.data(), mask_elements(c), HEED_U8);
    }
}

void Workload::Free::operator()(void *memory) const { std::free(memory); }

void Workload::make_mask() {
    mask_.resize(static_cast<size_t>(mask_elements(case_)));
    std::mt19937 random(7);
    for (size_t n = 0; n < mask_.size(); n++) {
        const size_t j = n % static_cast<size_t>(case_.kv_len);
        mask_[n] = case_.mask == CaseMask::mask_key_padding ? j < static_cast<size_t>(case_.kv_len) * 3 / 4
                                                            : (j == 0 || random() % 5 != 0);
    }
}

const float *Workload::k_of(int64_t copy) const {
    return arena_.input(aligned(q_elements(case_)) + copy * kv_copy_elements(case_));
}

const float *Workload::v_of(int64_t copy) const { return k_of(copy) + aligned(k_elements(case_)); }

std::string Workload::kernel() const { return heed_plan_kernel_name(plan_.get()); }

int32_t Workload::num_splits() const { return heed_plan_num_splits(plan_.get()); }

void Workload::run(int64_t copy) {
    args_.k = tensor(k_of(copy), k_elements(case_));
    args_.v = tensor(v_of(copy), v_elements(case_));
    if (heed_execute(plan_.get(), &args_) != HEED_OK) {
        throw std::runtime_error(case_.name + ": " + heed_last_error());
    }
}

CheckResult Workload::check() {
    std::fill_n(arena_.out(), out_elements(case_), std::numeric_limits<float>::quiet_NaN());
    run(0);
    const float *bias = static_cast<const float *>(args_.bias.data);
    return compare_sampled_rows(case_, arena_.input(0), k_of(0), v_of(0), mask_.data(), bias, arena_.out());
}

}  // namespace heed_bench
