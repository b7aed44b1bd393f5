// Which of a table's kernels a request gets.
#include <list>
#include <string>
#include <vector>

#include "runtime/kernel_choice.h"
#include "runtime/kernel_registry.h"
#include "tests/api/fixture.h"

namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Pure functions on a table of their own.
class ChooseKernel : public ::testing::Test {
protected:
    static heed::Kernel kernel(const char *name, heed::Isa isa, int32_t head_dim, uint32_t features = 0,
                               heed::Phase phase = heed::Phase::prefill) {
        return {name, phase, HEED_F32, HEED_F32, head_dim, head_dim, features, HEED_KV_CONTIGUOUS,
                isa,  8,     64,       0,        "",       nullptr};
    }

    std::string choose(int32_t q_len, int32_t head_dim, uint32_t features, uint32_t isas,
                       const char *forced = nullptr) {
        const heed::KernelTable table = {kernels.data(), static_cast<int32_t>(kernels.size())};
        heed::KernelRequest request = {HEED_CPU, HEED_F32,   HEED_F32, head_dim,   head_dim,
                                       features, kv_storage, q_len,    group_size, false};
        request.slow_bf16_dots = slow_bf16_dots;
        request.prefills_in_floats = prefills_in_floats;
        request.prefills_in_dots = prefills_in_dots;
        request.max_kv_len = max_kv_len;
        request.num_kv_heads = num_kv_heads;
        request.whole_keys = whole_keys;
        request.far_keys = far_keys;
        request.gathers_pages = gathers_pages;
        choice = heed::choose_kernel(table, request, isas, forced);
        return choice.kernel == nullptr ? "" : choice.kernel->name;
    }

    static constexpr uint32_t all = 7, up_to_avx2 = 3, none = 0;
    std::vector<heed::Kernel> kernels = {
        kernel("any_bias_avx512", heed::Isa::avx512, 0, heed::feature_bias),
        kernel("any_avx512", heed::Isa::avx512, 0),
        kernel("d64_avx2", heed::Isa::avx2, 64),
        kernel("d64_avx512", heed::Isa::avx512, 64),
        kernel("any_avx2", heed::Isa::avx2, 0),
        kernel("decode_any_avx2", heed::Isa::avx2, 0, 0, heed::Phase::decode),
    };
    std::list<std::string> names;
    heed::KernelChoice choice;
    int32_t group_size = 1, max_kv_len = 1024, num_kv_heads = 1;
    bool whole_keys = false, far_keys = false, gathers_pages = false;
    heed_kv_storage kv_storage = HEED_KV_CONTIGUOUS;
    bool slow_bf16_dots = false, prefills_in_floats = false, prefills_in_dots = false;
};

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

// The most queries that decode kernels of some head dims get, where prefill computes in floats too: with AVX-512 more
// where the heads of a group would read many keys again.
TEST_F(ChooseKernel, DecodeKernelsForFewQueries) {
    kernels.push_back(kernel("decode_d64_avx512", heed::Isa::avx512, 64, 0, heed::Phase::decode));
    const auto most = [&] {
        int32_t q_len = 1;
        while (choose(q_len + 1, 64, 0, all) == "decode_d64_avx512") q_len++;
        return q_len;
    };
    EXPECT_EQ(most(), 4);
    prefills_in_floats = true;
    EXPECT_EQ(most(), 11);
    max_kv_len = 4097;  // of 512 bytes: 2 MiB
    EXPECT_EQ(most(), 11);
    group_size = 4;
    EXPECT_EQ(most(), 16);
    max_kv_len = 4096;
    EXPECT_EQ(most(), 11);
    EXPECT_THAT(choice.reason, HasSubstr("prefill (q_len 12 > 11)"));
    kernels.back().target = heed::Isa::avx2;
    EXPECT_EQ(most(), 8);
    max_kv_len = 255;
    EXPECT_EQ(most(), 4);
    max_kv_len = 256;
    EXPECT_EQ(most(), 8);
    kernels.back().target = heed::Isa::x86_64;
    EXPECT_EQ(most(), 4);
}

TEST_F(ChooseKernel, DecodeKernelsThatFitTheGroup) {
    kernels.push_back(kernel("decode_any_gqa_avx2", heed::Isa::avx2, 0, heed::feature_gqa, heed::Phase::decode));
    EXPECT_EQ(choose(1, 64, 0, all), "decode_any_avx2");
    EXPECT_EQ(choose(2, 64, 0, all), "decode_any_gqa_avx2");
    kernels.erase(kernels.end() - 2);
    EXPECT_EQ(choose(1, 64, 0, all), "decode_any_gqa_avx2");
}

// As few passes over the keys as can be, in as small a block of rows.
TEST_F(ChooseKernel, RowBlockThatFitsTheGroup) {
    kernels = {kernel("rows_16", heed::Isa::avx2, 64, heed::feature_gqa, heed::Phase::decode),
               kernel("rows_32", heed::Isa::avx2, 64, heed::feature_gqa, heed::Phase::decode)};
    kernels[0].row_block = 16;
    kernels[1].row_block = 32;
    group_size = 16;
    EXPECT_EQ(choose(1, 64, 0, all), "rows_16");
    EXPECT_THAT(choice.candidates, HasSubstr("rows_32: could serve, but has more rows of work than are asked for"));
    group_size = 17;
    EXPECT_EQ(choose(1, 64, 0, all), "rows_32");
    EXPECT_THAT(choice.candidates, HasSubstr("rows_16: could serve, but reads the keys more often"));
    group_size = 8;
    EXPECT_EQ(choose(2, 64, 0, all), "rows_16");
    EXPECT_EQ(choose(3, 64, 0, all), "rows_32");
}

// Lanes of rows, where they have the head dims or no other kernel has.
TEST_F(ChooseKernel, DecodeKernelsForLargeGroups) {
    for (const int32_t head_dim : {64, 80, 0}) {
        const std::string dim = head_dim == 0 ? "any" : "d" + std::to_string(head_dim);
        for (const char *const schedule : {"", "wide"}) {
            if (head_dim == 80 && schedule[0] != '\0') continue;
            names.push_back("decode_" + dim + schedule);
            kernels.push_back(kernel("", heed::Isa::avx2, head_dim, heed::feature_gqa, heed::Phase::decode));
            kernels.back().schedule = schedule;
            kernels.back().row_block = schedule[0] == '\0' ? 4 : 24;
            kernels.back().name = names.back().c_str();
        }
    }
    group_size = 15;
    EXPECT_EQ(choose(1, 64, 0, all), "decode_d64");
    EXPECT_EQ(choose(1, 72, 0, all), "decode_any");
    EXPECT_THAT(choice.candidates, HasSubstr("decode_anywide: could serve, but is for groups of more heads"));
    group_size = 16;
    EXPECT_EQ(choose(1, 64, 0, all), "decode_d64wide");
    EXPECT_THAT(choice.candidates, HasSubstr("decode_d64: could serve, but is for groups of fewer heads"));
    EXPECT_EQ(choose(1, 80, 0, all), "decode_d80");
    EXPECT_EQ(choose(1, 72, 0, all), "decode_anywide");
    num_kv_heads = 3;  // pages of many heads are read in part, but by kernels that ask for them
    EXPECT_EQ(choose(1, 64, 0, all), "decode_d64wide");
    EXPECT_EQ(choose(1, 72, 0, all), "decode_any");
    num_kv_heads = 2;
    max_kv_len = 1023;  // few tasks
    EXPECT_EQ(choose(1, 64, 0, all), "decode_d64wide");
    EXPECT_EQ(choose(1, 72, 0, all), "decode_any");
    num_kv_heads = 1;  // one
    EXPECT_EQ(choose(1, 64, 0, all), "decode_d64");
    group_size = 25;  // two
    EXPECT_EQ(choose(1, 64, 0, all), "decode_d64wide");
    num_kv_heads = 2;
    max_kv_len = 1024;
    group_size = 8;
    EXPECT_EQ(choose(2, 64, 0, all), "decode_d64wide");
    EXPECT_EQ(choose(100, 64, 0, all), "d64_avx512");
    kernels.erase(kernels.begin(), kernels.end() - 1);
    group_size = 1;
    EXPECT_EQ(choose(1, 64, 0, all), "decode_anywide");
}

// Kernels with rows of floats as lanes are preferred for up to half a block of queries: prefill has blocks of as many
// rows, all of one head.
TEST_F(ChooseKernel, DecodeKernelsOfManyQueriesInFloats) {
    for (const auto isa : {heed::Isa::avx2, heed::Isa::avx512}) {
        const int32_t block = isa == heed::Isa::avx2 ? 24 : 48;
        kernels = {kernel("prefill", isa, 64), kernel("lanes", isa, 64, heed::feature_gqa, heed::Phase::decode),
                   kernel("rows", isa, 64, heed::feature_gqa, heed::Phase::decode)};
        kernels.back().schedule = "wide";
        kernels.back().row_block = block;
        const auto chosen = [&](int32_t q_len, int32_t group, int32_t length) {
            group_size = group;
            max_kv_len = length;
            return choose(q_len, 64, 0, all);
        };
        num_kv_heads = 8;
        prefills_in_floats = true;
        EXPECT_EQ(chosen(3, 5, 1024), "lanes");
        EXPECT_EQ(chosen(4, 4, 1024), "rows");
        const struct {
            int32_t group, length, most;
        } cases[] = {{4, 1024, block / 2}, {4, 256, block / 2}, {4, 255, block / 4}, {1, 1024, block}};
        for (const auto &of : cases) {
            EXPECT_EQ(chosen(of.most, of.group, of.length), "rows") << of.group << " " << of.length;
            EXPECT_EQ(chosen(of.most + 1, of.group, of.length), "prefill") << of.group << " " << of.length;
        }
        EXPECT_EQ(chosen(12, 1, 1024), "rows");  // fewer rows than of a group: prefill is the other choice
        EXPECT_EQ(chosen(16, 1, 255), "prefill");
    }
}

// Matrix tiles of a group's rows: any heads and lengths, and more queries than other decode kernels.
TEST_F(ChooseKernel, DecodeKernelsWithMatrixTiles) {
    const uint32_t of_all_isas = heed::KernelTarget(heed::Isa::amx).bit() * 2 - 1;
    kernels = {kernel("prefill", heed::Isa::amx, 64),
               kernel("decode", heed::Isa::avx512bf16, 64, heed::feature_gqa, heed::Phase::decode),
               kernel("tiles", heed::Isa::amx, 64, heed::feature_gqa, heed::Phase::decode)};
    kernels.back().schedule = "wide";
    kernels.back().row_block = 32;
    const auto chosen = [&](int32_t q_len, int32_t group, int32_t length = 1024) {
        group_size = group;
        max_kv_len = length;
        return choose(q_len, 64, 0, of_all_isas);
    };
    num_kv_heads = 8;
    EXPECT_EQ(chosen(1, 15), "decode");
    EXPECT_EQ(chosen(1, 16), "tiles");
    EXPECT_EQ(chosen(1, 16, 64), "tiles");
    EXPECT_EQ(chosen(1, 8), "decode");  // half of the rows of a tile: of few keys
    EXPECT_EQ(chosen(1, 8, 1023), "tiles");
    EXPECT_EQ(chosen(1, 7, 64), "decode");
    EXPECT_EQ(chosen(4, 4), "tiles");
    EXPECT_EQ(chosen(4, 1), "decode");
    EXPECT_EQ(chosen(5, 1), "tiles");  // nor is prefill better there
    EXPECT_EQ(chosen(5, 1, 64), "tiles");
    far_keys = true;
    EXPECT_EQ(chosen(5, 1, 2047), "tiles");
    for (const int32_t q_len : {5, 8}) EXPECT_EQ(chosen(q_len, 1, 2048), "decode");
    EXPECT_EQ(chosen(9, 1, 2048), "tiles");
    EXPECT_EQ(chosen(8, 2, 2048), "tiles");
    kernels[1].head_dim = kernels[1].head_dim_v = 0;
    EXPECT_EQ(chosen(8, 1, 2048), "tiles");  // dot products of any head dims serve fewer queries
    kernels[1].head_dim = kernels[1].head_dim_v = 64;
    far_keys = false;
    EXPECT_EQ(chosen(8, 1, 2048), "tiles");
    const struct { int32_t group, most_queries; } cases[] = {{1, 32}, {2, 24}, {4, 16}, {8, 12}, {32, 9}, {128, 8}};
    for (const auto &of : cases) {
        EXPECT_EQ(chosen(of.most_queries, of.group), "tiles") << of.group;
        EXPECT_THAT(choice.candidates, HasSubstr("prefill: could serve, but decode is preferred"));
        EXPECT_EQ(chosen(of.most_queries + 1, of.group), "prefill") << of.group;
        EXPECT_THAT(choice.candidates, HasSubstr("tiles: could serve, but prefill is preferred"));
    }
    kernels.back().head_dim = kernels.back().head_dim_v = 0;
    EXPECT_EQ(chosen(8, 4), "tiles");
    EXPECT_EQ(chosen(9, 4), "prefill");
    EXPECT_EQ(chosen(1, 16), "tiles");  // before decode kernels of own head dims
    EXPECT_EQ(chosen(1, 15), "decode");
    kernels[1].schedule = "wide";
    kernels[1].row_block = 48;
    num_kv_heads = 2;
    EXPECT_EQ(chosen(1, 16), "tiles");
}

// Prefill in dot products of bf16 packs values first: decode kernels take more queries than beside others.
TEST_F(ChooseKernel, DecodeKernelsBesideDotProducts) {
    constexpr uint32_t with_dots = 15;
    kernels = {kernel("prefill", heed::Isa::avx512bf16, 64),
               kernel("floats", heed::Isa::avx512, 64, heed::feature_gqa | heed::feature_mask, heed::Phase::decode),
               kernel("lanes", heed::Isa::avx512bf16, 64, heed::feature_gqa, heed::Phase::decode),
               kernel("rows", heed::Isa::avx512bf16, 64, heed::feature_gqa, heed::Phase::decode)};
    kernels.back().schedule = "wide";
    kernels.back().row_block = 48;
    num_kv_heads = 8;
    // The kernels of all numbers of queries, with the last number of each.
    const auto chosen = [&](int32_t group, int32_t length, uint32_t features = 0) {
        group_size = group;
        max_kv_len = length;
        std::string text, last;
        for (int32_t q_len = 1; q_len <= 100; q_len++) {
            const std::string best = choose(q_len, 64, features, with_dots);
            if (best != last && q_len > 1) text += last + " " + std::to_string(q_len - 1) + ", ";
            last = best;
        }
        return text + last;
    };
    EXPECT_EQ(chosen(1, 1024), "lanes 4, prefill");
    prefills_in_dots = true;
    EXPECT_EQ(chosen(1, 255), "lanes 8, prefill");
    EXPECT_EQ(chosen(1, 256), "lanes 8, prefill 11, rows 24, prefill");
    EXPECT_EQ(chosen(1, 1024), "lanes 11, rows 48, prefill");
    EXPECT_EQ(chosen(4, 255), "lanes 2, rows 12, prefill");
    EXPECT_EQ(chosen(4, 256), "lanes 2, rows 24, prefill");
    EXPECT_EQ(chosen(16, 1024), "lanes 1, rows 24, prefill");
    num_kv_heads = 1;
    EXPECT_EQ(chosen(16, 1024), "rows 24, prefill");
    kernels.front().features = heed::feature_mask;
    EXPECT_EQ(chosen(4, 1024, heed::feature_mask), "floats 4, prefill");
    EXPECT_EQ(chosen(1, 1024, heed::feature_mask), "floats 8, prefill");
    kernels.back().head_dim = kernels.back().head_dim_v = 0;
    EXPECT_EQ(chosen(4, 1024), "lanes 8, prefill");
}

// Kernels that know no pages serve them by copies of heads: not decode, and none with a sweep before its tasks.
TEST_F(ChooseKernel, KernelsThatReadGatheredPages) {
    for (heed::Kernel &of_row : kernels) of_row.schedule = "x86";
    kernels.push_back(kernel("paged_avx512", heed::Isa::avx512, 0));
    kernels.back().kv_storage = kv_storage = HEED_KV_PAGED;
    EXPECT_EQ(choose(64, 64, 0, all), "paged_avx512");
    EXPECT_THAT(choice.candidates, HasSubstr("d64_avx512: kv_storage is paged"));
    gathers_pages = true;
    EXPECT_EQ(choose(64, 64, 0, all), "d64_avx512");
    EXPECT_EQ(choose(64, 80, 0, all), "any_avx512");
    EXPECT_THAT(choice.candidates, HasSubstr("paged_avx512: could serve, but looks keys up in a page table"));
    EXPECT_THAT(choice.candidates, HasSubstr("any_bias_avx512: kv_storage is paged"));
    EXPECT_THAT(choice.candidates, HasSubstr("decode_any_avx2: kv_storage is paged"));
    kernels[3].schedule = "default";
    EXPECT_EQ(choose(64, 64, 0, all), "d64_avx2");
}

// Where that pays and one block of rows reads a key, in pages up to two blocks.
TEST_F(ChooseKernel, DecodeKernelsForWholeKeys) {
    for (const char *const schedule : {"x86", "whole"}) {
        names.push_back(std::string("decode_") + schedule);
        kernels.push_back(kernel("", heed::Isa::avx512, 64, heed::feature_gqa, heed::Phase::decode));
        kernels.back().schedule = schedule;
        kernels.back().row_block = 4;
        kernels.back().name = names.back().c_str();
    }
    group_size = 4;
    EXPECT_EQ(choose(1, 64, 0, all), "decode_x86");
    EXPECT_THAT(choice.candidates, HasSubstr("decode_whole: could serve, but is for larger keys"));
    whole_keys = true;
    EXPECT_EQ(choose(1, 64, 0, all), "decode_whole");
    EXPECT_THAT(choice.candidates, HasSubstr("decode_x86: could serve, but is for smaller keys"));
    EXPECT_EQ(choose(2, 64, 0, all), "decode_x86");
    group_size = 5;
    EXPECT_EQ(choose(1, 64, 0, all), "decode_x86");
    group_size = 1;  // of one row a kernel of four would waste three
    EXPECT_EQ(choose(1, 64, 0, all), "decode_x86");
    group_size = 5;
    kv_storage = HEED_KV_PAGED;
    for (heed::Kernel &of_pages : kernels) of_pages.kv_storage = HEED_KV_PAGED;
    EXPECT_EQ(choose(1, 64, 0, all), "decode_whole");
    group_size = 8;
    EXPECT_EQ(choose(1, 64, 0, all), "decode_whole");
    group_size = 9;
    EXPECT_EQ(choose(1, 64, 0, all), "decode_x86");
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
