// Which of a table's kernels a request gets.
#include "tests/api/choose_kernel.h"

#include <string>
#include <vector>

namespace {

using heed_test::ChooseKernel;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(ChooseKernel, RefusalNamesTheCallThatAddsAKernel) {
    EXPECT_EQ(choose(8, 72, heed::feature_mask | heed::feature_alibi, up_to_avx2), "");
    EXPECT_THAT(choice.reason,
                StartsWith("no kernel serves this problem. In CMake, heed_add_kernels(<target> PHASES prefill DTYPES "
                           "f32 HEAD_DIMS 72 FEATURES mask alibi ISAS avx2) adds one.\n"));
    const uint32_t of_all_isas = heed::KernelTarget(heed::Isa::amx).bit() * 2 - 1;
    EXPECT_EQ(choose(8, 72, heed::feature_mask, of_all_isas), "");  // f32, of which AMX has no kernels
    EXPECT_THAT(choice.reason, HasSubstr("ISAS avx512) adds one."));
}

TEST_F(ChooseKernel, Case61_Ranks) {
    EXPECT_EQ(choose(100, 64, 0, all), "d64_avx512");
    EXPECT_EQ(choose(100, 64, 0, up_to_avx2), "d64_avx2");
    EXPECT_EQ(choose(100, 65, 0, all), "any_avx512");
    EXPECT_EQ(choose(100, 65, 0, up_to_avx2), "any_avx2");
    EXPECT_EQ(choose(100, 64, heed::feature_bias, all), "any_bias_avx512");
    EXPECT_EQ(choose(1, 64, 0, all), "decode_any_avx2");
    EXPECT_EQ(choose(1, 64, heed::feature_bias, all), "any_bias_avx512");  // the other phase serves
    EXPECT_THAT(choice.reason, HasSubstr("though decode is preferred"));
}

// Prefill is bound by arithmetic, decoding by memory.
TEST_F(ChooseKernel, SlowDotProducts) {
    constexpr uint32_t with_dots = 15;
    kernels.push_back(kernel("d64_dots", heed::Isa::avx512bf16, 64));
    kernels.push_back(kernel("d80_dots", heed::Isa::avx512bf16, 80));
    kernels.push_back(kernel("d80_mask_dots", heed::Isa::avx512bf16, 80, heed::feature_mask));
    kernels.push_back(
        kernel("any_dropout_mask_avx512", heed::Isa::avx512, 0, heed::feature_dropout | heed::feature_mask));
    kernels.push_back(kernel("decode_any_dots", heed::Isa::avx512bf16, 0, 0, heed::Phase::decode));
    for (const bool slow : {false, true}) {
        slow_bf16_dots = slow;
        EXPECT_EQ(choose(100, 64, 0, with_dots), slow ? "d64_avx512" : "d64_dots");
        EXPECT_EQ(choose(100, 80, 0, with_dots), slow ? "any_avx512" : "d80_dots");
        EXPECT_EQ(choose(100, 80, heed::feature_mask, with_dots), "d80_mask_dots");
        EXPECT_EQ(choose(1, 64, 0, with_dots), "decode_any_dots");
    }
    EXPECT_THAT(choice.candidates, HasSubstr("d64_dots: could serve, but decode is preferred"));
    choose(100, 64, 0, with_dots);
    EXPECT_THAT(choice.candidates, HasSubstr("d64_dots: could serve, but its arithmetic is slower"));
}

// Kernels that know no pages serve them by copies of heads: not decode, and none with a sweep before its tasks.
TEST_F(ChooseKernel, PagesThatAreReadInCopies) {
    for (heed::Kernel &of_row : kernels) of_row.schedule = "x86";
    kernels.push_back(kernel("paged_avx512", heed::Isa::avx512, 0));
    kernels.back().kv_storage = kv_storage = HEED_KV_PAGED;
    EXPECT_EQ(choose(64, 64, 0, all), "paged_avx512");
    EXPECT_THAT(choice.candidates, HasSubstr("d64_avx512: kv_storage is paged"));
    copies = heed::CopiesOfHeads::possible;
    EXPECT_EQ(choose(64, 64, 0, all), "paged_avx512");
    EXPECT_THAT(choice.candidates, HasSubstr("d64_avx512: could serve, but copies keys that few rows read"));
    copies = heed::CopiesOfHeads::pay;
    EXPECT_EQ(choose(64, 64, 0, all), "d64_avx512");
    EXPECT_EQ(choose(64, 80, 0, all), "any_avx512");
    EXPECT_THAT(choice.candidates, HasSubstr("paged_avx512: could serve, but copies of heads take less time"));
    EXPECT_THAT(choice.candidates, HasSubstr("any_bias_avx512: kv_storage is paged"));
    EXPECT_THAT(choice.candidates, HasSubstr("decode_any_avx2: kv_storage is paged"));
    kernels[3].schedule = "default";
    EXPECT_EQ(choose(64, 64, 0, all), "d64_avx2");
}

// Kernels of 16-bit numbers with keys of floats: by copies alone, which machines with AVX2 widen.
TEST_F(ChooseKernel, KeysThatAreWidenedInCopies) {
    dtype = kv_dtype = HEED_F16;
    for (heed::Kernel &of_row : kernels) {
        of_row.schedule = "x86";
        of_row.dtype = HEED_F16;
    }
    kernels.push_back(kernel("paged_avx512", heed::Isa::avx512, 64));
    kernels.back().kv_storage = HEED_KV_PAGED;
    kernels.back().dtype = kernels.back().kv_dtype = HEED_F16;
    EXPECT_EQ(choose(64, 64, 0, all), "paged_avx512");
    EXPECT_THAT(choice.candidates, HasSubstr("d64_avx512: the kernel reads copies of heads in f32"));
    copies = heed::CopiesOfHeads::possible;
    EXPECT_EQ(choose(64, 64, 0, all), "paged_avx512");
    copies = heed::CopiesOfHeads::pay;
    EXPECT_EQ(choose(64, 64, 0, all), "d64_avx512");
    for (const auto storage : {HEED_KV_PAGED, HEED_KV_VARLEN}) {
        kv_storage = storage;
        EXPECT_EQ(choose(64, 64, 0, all), "d64_avx512");
    }
    kernels[3].target = heed::Isa::x86_64;
    EXPECT_EQ(choose(64, 64, 0, all), "paged_avx512");
    kernels.back().kv_dtype = HEED_I8;
    kv_dtype = HEED_I8;
    EXPECT_EQ(choose(64, 64, 0, all), "paged_avx512");
    EXPECT_THAT(choice.candidates, HasSubstr("d64_avx2: kv_dtype is i8, the kernel has f32"));
}

// Packed rows of any head dim are whole tiles; rows of a kernel's own head dims are in its number.
TEST_F(ChooseKernel, PackedBlocksOfAnyHeadDim) {
    heed::Kernel any = kernel("any_packs", heed::Isa::avx512, 0), own = kernel("d80_packs", heed::Isa::avx512, 80);
    any.packed_bytes = 512;
    own.packed_bytes = 1000;
    EXPECT_EQ(heed::packed_block_bytes(any, 1, 32), 512 * (32 + 32));
    EXPECT_EQ(heed::packed_block_bytes(any, 33, 640), 512 * (64 + 640));
    EXPECT_EQ(heed::packed_block_bytes(own, 80, 80), 1000);
    EXPECT_TRUE(heed::packs_keys(any));
    own.kv_block = 2;
    own.packed_bytes = 2 * 2 * 80;
    EXPECT_TRUE(heed::packs_values(own) && !heed::packs_keys(own));
    own.packed_bytes *= 2;
    EXPECT_TRUE(heed::packs_keys(own));
    own.packed_bytes = 0;
    EXPECT_FALSE(heed::packs_values(own) || heed::packs_keys(own));

    heed::KernelRequest request = {HEED_CPU, HEED_F32, HEED_F32, 0, 0, 0, HEED_KV_CONTIGUOUS, 100, 1, false};
    any.kv_block = 1;
    request.keys = 1 << 16;  // blocks of 2^16 bytes at 64 elements: one block too many
    for (const int32_t dim : {64, 65}) {
        request.head_dim = request.head_dim_v = dim;
        const std::string reason = heed::why_not(any, request, all);
        EXPECT_THAT(reason, HasSubstr("the kernel packs up to " + std::to_string(dim == 64 ? 65535 : 43690)));
    }
}

// A plan takes the kernel of an alike request without a look at the table: then that is the best one.
TEST_F(ChooseKernel, RequestsThatDecodeAlikeGetTheSameKernel) {
    constexpr int32_t dims = 128, beyond_caches = (2 << 20) / (2 * dims * 4) + 1;
    for (const char *const schedule : {"", "wide"}) {
        kernels.push_back(kernel("", heed::Isa::avx2, dims, heed::feature_gqa, heed::Phase::decode));
        kernels.back().schedule = schedule;
        kernels.back().row_block = schedule[0] == '\0' ? 4 : 24;
    }
    kernels.push_back(kernel("packs", heed::Isa::avx512, dims));
    kernels.back().packed_bytes = 1 << 20;  // too many for the longest
    kernels.push_back(kernel("tiles", heed::Isa::amx, dims, heed::feature_gqa, heed::Phase::decode));
    kernels.back().schedule = "wide";
    kernels.back().row_block = 32;
    const heed::KernelTable table = {kernels.data(), static_cast<int32_t>(kernels.size())};
    const uint32_t with_tiles = all | heed::KernelTarget(heed::Isa::amx).bit();
    int kernels_of_alike = 0;
    for (const int32_t q_len : {1, 4, 5, 8, 11, 12, 16, 17}) {
        for (const int32_t group : {1, 4, 8, 16}) {
            for (const int32_t kv_heads : {1, 3}) {
                std::vector<heed::KernelRequest> requests;
                for (const int32_t length :
                     {0, 255, 256, 1023, 1024, 2047, 2048, beyond_caches - 1, beyond_caches, 1 << 30}) {
                    heed::KernelRequest request = {HEED_CPU, HEED_F32,           HEED_F32, dims,  dims,
                                                   0,        HEED_KV_CONTIGUOUS, q_len,    group, false};
                    request.prefills_in_floats = true;
                    request.max_kv_len = length;
                    request.num_kv_heads = kv_heads;
                    request.keys = int64_t{length} * kv_heads * 60;
                    request.sequences = 60 * kv_heads;
                    requests.push_back(request);
                }
                for (const uint32_t isas : {all, with_tiles}) {
                    for (const heed::KernelRequest &a : requests) {
                        const heed::Kernel *const best = heed::best_kernel(table, a, isas);
                        if (!heed::is_preferred_decoder(*best, a)) continue;
                        for (const heed::KernelRequest &b : requests) {
                            if (!heed::decode_alike(a, b)) continue;
                            EXPECT_EQ(heed::best_kernel(table, b, isas), best)
                                << q_len << " " << group << " " << b.max_kv_len;
                            kernels_of_alike += a.max_kv_len != b.max_kv_len;
                        }
                    }
                }
            }
        }
    }
    EXPECT_GT(kernels_of_alike, 100);
}

TEST_F(ChooseKernel, RequestsThatDifferInMoreThanLengthsDoNotDecodeAlike) {
    const heed::KernelRequest one = {HEED_CPU, HEED_F32, HEED_F32, 64, 64, 0, HEED_KV_CONTIGUOUS, 1, 1, false};
    heed::KernelRequest longer = one;
    longer.max_kv_len = 255;
    longer.keys = longer.sequences = 1000;
    EXPECT_TRUE(heed::decode_alike(one, longer));
    void (*const changes[])(heed::KernelRequest &) = {[](heed::KernelRequest &r) { r.device = HEED_CUDA; },
                                                      [](heed::KernelRequest &r) { r.dtype = HEED_F16; },
                                                      [](heed::KernelRequest &r) { r.kv_dtype = HEED_I8; },
                                                      [](heed::KernelRequest &r) { r.head_dim = 63; },
                                                      [](heed::KernelRequest &r) { r.head_dim_v = 63; },
                                                      [](heed::KernelRequest &r) { r.features = 1; },
                                                      [](heed::KernelRequest &r) { r.q_len = 2; },
                                                      [](heed::KernelRequest &r) { r.group_size = 2; },
                                                      [](heed::KernelRequest &r) { r.any_q_len = true; },
                                                      [](heed::KernelRequest &r) { r.score_mod = "x"; },
                                                      [](heed::KernelRequest &r) { r.slow_bf16_dots = true; },
                                                      [](heed::KernelRequest &r) { r.num_kv_heads = 2; },
                                                      [](heed::KernelRequest &r) { r.max_kv_len = 256; },
                                                      [](heed::KernelRequest &r) { r.max_kv_len = 1024; },
                                                      [](heed::KernelRequest &r) { r.max_kv_len = 4097; },
                                                      [](heed::KernelRequest &r) { r.prefills_in_floats = true; },
                                                      [](heed::KernelRequest &r) { r.prefills_in_dots = true; },
                                                      [](heed::KernelRequest &r) { r.kv_storage = HEED_KV_PAGED; }};
    for (const auto &change : changes) {
        heed::KernelRequest other = one;
        change(other);
        EXPECT_FALSE(heed::decode_alike(one, other)) << &change - changes;
    }
}

TEST_F(ChooseKernel, NoKernelGivesAReasonPerCandidate) {
    EXPECT_EQ(choose(100, 64, heed::feature_bias, up_to_avx2), "");
    EXPECT_EQ(choice.status, HEED_UNSUPPORTED);
    for (const heed::Kernel &candidate : kernels) EXPECT_THAT(choice.reason, HasSubstr(candidate.name));
    EXPECT_THAT(choice.reason, HasSubstr("any_bias_avx512: this CPU or system lacks AVX-512"));
    EXPECT_THAT(choice.reason, HasSubstr("d64_avx2: the kernel has no bias"));
    EXPECT_EQ(choose(100, 64, 0, none), "");
    EXPECT_EQ(choose(100, 64, heed::feature_mask, all), "");
    EXPECT_THAT(choice.reason, HasSubstr("the kernel has no mask"));
}

TEST_F(ChooseKernel, EachLevelSaysWhatTheMachineLacks) {
    kernels = {kernel("oldest", heed::Isa::x86_64, 0), kernel("older", heed::Isa::avx2, 0),
               kernel("old", heed::Isa::avx512, 0), kernel("new", heed::Isa::avx512bf16, 0),
               kernel("newest", heed::Isa::amx, 0)};
    EXPECT_EQ(choose(8, 64, 0, none), "");
    for (const char *const reason :
         {"oldest: this CPU lacks SSE4.1", "older: this CPU or system lacks AVX2",
          "old: this CPU or system lacks AVX-512 F", "new: this CPU or system lacks AVX-512 BF16",
          "newest: this CPU or system lacks AMX_TILE"}) {
        EXPECT_THAT(choice.reason, HasSubstr(reason));
    }
}

TEST_F(ChooseKernel, Forced) {
    EXPECT_EQ(choose(100, 64, 0, all, "any_avx2"), "any_avx2");
    EXPECT_EQ(choose(100, 64, 0, all, "decode_any_avx2"), "decode_any_avx2");
    EXPECT_EQ(choose(100, 64, 0, all, ""), "d64_avx512");
    EXPECT_EQ(choose(100, 64, 0, all, "nonsense"), "");
    EXPECT_EQ(choice.status, HEED_INVALID_ARGUMENT);
    EXPECT_EQ(choose(100, 65, 0, all, "d64_avx2"), "");
    EXPECT_EQ(choice.status, HEED_UNSUPPORTED);
    EXPECT_THAT(choice.reason, HasSubstr("head_dim is 65, the kernel has 64"));
}

}  // namespace
