// The files that `heed run` leaves in a case folder: both or none, never a part of one.
#pragma once

#include <filesystem>

#include "npy.h"

namespace heed_cli {

// Removes out.npy, lse.npy and what an interrupted run left of them. When one cannot be removed, throws InvalidInput
// after all others are gone.
void remove_outputs(const std::filesystem::path &folder);

// Throws InvalidInput; then neither file is there.
void write_outputs(const std::filesystem::path &folder, const Array &out, const Array &lse);

}  // namespace heed_cli
