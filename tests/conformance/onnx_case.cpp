#include "tests/conformance/onnx_case.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "runtime/reference/element.h"
#include "runtime/reference/invalid_input.h"

namespace heed_conformance {
namespace {

namespace fs = std::filesystem;
using heed_reference::ElementType;
using heed_reference::InvalidInput;

double value_at(const Array &array, int64_t index) {
    const heed_dtype dtype = dtype_of(array);
    if (dtype == HEED_F32) return array.as<float>()[index];
    return heed_reference::from_bits(dtype, array.as<uint16_t>()[index]);
}

// "(1, 0, 2, 5)"
std::string place_of(const Array &array, int64_t index) {
    std::vector<int64_t> place(array.shape.size());
    for (size_t axis = place.size(); axis-- > 0; index /= array.shape[axis]) place[axis] = index % array.shape[axis];
    return heed_reference::shape_text(place);
}

std::string number_text(double value) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.9g", value);
    return text;
}

}  // namespace

const Array *OnnxCase::find_input(const std::string &input) const {
    const auto found = inputs.find(input);
    return found == inputs.end() ? nullptr : &found->second;
}

const Array &OnnxCase::input(const std::string &input) const {
    const Array *found = find_input(input);
    if (found == nullptr) throw InvalidInput("the input " + input + " is missing");
    return *found;
}

double OnnxCase::attribute(const std::string &attribute, double otherwise) const {
    const auto found = attributes.find(attribute);
    return found == attributes.end() ? otherwise : found->second;
}

int32_t OnnxCase::integer(const std::string &attribute, int32_t otherwise) const {
    return static_cast<int32_t>(this->attribute(attribute, otherwise));
}

void OnnxCase::expect_only(const std::set<std::string> &known_inputs,
                           const std::set<std::string> &known_attributes) const {
    for (const auto &[input, array] : inputs) {
        if (known_inputs.count(input) == 0) throw InvalidInput("the input " + input + " has no meaning here");
    }
    for (const auto &[attribute, value] : attributes) {
        if (known_attributes.count(attribute) == 0) {
            throw InvalidInput("the attribute " + attribute + " has no meaning here");
        }
    }
}

OnnxCase read_onnx_case(const fs::path &path) {
    heed_reference::TensorFile file = heed_reference::read_tensors(path);
    const nlohmann::json description = nlohmann::json::parse(file.metadata["onnx"]);
    OnnxCase onnx;
    onnx.name = path.stem().string();
    onnx.rtol = description.at("rtol");
    onnx.atol = description.at("atol");
    onnx.attributes = description.at("attributes").get<std::map<std::string, double>>();
    for (auto &[name, array] : file.arrays) {
        const size_t slash = name.find('/');
        (name.substr(0, slash) == "inputs" ? onnx.inputs : onnx.outputs)[name.substr(slash + 1)] = std::move(array);
    }
    return onnx;
}

heed_dtype dtype_of(const Array &array) {
    switch (array.type) {
    case ElementType::f32:
        return HEED_F32;
    case ElementType::f16:
        return HEED_F16;
    case ElementType::bf16:
        return HEED_BF16;
    default:
        throw InvalidInput(std::string("a tensor holds ") + heed_reference::element_name(array.type));
    }
}

Array split_heads(const Array &array, int32_t num_heads) {
    if (array.shape.size() == 4) return array;
    if (array.shape.size() != 3 || num_heads < 1 || array.shape[2] % num_heads != 0) {
        throw InvalidInput("a tensor has shape " + heed_reference::shape_text(array.shape) + " and " +
                           std::to_string(num_heads) + " heads");
    }
    Array split = array;
    split.shape = {array.shape[0], array.shape[1], num_heads, array.shape[2] / num_heads};
    return split;
}

const char *axes_of(const Array &array) { return array.shape.size() == 3 ? "bshd" : "bhsd"; }

Array make_nan(const Array &like, const std::vector<int64_t> &shape) {
    Array array = heed_reference::make_array(like.type, shape);
    std::fill(array.data.begin(), array.data.end(), static_cast<unsigned char>(0xff));  // a NaN in each type
    return array;
}

std::string compare(const OnnxCase &onnx, const std::string &output, const Array &got, const Array &expected,
                    double *worst) {
    if (got.type != expected.type || got.shape != expected.shape) {
        return output + " holds " + heed_reference::element_name(got.type) + heed_reference::shape_text(got.shape) +
               ", expected " + heed_reference::element_name(expected.type) + heed_reference::shape_text(expected.shape);
    }
    const double rtol = dtype_of(expected) == HEED_BF16 ? std::max(onnx.rtol, std::ldexp(1, -6)) : onnx.rtol;
    int64_t wrong = 0, first = 0;
    for (int64_t i = 0; i < expected.size(); i++) {
        const double is = value_at(got, i), wanted = value_at(expected, i);
        bool right = is == wanted || (std::isnan(is) && std::isnan(wanted));
        if (!right && std::isfinite(wanted) && wanted != 0) {
            const double ratio = std::fabs(is - wanted) / (onnx.atol + rtol * std::fabs(wanted));
            right = ratio <= 1;
            if (right) *worst = std::max(*worst, ratio);
        }
        if (!right && wrong++ == 0) first = i;
    }
    if (wrong == 0) return "";
    return output + place_of(expected, first) + " is " + number_text(value_at(got, first)) + ", expected " +
           number_text(value_at(expected, first)) + "; " + std::to_string(wrong) + " of " +
           std::to_string(expected.size()) + " elements are wrong";
}

}  // namespace heed_conformance
