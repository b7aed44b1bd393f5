#pragma once
// Elements of rows in global memory, one at a time or 16 bytes at a time.

#include <vector>

#include "generators/common/element_type.h"
#include "generators/cuda/device_code.h"

namespace heed::cuda {

using Elements = std::vector<Halide::Expr>;  // floats

class RowElements {
public:
    RowElements(ElementType type, DeviceCode &code) : type(type), code(code) {}

    int size() const { return type == ElementType::f32 ? 4 : type == ElementType::i8 ? 1 : 2; }
    int width() const { return 16 / size(); }  // elements of 16 bytes

    // 1 or width() elements at an address that is a multiple of their bytes.
    Elements load(const Halide::Expr &address, int count);
    void store(const Halide::Expr &address, const Elements &values);

private:
    const ElementType type;
    DeviceCode &code;
};

// `count` floats; 16 bytes at a time where the count allows, which the address must then allow too.
Elements load_floats(DeviceCode &code, const Halide::Expr &address, int count);
void store_floats(DeviceCode &code, const Halide::Expr &address, const Elements &values);

}  // namespace heed::cuda
