#pragma once
// Kernels that bring metadata to attention kernels on the device (runtime/kernel.h: write_metadata, sequences).

#include <string>

#include "Halide.h"

namespace heed::cuda {

constexpr int sequences_threads = 128;  // of a block of the second kernel

// 32-bit words from the host to device memory as parameters of the launch: 64-bit scalars word0, word1, .. of two words
// each; output words (int32, 1-D), of an even extent up to num_metadata_words.
Halide::Module write_metadata_module(const std::string &name, const Halide::Target &target);

// From lengths, prefix sums and offsets on the device to the sequence table. Inputs cu_seqlens_q, cu_seqlens_kv,
// kv_lens, q_offsets (int32, 1-D); int32 batch, max_q_len, max_kv_len, total_q, total_kv, given (bit 0..3: which of the
// four are there), position (heed_position), causal, window_left, window_right; uint64 status, an address or 0; output
// table (int32: field, sequence). Whatever the values are, what it writes stays inside the tensors; a value that is not
// allowed sets status, if that is 0, to sequence * 8 + 1 (cu_seqlens_q), 2 (cu_seqlens_kv) or 3 (kv_lens).
Halide::Module sequences_module(const std::string &name, const Halide::Target &target);

}  // namespace heed::cuda
