// One of ONNX's test cases as generate.py wrote it: an operator's inputs and attributes, and the outputs to expect.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "heed/heed.h"
#include "runtime/reference/tensor_file.h"

namespace heed_conformance {

using heed_reference::Array;

struct OnnxCase {
    std::string name;
    double rtol = 0, atol = 0;                 // of ONNX's own runner
    std::map<std::string, double> attributes;  // those that are set
    std::map<std::string, Array> inputs, outputs;

    const Array *find_input(const std::string &input) const;  // NULL when absent
    const Array &input(const std::string &input) const;
    double attribute(const std::string &attribute, double otherwise) const;
    int32_t integer(const std::string &attribute, int32_t otherwise) const;

    // Throws InvalidInput for an input or attribute with another name: what is not known must not be ignored.
    void expect_only(const std::set<std::string> &known_inputs, const std::set<std::string> &known_attributes) const;
};

// Throws InvalidInput or nlohmann::json::exception.
OnnxCase read_onnx_case(const std::filesystem::path &path);

// Throws InvalidInput for types that Heed does not compute.
heed_dtype dtype_of(const Array &array);

// [batch, len, num_heads * dim] seen as [batch, len, num_heads, dim]; an array of four axes as it is.
Array split_heads(const Array &array, int32_t num_heads);

// Axes of split_heads' result, as in heed_reference::Layouts: ONNX has the heads outside where they have an axis.
const char *axes_of(const Array &array);

// An array of the same type and the shape, each element NaN.
Array make_nan(const Array &like, const std::vector<int64_t> &shape);

// Empty when `got` has the type, the shape and the elements of `expected`; else a sentence about the first element that
// is wrong. The bound is |got - expected| <= atol + rtol * |expected|, as in ONNX's runner, with an rtol of at least
// 2^-6 in bfloat16; but a zero, an infinity or a NaN must be exactly that. Raises *worst to the largest error / bound.
std::string compare(const OnnxCase &onnx, const std::string &output, const Array &got, const Array &expected,
                    double *worst);

}  // namespace heed_conformance
