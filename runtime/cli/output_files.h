// The file that `heed run` writes: whole or not at all.
#pragma once

#include <filesystem>

#include "runtime/reference/tensor_file.h"

namespace heed_cli {

// NAME.out.safetensors for a case NAME.safetensors, or NAME.
std::filesystem::path outputs_of(const std::filesystem::path &case_path);

// Removes the outputs of the case and what an interrupted run left of them. Throws InvalidInput when one cannot be
// removed, after the other is gone.
void remove_outputs(const std::filesystem::path &case_path);

// The arrays out and lse. Throws InvalidInput; then the file is not there.
void write_outputs(const std::filesystem::path &case_path, const heed_reference::Array &out,
                   const heed_reference::Array &lse);

}  // namespace heed_cli
