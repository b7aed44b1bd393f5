#pragma once

#include "generators/driver/options.h"

namespace heed {

// Makes a kernel of an operation around attention: option op. Throws BadInput with a sentence.
void generate_operation(Options &options);

}  // namespace heed
