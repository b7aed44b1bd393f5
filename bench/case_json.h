// Cases as JSON: what heed_bench --serve tells of its own, and what it takes in their place.
#pragma once

#include <nlohmann/json.hpp>

#include "bench/cases.h"

namespace heed_bench {

nlohmann::ordered_json case_json(const Case &c);

// A case of any shape, from an object with the fields of case_json. "case" (its name), "batch", "num_heads",
// "num_kv_heads", "q_len", "kv_len" and "head_dim" must be there; head_dim_v is head_dim otherwise, and what else is
// left out is off. One query is decode, more are prefill. Throws std::invalid_argument for fields, names and sizes that
// a case does not have, and nlohmann's exceptions for fields that are missing or of another type.
Case case_of(const nlohmann::ordered_json &json);

}  // namespace heed_bench
