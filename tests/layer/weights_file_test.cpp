// heed_weights_open and heed_weights_find: the views of good files, and that no bad file opens.
#include "tests/layer/weights_bytes.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "runtime/reference/element.h"

namespace heed_test {
namespace {

using testing::HasSubstr;

constexpr heed_status invalid = HEED_INVALID_ARGUMENT;

// Bytes that differ from their neighbours.
std::string some_data(size_t bytes) {
    std::string data;
    for (size_t i = 0; i < bytes; i++) data += static_cast<char>(i * 37 + 11);
    return data;
}

// The header filled up with spaces so that the data begin at a multiple of 8.
std::string padded(std::string header) {
    while (header.size() % 8 != 0) header += ' ';
    return header;
}

std::vector<std::string> words(const std::string &text) {
    std::istringstream stream(text);
    return {std::istream_iterator<std::string>(stream), std::istream_iterator<std::string>()};
}

class WeightsFileTest : public testing::Test {
protected:
    WeightsFile open(const std::string &bytes, heed_status want = HEED_OK) {
        file_.write(bytes);
        heed_status status = HEED_OK;
        WeightsFile opened = open_weights(file_.path(), &status);
        EXPECT_EQ(status, want) << heed_last_error() << bytes.substr(0, 200);
        return opened;
    }
    // A file of 16 bytes of data does not open, and the sentence says what is wrong.
    void expect_refused(const std::string &header, const std::string &sentence) {
        open(weights_bytes(header, some_data(16)), invalid);
        EXPECT_THAT(heed_last_error(), HasSubstr("no safetensors file")) << header.substr(0, 200);
        EXPECT_THAT(heed_last_error(), HasSubstr(sentence)) << header.substr(0, 200);
    }

    MemoryFile file_;
};

TEST_F(WeightsFileTest, ViewsAreExact) {
    struct Tensor {
        const char *name, *dtype, *shape;
        heed_dtype view;
        std::vector<int64_t> extents;
        size_t bytes;
    };
    const Tensor tensors[] = {
        {"q.weight", "F32", "[2,3]", HEED_F32, {2, 3}, 24},
        {"half", "F16", "[4]", HEED_F16, {4}, 8},
        {"brain", "BF16", "[2,1,2]", HEED_BF16, {2, 1, 2}, 8},
        {"int", "I32", "[1,2]", HEED_I32, {1, 2}, 8},
        {"", "F32", "[]", HEED_F32, {}, 4},
        {"\u03b1 \"quoted\"", "F16", "[1,1,1,1,1,1,1,2]", HEED_F16, {1, 1, 1, 1, 1, 1, 1, 2}, 4},
        {"none", "F32", "[3,0,9223372036854775807]", HEED_F32, {3, 0, INT64_MAX}, 0},
        {"codes", "I8", "[3]", HEED_I8, {3}, 3},
        {"bytes", "U8", "[5]", HEED_U8, {5}, 5},
        {"flags", "BOOL", "[1]", HEED_U8, {1}, 1},
        {"nothing", "BF16", "[0]", HEED_BF16, {0}, 0},
    };
    std::string header = R"({"__metadata__":{"format":"pt"})";
    size_t end = 0;
    for (const Tensor &t : tensors) {
        std::string name = t.name;
        if (name.back() == '"') name = "\\u03b1 \\\"quoted\\\"";
        end += t.bytes;
        header += ",\"" + name + "\":" + entry(t.dtype, t.shape, std::to_string(end - t.bytes), std::to_string(end));
    }
    header = padded(header + "}");
    const std::string data = some_data(end), bytes = weights_bytes(header, data);

    const std::string path = testing::TempDir() + "heed_weights_test_" + std::to_string(getpid());
    std::ofstream(path, std::ios::binary) << bytes;
    heed_status status = HEED_OK;
    const WeightsFile file = open_weights(path, &status);
    ASSERT_EQ(unlink(path.c_str()), 0);  // views live as long as the file is open
    ASSERT_EQ(status, HEED_OK) << heed_last_error();
    size_t begin = 0;
    for (const Tensor &t : tensors) {
        const Found found(file, t.name);
        ASSERT_EQ(found.status, HEED_OK) << heed_last_error();
        EXPECT_EQ(found.tensor.dtype, t.view) << t.name;
        EXPECT_EQ(std::vector<int64_t>(found.shape, found.shape + found.rank), t.extents) << t.name;
        EXPECT_EQ(found.bytes(element_bytes(t.view)), data.substr(begin, t.bytes)) << t.name;
        begin += t.bytes;
    }
}

TEST_F(WeightsFileTest, DtypesThatHeedHasNot) {
    std::string header = R"({"a":)" + entry("F32", "[2]", "0", "8");
    const std::vector<std::pair<std::string, int>> dtypes = {{"F64", 8}, {"I64", 8}, {"U64", 8},     {"U32", 4},
                                                             {"I16", 2}, {"U16", 2}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
    for (const auto &[dtype, bytes] : dtypes) {
        header += ",\"t" + dtype + "\":" + entry(dtype, "[2]", "0", std::to_string(2 * bytes));
    }
    const WeightsFile file = open(weights_bytes(padded(header + "}"), some_data(16)));
    ASSERT_NE(file, nullptr);
    for (const auto &[dtype, bytes] : dtypes) {
        EXPECT_EQ(Found(file, "t" + dtype).status, HEED_UNSUPPORTED) << dtype;
        EXPECT_THAT(heed_last_error(), HasSubstr("\"t" + dtype + "\" is of dtype " + dtype));
    }
    EXPECT_EQ(Found(file, "a").bytes(4), some_data(8));
    // Names that this reader does not know may come with any number of bytes.
    for (const char *dtype : {"", "f32", "F32 ", "F4", "C64", "float32", "F32\\u0000"}) {
        const std::string unknown = entry(dtype, "[2]", "0", "8");
        const WeightsFile later = open(weights_bytes(padded(R"({"a":)" + unknown + "}"), some_data(16)));
        ASSERT_NE(later, nullptr);
        EXPECT_EQ(Found(later, "a").status, HEED_UNSUPPORTED) << dtype;
        EXPECT_THAT(heed_last_error(), HasSubstr("is of dtype"));
    }
}

TEST_F(WeightsFileTest, MoreThanEightDimensions) {
    for (const char *shape : {"[2,1,1,1,1,1,1,1,1]", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]", "[0,0,0,0,0,0,0,0,0]"}) {
        const std::string header = R"({"a":)" + entry("F32", "[2]", "0", "8") + R"(,"b":)" +
                                   entry("F32", shape, "0", shape[1] == '0' ? "0" : "8") + "}";
        const WeightsFile file = open(weights_bytes(padded(header), some_data(16)));
        ASSERT_NE(file, nullptr);
        EXPECT_EQ(Found(file, "b").status, HEED_UNSUPPORTED) << shape;
        EXPECT_THAT(heed_last_error(), HasSubstr("dimensions"));
        EXPECT_EQ(Found(file, "a").bytes(4), some_data(8));
    }
}

TEST_F(WeightsFileTest, MisalignedTensorsHaveNoView) {
    const std::string header =
        padded(R"({"a":)" + entry("F32", "[1]", "2", "6") + R"(,"b":)" + entry("F16", "[2]", "2", "6") + R"(,"c":)" +
               entry("BF16", "[1]", "7", "9") + R"(,"d":)" + entry("U8", "[1]", "7", "8") + "}");
    const WeightsFile file = open(weights_bytes(header, some_data(16)));
    ASSERT_NE(file, nullptr);
    for (const char *name : {"a", "c"}) {
        EXPECT_EQ(Found(file, name).status, HEED_UNSUPPORTED);
        EXPECT_THAT(heed_last_error(), HasSubstr("aligned"));
    }
    EXPECT_EQ(Found(file, "b").bytes(2), some_data(6).substr(2));
    EXPECT_EQ(Found(file, "d").bytes(1), some_data(8).substr(7));
    // A header of odd length moves all data.
    const WeightsFile odd = open(weights_bytes(header + " ", some_data(16)));
    ASSERT_NE(odd, nullptr);
    EXPECT_EQ(Found(odd, "b").status, HEED_UNSUPPORTED);
    EXPECT_EQ(Found(odd, "c").bytes(2), some_data(9).substr(7));
}

TEST_F(WeightsFileTest, NamesThatAreNotThere) {
    const WeightsFile file =
        open(weights_bytes(R"({"__metadata__":{"b":"c"},"a":)" + entry("U8", "[1]", "0", "1") + "}", "x"));
    for (const char *name : {"", "b", "A", "a ", "__metadata__"}) {
        EXPECT_EQ(Found(file, name).status, invalid) << name;
        EXPECT_THAT(heed_last_error(), HasSubstr("no tensor \"" + std::string(name) + "\" among its 1"));
    }
    EXPECT_EQ(Found(file, "a").bytes(1), "x");
    const WeightsFile empty = open(weights_bytes("{}", ""));
    EXPECT_EQ(Found(empty, "a").status, invalid);
}

TEST_F(WeightsFileTest, NullArguments) {
    const WeightsFile file = open(weights_bytes(R"({"a":)" + entry("U8", "[1]", "0", "1") + "}", "x"));
    heed_weights_file *none = nullptr;
    EXPECT_EQ(heed_weights_open(nullptr, &none), invalid);
    EXPECT_THAT(heed_last_error(), HasSubstr("path is NULL"));
    EXPECT_EQ(heed_weights_open("/", nullptr), invalid);
    EXPECT_THAT(heed_last_error(), HasSubstr("file is NULL"));
    heed_weights_close(nullptr);
    heed_tensor tensor;
    int64_t shape[8];
    int32_t rank = 0;
    EXPECT_EQ(heed_weights_find(nullptr, "a", &tensor, shape, &rank), invalid);
    EXPECT_EQ(heed_weights_find(file.get(), nullptr, &tensor, shape, &rank), invalid);
    EXPECT_EQ(heed_weights_find(file.get(), "a", nullptr, shape, &rank), invalid);
    EXPECT_EQ(heed_weights_find(file.get(), "a", &tensor, nullptr, &rank), invalid);
    EXPECT_EQ(heed_weights_find(file.get(), "a", &tensor, shape, nullptr), invalid);
    EXPECT_THAT(heed_last_error(), HasSubstr("NULL"));
}

TEST_F(WeightsFileTest, TruncatedAnywhere) {
    const std::string header =
        padded(R"({"a":)" + entry("F32", "[2]", "0", "8") + R"(,"b":)" + entry("F16", "[3]", "8", "14") + "}");
    const std::string bytes = weights_bytes(header, some_data(14));
    ASSERT_NE(open(bytes), nullptr);
    for (size_t size = 0; size < bytes.size(); size++) {
        open(bytes.substr(0, size), invalid);
        EXPECT_EQ(std::string(heed_last_error()).find("at least 8 are needed") != std::string::npos, size < 8) << size;
    }
}

TEST_F(WeightsFileTest, HeaderLengthsBeyondTheFile) {
    const std::string header = R"({"a":)" + entry("U8", "[1]", "0", "1") + "}", rest = header + "x";
    ASSERT_NE(open(header_length(header.size()) + rest), nullptr);
    for (const uint64_t length : {rest.size() + 1, rest.size() + 8, size_t{100'000'000}, size_t{100'000'001},
                                  size_t{1} << 31, size_t{1} << 32, size_t{1} << 63, SIZE_MAX - 7, SIZE_MAX}) {
        open(header_length(length) + rest, invalid);
        EXPECT_THAT(heed_last_error(), HasSubstr("its header claims " + std::to_string(length) + " bytes"));
    }
    for (const uint64_t length : {size_t{0}, header.size() - 1, rest.size()}) {
        open(header_length(length) + rest, invalid);
        EXPECT_THAT(heed_last_error(), HasSubstr("no JSON object"));
    }
}

TEST_F(WeightsFileTest, HeadersThatAreNoObject) {
    for (const std::string &header : words("{ } [] [{}] null 1 \"a\" {\"a\"} {a:1} {'a':{}} {}{} {}x {}, {\"a\":} "
                                           "/**/{} {\"a\xff\":{}} {\"a\":{\"dtype\":NaN}} \xff\xfe{}")) {
        expect_refused(header, "its header is no JSON object");
    }
    expect_refused("", "its header is no JSON object");
    expect_refused(" ", "its header is no JSON object");
    expect_refused(std::string("{}\0", 3), "its header is no JSON object");
}

TEST_F(WeightsFileTest, EntriesThatAreWrong) {
    const std::string offsets = R"("data_offsets":[0,8])", shape = R"("shape":[2])", dtype = R"("dtype":"F32")";
    const auto expect_entry_refused = [&](const std::string &value, const std::string &sentence) {
        expect_refused(R"({"name":)" + value + "}", "the tensor \"name\" " + sentence);
    };
    for (const char *value : {"null", "1", "[]", "\"F32\"", "{}", "true"}) expect_entry_refused(value, "needs");
    expect_entry_refused("{" + shape + "," + offsets + "}", "needs dtype");
    expect_entry_refused("{" + dtype + "," + offsets + "}", "needs dtype, shape");
    expect_entry_refused("{" + dtype + "," + shape + "}", "needs dtype, shape and data_offsets");
    for (const char *value : {"null", "4", "[\"F32\"]", "{}"}) {
        expect_entry_refused(std::string("{\"dtype\":") + value + "," + shape + "," + offsets + "}",
                             "has a dtype, shape or data_offsets of another kind");
    }
    for (const char *value : {"null", "2", "\"2\"", "{\"0\":2}"}) {
        expect_entry_refused("{" + dtype + ",\"shape\":" + value + "," + offsets + "}",
                             "has a dtype, shape or data_offsets of another kind");
    }
    for (const char *value : {"null", "8", "[]", "[8]", "[0,8,8]", "\"08\"", "{\"0\":0,\"1\":8}"}) {
        expect_entry_refused("{" + dtype + "," + shape + ",\"data_offsets\":" + value + "}",
                             "has a dtype, shape or data_offsets of another kind");
    }
    for (const std::string &value : words("8,0 9,8 9,17 0,17 17,25 -1,7 -8,0 0,-8 0,8.0 0.0,8 0,8e0 -0,8 0,null true,8 "
                                          "\"0\",\"8\" 0,18446744073709551615 18446744073709551608,0 "
                                          "0,18446744073709551624 18446744073709551616,18446744073709551624")) {
        expect_entry_refused("{" + dtype + "," + shape + ",\"data_offsets\":[" + value + "]}", "has data_offsets");
    }
    expect_refused(R"({"name":)" + entry("F32", "[2]", "0", "1e400") + "}", "");
    for (const std::string &value : words("-2 2.0 2e0 \"2\" null true 18446744073709551615 9223372036854775808 "
                                          "4294967296,4294967296 4611686018427387906 4611686018427387904,2 "
                                          "9223372036854775807,9223372036854775807 65536,65536,65536,65536,0")) {
        expect_entry_refused(entry("F32", "[" + value + "]", "0", "8"), "has the shape");
    }
    for (const char *value : {"[1]", "[3]", "[]", "[0]", "[2,2]", "[2,0]", "[1,1,1,1,1,1,1,4]"}) {
        expect_entry_refused(entry("F32", value, "0", "8"), "has 8 bytes; F32 of shape");
    }
    expect_entry_refused(entry("F64", "[2]", "0", "8"), "has 8 bytes; F64 of shape");
    // One wrong entry among good ones.
    expect_refused(R"({"a":)" + entry("F32", "[2]", "0", "8") + R"(,"b":)" + entry("F32", "[2]", "8", "24") + "}",
                   "the tensor \"b\"");
}

// "Duplicate keys are disallowed", says the format: readers must not differ in which one they keep.
TEST_F(WeightsFileTest, NamesThatOccurTwice) {
    const std::string good = entry("F32", "[2]", "0", "8"), other = entry("F16", "[4]", "0", "8");
    ASSERT_NE(open(weights_bytes(R"({"a":)" + good + R"(,"b":)" + good + "}", some_data(16))), nullptr);
    expect_refused(R"({"a":)" + good + R"(,"a":)" + other + "}", "twice");
    expect_refused(R"({"a":)" + good + R"(,"b":)" + good + R"(,"\u0061":)" + good + "}", "twice");
    expect_refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"shape":[2]}})", "twice");
}

// What reads, quotes or frees such a value may not recurse once per bracket.
TEST_F(WeightsFileTest, DeepNesting) {
    const std::string open_brackets(1'000'000, '['), closed = open_brackets + std::string(1'000'000, ']');
    std::string objects;
    for (int i = 0; i < 200'000; i++) objects += "{\"a\":";
    expect_refused(R"({"name":)" + entry("F32", "[[2]]", "0", "8") + "}", "nests");
    expect_refused(R"({"name":)" + entry("F32", "[2]", "0", "{}") + "}", "nests");
    expect_refused(R"({"__metadata__":{"a":[[]]}})", "nests");
    for (const std::string &deep : {open_brackets, closed, objects + "1" + std::string(200'000, '}')}) {
        expect_refused(deep, "");
        expect_refused(R"({"name":)" + deep + "}", "");
        expect_refused(R"({"name":)" + entry("F32", "[2]", deep, "8") + "}", "");
        expect_refused(R"({"name":)" + entry("F32", "[" + deep + "]", "0", "8") + "}", "");
        expect_refused(R"({"name":{"dtype":)" + deep + R"(,"shape":[2],"data_offsets":[0,8]}})", "");
    }
}

TEST_F(WeightsFileTest, PathsThatAreNoFile) {
    const std::string folder = testing::TempDir(), fifo = folder + "/heed_fifo_" + std::to_string(getpid());
    ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
    for (const std::string &path : {folder, fifo, std::string("/dev/null"), folder + "/heed_no_such_file",
                                    std::string(), std::string(5000, 'x'), file_.path() + "/x"}) {
        heed_status status = HEED_OK;
        open_weights(path, &status);
        EXPECT_EQ(status, invalid) << path;
        EXPECT_THAT(heed_last_error(), testing::AnyOf(HasSubstr("cannot open"), HasSubstr("not a regular file")));
    }
    ASSERT_EQ(unlink(fifo.c_str()), 0);
}

}  // namespace
}  // namespace heed_test
