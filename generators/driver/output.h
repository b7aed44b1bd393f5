#pragma once
// The files of a kernel.

#include <set>
#include <string>

#include "Halide.h"

namespace heed {

// `base`.o, and of `more` stmt and assembly: `base`.stmt, `base`.s. The bytes of its machine code.
// streams_tiles: see tile_hints.h; the listing is without the hints.
int64_t write_module(const Halide::Module &module, const std::set<std::string> &more, const std::string &base,
                     bool streams_tiles = false);

// `base`.inc: the line of the registry.
void write_registry_line(const std::string &line, const std::string &base);

}  // namespace heed
