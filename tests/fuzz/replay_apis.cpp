// Runs the corpus of the target `execute` through the C API and the C++ API, which must agree, and prints status and a
// hash of the results of each input: for builds of the kernels that must agree too. Takes the corpus' folder.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "heed/heed.hpp"
#include "tests/fuzz/execute_case.h"

namespace heed_test {
namespace {

namespace fs = std::filesystem;

struct Answer {
    heed_status status = HEED_OK;
    std::vector<float> out, lse;

    uint64_t hash() const {
        uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
        for (const auto *values : {&out, &lse}) {
            for (const float value : *values) {
                uint32_t bits = 0;
                std::memcpy(&bits, &value, sizeof(bits));
                hash = (hash ^ bits) * 0x100000001b3ull;
            }
        }
        return hash;
    }
};

// A kernel that serves every case of its types.
std::string general_kernel(const Attention &a, bool decode) {
    const char *const dtypes[] = {"f32", "f16", "bf16"};
    return std::string("attention_") + (decode ? "decode_" : "prefill_") + dtypes[a.dtype] +
           (a.int8_kv ? "_kvi8" : "") + "_dany_alibi_bias_dropout_" + (decode ? "gqa_" : "") +
           "mask_softcap_paged_avx2";
}

heed_status execute_in_cpp(Call *call, const std::string &kernel) {
    const ForcedKernel forced(kernel);
    try {
        heed::Plan(call->problem).execute(call->args);
        return HEED_OK;
    } catch (const heed::Error &error) {
        return error.status();
    }
}

template <class Execute>
Answer answer_of(const ExecuteCase &c, ByteReader bytes, Execute execute) {
    Answer answer;
    Call call(c.attention, c.options);
    answer.status = call.prepare();
    if (answer.status != HEED_OK) return answer;
    const heed_args sound = call.args;
    make_fault(c, &bytes, &call);
    answer.status = execute(&call);
    call.args = sound;
    if (answer.status == HEED_OK) answer = {HEED_OK, call.out(), call.lse()};
    return answer;
}

void replay(const fs::path &path) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> data{std::istreambuf_iterator<char>(file), {}};
    ByteReader bytes(reinterpret_cast<const uint8_t *>(data.data()), data.size());
    const bool decode = bytes.flag();
    ExecuteCase c = read_case(&bytes);
    const std::string kernel = c.options.kernel = general_kernel(c.attention, decode);
    const Answer in_c = answer_of(c, bytes, [](Call *call) { return call->execute(); });
    const Answer in_cpp = answer_of(c, bytes, [&](Call *call) { return execute_in_cpp(call, kernel); });
    require(in_c.status == in_cpp.status && in_c.hash() == in_cpp.hash(), "C and C++ answer alike");
    std::printf("%s %s %016llx\n", path.filename().c_str(), heed_status_name(in_c.status),
                static_cast<unsigned long long>(in_c.hash()));
}

}  // namespace
}  // namespace heed_test

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    std::vector<std::filesystem::path> paths;
    for (const auto &entry : std::filesystem::directory_iterator(argv[1])) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    for (const auto &path : paths) heed_test::replay(path);
    return 0;
}
