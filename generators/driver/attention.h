#pragma once

#include "generators/driver/options.h"

namespace heed {

// Makes an attention kernel, or with parameters=list prints its speed parameters. Throws BadInput with a sentence.
void generate_attention(Options &options);

}  // namespace heed
