// Attention on every kernel of the table that serves the case, at least one per ISA of the machine.
#include "heed/heed.hpp"
#include "runtime/reference/case_call.h"
#include "tests/conformance/attention_adapter.h"
#include "tests/conformance/report.h"
#include "tests/support/call.h"
#include "tests/support/table_kernels.h"

namespace heed_conformance {
namespace {

// Writes the case as a file for `heed run`.
void dump_case(const heed_reference::Case &c, const std::filesystem::path &path) {
    std::filesystem::create_directories(path.parent_path());
    heed_reference::write_case(path, c);
}

// Everything of one case that a kernel computes, by ONNX's names.
class Runner {
public:
    Runner(const OnnxCase &onnx, Outcome &outcome) : onnx_(onnx), case_(adapt_attention(onnx)), outcome_(outcome) {}

    const heed_reference::Case &call() const { return case_.call; }

    // False when the kernel does not serve the problem.
    bool run(const std::string &kernel) {
        const heed_test::ForcedKernel forced(kernel);
        heed_plan *created = nullptr;
        const heed_status status = heed_plan_create(&case_.call.problem, &created);
        const heed_test::Plan plan(created);
        if (status == HEED_UNSUPPORTED) return false;
        expect_ok(kernel, status);
        if (status != HEED_OK) return true;
        const std::string ran = heed_plan_kernel_name(plan.get());
        if (!kernel.empty() && ran != kernel) fault(kernel, "the plan took " + ran);
        execute(kernel, plan.get());
        return true;
    }

private:
    void fault(const std::string &kernel, const std::string &sentence) {
        if (!sentence.empty()) outcome_.faults.push_back({kernel, sentence});
    }

    void expect_ok(const std::string &kernel, heed_status status) {
        if (status != HEED_OK) fault(kernel, heed_last_error());
    }

    void check(const std::string &kernel, const std::string &output, const Array &got) {
        fault(kernel, compare(onnx_, output, got, case_.outputs.at(output), &outcome_.worst));
    }

    void execute(const std::string &kernel, const heed_plan *plan) {
        const heed_reference::Case &c = case_.call;
        Array out = heed_reference::make_out(c), lse = heed_reference::make_lse(c);
        const heed::Workspace workspace(heed_plan_workspace_bytes(plan));
        heed_args args = heed_reference::make_args(c, out, lse);
        workspace.attach(args);
        expect_ok(kernel, heed_execute(plan, &args));
        for (const auto &[output, expected] : case_.outputs) {
            if (output == "Y") check(kernel, output, out);
            if (output == "present_key") check(kernel, output, c.arrays.at("k"));
            if (output == "present_value") check(kernel, output, c.arrays.at("v"));
            if (output == "qk_matmul_output") check(kernel, output, run_probs(kernel, plan, args));
        }
    }

    Array run_probs(const std::string &kernel, const heed_plan *plan, const heed_args &args) {
        const heed_problem &p = case_.call.problem;
        Array probs = make_nan(case_.call.arrays.at("q"), {p.batch, p.num_heads, p.max_q_len, p.max_kv_len});
        const heed_tensor tensor = {probs.data.data(), probs.size(), p.dtype};
        const heed_layout packed = {};
        expect_ok(kernel, heed_attention_probs(plan, &args, case_.probs_mode, &tensor, &packed));
        return probs;
    }

    const OnnxCase &onnx_;
    const AttentionCase case_;
    Outcome &outcome_;
};

}  // namespace

Outcome run_attention(const OnnxCase &onnx, const Options &options) {
    Outcome outcome;
    Runner runner(onnx, outcome);
    if (!options.dump.empty()) dump_case(runner.call(), options.dump / (onnx.name + ".safetensors"));
    if (!runner.run(options.kernel)) {
        outcome.faults.push_back({options.kernel, heed_last_error()});
        return outcome;
    }
    if (!options.kernel.empty()) return outcome;
    for (const heed_test::TableKernel &kernel : heed_test::supported_kernels()) {
        if (runner.run(kernel.name)) outcome.runs[heed_test::isa_name(kernel.info.isa)]++;
    }
    for (const heed_isa isa : heed_test::isas_of_device()) {
        const std::string name = heed_test::isa_name(isa);
        const bool serves_all = isa <= HEED_AVX512;
        if (serves_all && heed_test::machine_has(isa) && outcome.runs[name] == 0) {
            outcome.faults.push_back({"", "no kernel for " + name + " serves it"});
        }
    }
    return outcome;
}

}  // namespace heed_conformance
