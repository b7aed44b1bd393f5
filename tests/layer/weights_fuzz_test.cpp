// Mutations of good weight files: each is refused, or its tensors are views of the file's data.
#include "tests/layer/weights_bytes.h"

#include <algorithm>
#include <vector>

#include "runtime/reference/element.h"

namespace heed_test {
namespace {

struct FileParts {
    std::string header, data;
};

const std::vector<std::string> names = {"a", "b", "long.name.of.a.weight", "scale", "", "\xc3\xa4"};

std::vector<FileParts> good_files() {
    const std::string two =
        R"({"a":)" + entry("F32", "[2,3]", "0", "24") + R"(,"b":)" + entry("F16", "[4]", "24", "32");
    const std::string data = std::string(100, 'd');
    return {
        {R"({"a":)" + entry("U8", "[7]", "0", "7") + "}", data},
        {two + "}", data},
        {two + R"(,"__metadata__":{"format":"pt"},"scale":)" + entry("BF16", "[]", "32", "34") +
             R"(,"long.name.of.a.weight":)" + entry("I8", "[1,2,1,2,1,2,1,2]", "34", "50") + "}   ",
         data},
        {R"({"":)" + entry("F64", "[1]", "0", "8") + R"(,"\u00e4":)" + entry("I32", "[0,5]", "8", "8") + R"(,"b":)" +
             entry("BOOL", "[92]", "8", "100") + "}",
         data},
    };
}

class Mutator {
public:
    explicit Mutator(uint64_t seed) : state_(seed) {}

    // A whole file, of at most about 1000 bytes.
    std::string next(const std::vector<FileParts> &files) {
        FileParts parts = files[below(files.size())];
        const size_t changes = 1 + below(2);
        for (size_t i = 0; i < changes; i++) {
            const size_t kind = below(10);
            if (kind < 5) {
                overwrite_number(&parts.header);
            } else if (kind < 8) {
                change(&parts.header, files[below(files.size())].header);
            } else {
                change(&parts.data, parts.header);
            }
        }
        std::string bytes = weights_bytes(parts.header, parts.data);
        if (below(8) == 0) change(&bytes, bytes);
        return bytes;
    }

private:
    size_t below(size_t n) {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return static_cast<size_t>(state_ >> 11) % n;
    }

    void change(std::string *text, const std::string &other) {
        const size_t at = below(text->size() + 1), count = 1 + below(12);
        switch (below(5)) {
        case 0:
            if (at < text->size()) (*text)[at] = static_cast<char>((*text)[at] ^ (1 << below(8)));
            break;
        case 1:
            text->insert(at, 1, static_cast<char>(below(256)));
            break;
        case 2:
            text->erase(at, count);
            break;
        case 3:
            text->insert(at, other, below(other.size() + 1), count);
            break;
        default:
            text->resize(at);
        }
    }

    void overwrite_number(std::string *text) {
        static const char *const numbers[] = {"0",
                                              "1",
                                              "2",
                                              "3",
                                              "4",
                                              "7",
                                              "8",
                                              "24",
                                              "32",
                                              "50",
                                              "99",
                                              "100",
                                              "101",
                                              "-1",
                                              "4.0",
                                              "1e2",
                                              "2147483648",
                                              "4294967296",
                                              "4611686018427387904",
                                              "9223372036854775807",
                                              "9223372036854775808",
                                              "18446744073709551612",
                                              "18446744073709551615",
                                              "18446744073709551616"};
        const size_t start = std::min(text->find_first_of("0123456789", below(text->size() + 1)), text->size());
        size_t end = start;
        while (end < text->size() && (*text)[end] >= '0' && (*text)[end] <= '9') end++;
        text->replace(start, end - start, numbers[below(sizeof(numbers) / sizeof(numbers[0]))]);
    }

    uint64_t state_;
};

// The mapping is one page, so that an address names its place in the file.
void expect_inside(const Found &found, const std::string &file) {
    const auto bytes = static_cast<size_t>(found.tensor.size * element_bytes(found.tensor.dtype));
    const size_t at = reinterpret_cast<uintptr_t>(found.tensor.data) % 4096;
    ASSERT_GE(found.tensor.size, 0);
    ASSERT_GE(at, 8u);
    ASSERT_LE(at, file.size());
    ASSERT_LE(bytes, file.size() - at);
    ASSERT_EQ(std::memcmp(found.tensor.data, file.data() + at, bytes), 0);
    ASSERT_GE(found.rank, 0);
    ASSERT_LE(found.rank, 8);
    int64_t size = 1;
    for (int32_t i = 0; i < found.rank; i++) size *= found.shape[i];
    ASSERT_EQ(size, found.tensor.size);
}

TEST(WeightsFuzz, MutationsAreRefusedOrViewsStayInside) {
    const std::vector<FileParts> files = good_files();
    Mutator mutator(0x9e3779b97f4a7c15);
    const MemoryFile file;
    int opened = 0, refused = 0, views = 0;
    for (int i = 0; i < 20'000; i++) {
        const std::string bytes = mutator.next(files);
        ASSERT_LT(bytes.size(), 4000u);
        file.write(bytes);
        heed_status status = HEED_OK;
        const WeightsFile weights = open_weights(file.path(), &status);
        (status == HEED_OK ? opened : refused)++;
        if (status != HEED_OK) {
            ASSERT_EQ(status, HEED_INVALID_ARGUMENT) << heed_last_error();
            ASSERT_STRNE(heed_last_error(), "");
            continue;
        }
        for (const std::string &name : names) {
            const Found found(weights, name);
            if (found.status != HEED_OK) continue;
            expect_inside(found, bytes);
            if (testing::Test::HasFatalFailure()) FAIL() << "mutation " << i << ": " << bytes;
            views++;
        }
    }
    // Mutations reach both sides of the checks.
    EXPECT_GT(opened, 1000);
    EXPECT_GT(refused, 5000);
    EXPECT_GT(views, 1000);
}

TEST(WeightsFuzz, TheFilesAreGood) {
    for (const FileParts &parts : good_files()) {
        const MemoryFile file;
        const std::string bytes = weights_bytes(parts.header, parts.data);
        file.write(bytes);
        heed_status status = HEED_OK;
        const WeightsFile weights = open_weights(file.path(), &status);
        ASSERT_EQ(status, HEED_OK) << heed_last_error();
        int views = 0;
        for (const std::string &name : names) views += Found(weights, name).status == HEED_OK;
        EXPECT_GE(views, 1);
    }
}

}  // namespace
}  // namespace heed_test
