#pragma once

#include <string>

#include "tests/cuda_device/program.h"

namespace heed::device {

// Throws ParseError, which names the line.
Program parse_ptx(const std::string &text);

}  // namespace heed::device
