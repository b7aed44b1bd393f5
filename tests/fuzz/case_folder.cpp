// Bytes -> problem.json, a zero byte, then .npy files, each behind a byte that chooses its name and two bytes with its
// length: a case folder of `heed run` from anywhere. It is refused with a sentence, by the reader or by the plan, or it
// runs within the arrays.
#include "case_folder.h"

#include <algorithm>

#include "case_call.h"
#include "fuzz.h"
#include "heed/heed.hpp"
#include "invalid_input.h"
#include "memory_file.h"
#include "problem_json.h"

namespace heed_test {
namespace {

constexpr const char *names[] = {"q",
                                 "k",
                                 "v",
                                 "mask",
                                 "bias",
                                 "kv_lens",
                                 "q_offsets",
                                 "cu_seqlens_q",
                                 "cu_seqlens_kv",
                                 "page_table",
                                 "sink",
                                 "alibi_slopes",
                                 "k_scale",
                                 "v_scale"};

heed_cli::Case read(ByteReader *bytes, std::string json) {
    static const MemoryFile file;
    const size_t end = std::min(json.find('\0'), json.size());
    bytes->text(end + 1);
    json.resize(end);
    file.write(json);
    heed_cli::Case c = heed_cli::read_problem_json(file.path());
    while (bytes->left() > 0) {
        const std::string name = names[bytes->between(0, std::size(names) - 1)];
        file.write(bytes->text(bytes->get<uint16_t>()));
        c.arrays[name] = heed_cli::read_npy(file.path());
    }
    heed_cli::complete_case(c);
    return c;
}

void run(const heed_cli::Case &c) {
    heed_problem problem = c.problem;
    problem.max_threads = 1;
    const heed::Plan plan(problem);
    if (plan.workspace_bytes() > 1 << 24) return;
    heed_cli::Array out = make_out(c), lse = make_lse(c);
    heed_args args = make_args(c, out, lse);
    const heed::Workspace workspace = plan.make_workspace();
    workspace.attach(args);
    plan.execute(args);
}

}  // namespace
}  // namespace heed_test

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    using namespace heed_test;
    ByteReader bytes(data, size);
    try {
        run(read(&bytes, std::string(reinterpret_cast<const char *>(data), size)));
    } catch (const heed_cli::InvalidInput &error) {
        require(error.what()[0] != '\0', "a refusal has its sentence");
    } catch (const heed::Error &error) {
        require(error.status() == HEED_INVALID_ARGUMENT || error.status() == HEED_UNSUPPORTED,
                "a problem is refused as invalid or unsupported");
    }
    return 0;
}
