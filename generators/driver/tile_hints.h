#pragma once
// Loads of matrix tiles (AMX) past the L1 cache.
//
// Packed keys and values stream through a step once, and would drive out of L1 what the step reads again: queries,
// logits, weights, outputs; so do rows of dense layers with the panel of W that they share, and what of that panel does
// not fit into L1. TILELOADDT1 is TILELOADD with a hint that the lines need not stay there. Halide has no such
// intrinsic, and the two encodings differ in one bit, which is changed in the object. Measured, Xeon with AMX, p2k_gqa:
// 0.90 of the time; 2048 x 1024 x 3072 0.80. Source: Intel 64 and IA-32 Architectures Software Developer's Manual,
// volume 2.

#include <string>

namespace heed {

// In the object file `object`: loads of tiles that are the first factor of the next product that reads them get the
// hint, and those of a second factor that come before the load of the first one, as TileBlock::streamed_step orders
// them. Throws BadInput unless the file has as many loads of tiles as its listing `assembly`.
void load_streams_past_l1(const std::string &object, const std::string &assembly);

}  // namespace heed
