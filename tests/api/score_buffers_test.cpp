// What heed_args.score_buffers must hold for a kernel with a score function.
#include "runtime/inputs.h"
#include "tests/api/fixture.h"

namespace {

TEST(ScoreBuffers, AreCheckedInTurn) {
    heed::Kernel kernel = {};
    kernel.score_buffers = "fi";
    std::vector<float> floats(3);
    std::vector<int32_t> words(2);
    heed_args args = {};
    const auto expect = [&](heed_status status, const char *sentence) {
        heed::MemoryRanges ranges;
        EXPECT_EQ(heed::add_score_buffers(kernel, args, &ranges), status);
        if (status != HEED_OK) {
            EXPECT_THAT(heed_last_error(), testing::HasSubstr(sentence));
        }
    };
    expect(HEED_INVALID_ARGUMENT, "score_buffers[0].size is 0; it must be 1..2147483647");
    args.score_buffers[0] = {floats.data(), int64_t{1} << 31, HEED_F32};
    expect(HEED_INVALID_ARGUMENT, "score_buffers[0].size is 2147483648");
    args.score_buffers[0] = {floats.data(), 3, HEED_I32};
    expect(HEED_INVALID_ARGUMENT, "score_buffers[0].dtype");
    args.score_buffers[0].dtype = HEED_F32;
    args.score_buffers[1] = {nullptr, 2, HEED_I32};
    expect(HEED_INVALID_ARGUMENT, "score_buffers[1]");
    args.score_buffers[1].data = words.data();
    expect(HEED_OK, "");
    args.score_buffers[3] = {floats.data(), 3, HEED_F32};
    expect(HEED_INVALID_ARGUMENT,
           "score_buffers[3] is given; it must be NULL, as the problem's score_mod reads 2 buffers");
    args.score_buffers[3] = {};
    kernel.score_buffers = "";
    expect(HEED_INVALID_ARGUMENT, "score_buffers[0] is given; it must be NULL");
    args = {};
    expect(HEED_OK, "");
}

}  // namespace
