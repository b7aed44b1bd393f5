// Which decode kernel a request gets, and up to how many queries.
#include <string>

#include "tests/api/choose_kernel.h"

namespace {

using heed_test::ChooseKernel;
using ::testing::HasSubstr;

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

// Copies of heads are for prefill: where they pay, a decode kernel loses by its own properties.
TEST_F(ChooseKernel, DecodeKernelsReadNoCopies) {
    kernels.push_back(kernel("decode_any_pages_avx2", heed::Isa::avx2, 0, 0, heed::Phase::decode));
    kernels.back().kv_storage = HEED_KV_PAGED;
    for (const auto of : {heed::CopiesOfHeads::no, heed::CopiesOfHeads::pay}) {
        copies = of;
        EXPECT_EQ(choose(1, 64, 0, all), "decode_any_avx2");
        EXPECT_THAT(choice.candidates,
                    HasSubstr("decode_any_pages_avx2: could serve, but looks keys up in a page table"));
    }
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

// Prefill in dot products of bf16 packs values first, so decode kernels serve more queries there.
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

}  // namespace
