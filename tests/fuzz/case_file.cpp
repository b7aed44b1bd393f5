// Bytes -> a case of `heed run` from anywhere. It is refused with a sentence, by the reader or by the plan, or it runs
// within the arrays.
#include "runtime/reference/case_file.h"

#include "heed/heed.hpp"
#include "runtime/reference/case_call.h"
#include "runtime/reference/invalid_input.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/memory_file.h"

namespace heed_test {
namespace {

using heed_reference::Array;
using heed_reference::Case;

void run(const Case &c) {
    heed_problem problem = c.problem;
    problem.max_threads = 1;
    const heed::Plan plan(problem);
    if (plan.workspace_bytes() > 1 << 24) return;
    Array out = make_out(c), lse = make_lse(c);
    heed_args args = make_args(c, out, lse);
    const heed::Workspace workspace = plan.make_workspace();
    workspace.attach(args);
    plan.execute(args);
}

}  // namespace
}  // namespace heed_test

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    using namespace heed_test;
    static const MemoryFile file;
    file.write(data, size);
    try {
        run(heed_reference::read_case(file.path()));
    } catch (const heed_reference::InvalidInput &error) {
        require(error.what()[0] != '\0', "a refusal has its sentence");
    } catch (const heed::Error &error) {
        require(error.status() == HEED_INVALID_ARGUMENT || error.status() == HEED_UNSUPPORTED,
                "a problem is refused as invalid or unsupported");
    }
    return 0;
}
