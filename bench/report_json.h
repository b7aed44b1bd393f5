// What a run found, as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/report.h"

namespace heed_bench {

nlohmann::ordered_json machine_json(const MachineFacts &machine);
nlohmann::ordered_json ceilings_json(const Ceilings &ceilings);
nlohmann::ordered_json result_json(const Result &result, const Ceilings &ceilings);

// All of a run. Throws std::runtime_error when the file cannot be written.
void write_json(const Run &run, const std::string &path);

}  // namespace heed_bench
