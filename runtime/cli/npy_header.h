// The dictionary in front of an .npy file's data: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }.
#pragma once

#include <string>

#include "npy.h"

namespace heed_cli {

// Type and shape, no data. `file` is for the message. Throws InvalidInput.
Array parse_npy_header(const std::string &text, const std::string &file);

// The type as a header has it, "<f4".
const char *npy_descr(ElementType type);

}  // namespace heed_cli
