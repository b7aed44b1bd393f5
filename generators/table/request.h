#pragma once
// heed_add_kernels(): the kernels of a program, by what the program needs. Which kernels of which kind serve that on
// each ISA is said here and nowhere else.

#include "generators/table/listing.h"

namespace heed::table {

struct Request {
    Words phases, dtypes, head_dims, isas, ops;
    Words logits;  // features of kernels that act on logits, sorted
    bool paged, int8;
    std::string score_mod;
};

void list_request(const Request &request, Listing &listing);

}  // namespace heed::table
