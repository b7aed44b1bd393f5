// Bytes -> a small attention problem with data, storage, layouts and now and then a fault of the caller's. Success is
// held against the fp64 reference, element by element; a failure writes nothing; nothing is touched outside the
// tensors.
#include "runtime/reference/tolerance.h"
#include "tests/fuzz/execute_case.h"
#include "tests/support/describe.h"
#include "tests/support/table_kernels.h"

namespace heed_test {
namespace {

// A kernel that serves the case, of those that this machine can run; "" leaves the choice to the plan.
std::string read_kernel(ByteReader *bytes) {
    static const std::vector<TableKernel> kernels = supported_kernels();
    const size_t choice = bytes->get<uint8_t>() % (2 * kernels.size());
    return choice < kernels.size() ? kernels[choice].name : "";
}

// Few outputs prove little each; there are many inputs.
constexpr Trust any_case = {false, false};

void check_results(const ExecuteCase &c, const Call &call) {
    const Attention &a = c.attention;
    const Reference reference = compute_reference_as_held(a, false);
    const Verdict verdict = verdict_of(a, reference, call.out(), call.lse(), any_case);
    require(verdict.ok, call.kernel() + ": " + verdict.complaint + "\n" + describe(a, c.options));
}

}  // namespace
}  // namespace heed_test

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    using namespace heed_test;
    ByteReader bytes(data, size);
    const std::string kernel = read_kernel(&bytes);
    ExecuteCase c = read_case(&bytes);
    c.options.kernel = kernel;
    const Attention &a = c.attention;
    Call call(a, c.options);
    const heed_status planned = call.prepare();
    if (planned == HEED_UNSUPPORTED && !kernel.empty()) return 0;
    require(planned == HEED_OK, "some kernel serves every problem");
    const heed_args sound = call.args;
    const heed_status expected = make_fault(c, &bytes, &call);
    const heed_status status = call.execute();
    call.args = sound;
    require(status == expected,
            "the answer is " + std::string(heed_status_name(expected)) + ", not " + heed_status_name(status));
    require(call.canaries_intact(), "nothing is written outside of the outputs");
    if (status != HEED_OK) require(call.outputs_untouched(), "a failed call writes nothing");
    if (c.fault == ExecuteCase::Fault::none) check_results(c, call);
    return 0;
}
