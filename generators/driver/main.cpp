// heed_generate: makes one kernel of the table, or the Halide runtime that the kernels share. The only place where
// what meets how.
//
//   heed_generate name=N phase=prefill|decode dtype=f32|f16|bf16 [kv_dtype=i8|f32] head_dim=D|any [head_dim_v=D]
//                 [features=alibi_bias_dropout_gqa_mask_softcap] [storage=contiguous|paged] isa=I
//                 [schedule=x86|wide|whole|default|Mullapudi2016|Adams2019] [l2_bytes=N] [extra_features=asan,..]
//                 [score_mod=NAME] [parameters=list] [NAME=N ..] [write=..] out=DIR
//   heed_generate name=N op=O dtype=T [kv_dtype=i8] isa=I [rows=N] [head_dim=D] [extra_features=asan,..] [write=..]
//                 out=DIR                               of the table in contract/operations.h
//   heed_generate runtime=FILE.o
//   heed_generate list=..                               what there is to make: table/list.h
//
// isa=sm75, sm80 and sm90, CUDA compute capabilities, take [schedule=cuda|wide] ptxas=PROGRAM fatbinary=PROGRAM
// and capabilities="80 90 ..".
//
// NAME=N, of kernels of the CPU: a speed parameter instead of what the schedule chooses; parameters=list prints those
// of the kernel and makes nothing. l2_bytes: what the schedule takes a core's L2 for.
//
// Writes N.o, N.inc (the line of the registry) and, for CUDA, N.limits: registers, spills and shared memory by ptxas.
// write=LIST, joined by commas, asks for more: stmt (lowered code) and assembly (a third of the time again) for the
// CPU, ptx and cubin (N.sm_XX.cubin for each capability) for CUDA. Exit status 1 and a message on bad input or a
// warning of the compiler.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "generators/driver/attention.h"
#include "generators/driver/operation.h"
#include "generators/table/list.h"

namespace heed {
namespace {

// A warning (a stage that no schedule names, a bound that cannot be proved) is an error, except for three: x86_64 has
// no instruction that converts f16, Halide's integer code does; autoschedulers do not know the cost of intrinsics that
// passes of ours replace; and of code for ThreadSanitizer Halide says that it may report what the schedules allow.
class StrictReporter : public Halide::CompileTimeErrorReporter {
public:
    void warning(const char *message) override {
        for (const char *const harmless :
             {"float16 type operation is emulated", "Unknown extern call heed_", "when run with ThreadSanitizer"}) {
            if (std::strstr(message, harmless) != nullptr) return;
        }
        throw BadInput(message);
    }
    void error(const char *message) override { throw BadInput(message); }
};

// Halide allocates millions of small nodes. A large cache of free ones in the thread and a heap that is not given back
// take a fifth of a kernel's time away. glibc reads this once, at the start of a process.
void tune_malloc(char **argv) {
    if (std::getenv("GLIBC_TUNABLES") != nullptr) return;
    setenv("GLIBC_TUNABLES",
           "glibc.malloc.tcache_count=60000:glibc.malloc.trim_threshold=2000000000:glibc.malloc.top_pad=100000000", 1);
    execv("/proc/self/exe", argv);  // returns where it fails: the kernel is made all the same
}

// For exceptions of passes, which run on a stack of Halide's that no exception leaves.
[[noreturn]] void say_why() {
    try {
        std::rethrow_exception(std::current_exception());
    } catch (const std::exception &e) {
        std::fprintf(stderr, "heed_generate: %s\n", e.what());
    }
    std::_Exit(1);
}

}  // namespace
}  // namespace heed

int main(int argc, char **argv) {
    if (heed::is_asked_for_list(argc, argv)) return heed::print_list(argc, argv);
    heed::tune_malloc(argv);
    std::set_terminate(heed::say_why);
    static heed::StrictReporter reporter;
    Halide::set_custom_compile_time_error_reporter(&reporter);
    try {
        heed::Options options(argc, argv);
        if (options.has("runtime")) {
            const std::string path = options.get("runtime");
            options.refuse_unknown();
            Halide::compile_standalone_runtime(path, Halide::Target("x86-64-linux-user_context"));
        } else if (options.has("op")) {
            heed::generate_operation(options);
        } else {
            heed::generate_attention(options);
        }
        return 0;
    } catch (const std::exception &e) {
        std::fprintf(stderr, "heed_generate: %s\n", e.what());
        return 1;
    }
}
