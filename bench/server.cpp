#include "bench/server.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "bench/case_json.h"
#include "bench/element_types.h"
#include "bench/entry.h"
#include "bench/kernel_names.h"
#include "bench/report_json.h"
#include "heed/heed.hpp"
#include "runtime/reference/element.h"
#include "runtime/reference/kernel_difference.h"

namespace heed_bench {

namespace {

using Json = nlohmann::ordered_json;

struct Prepared {
    std::unique_ptr<Workload> workload;
    CheckResult check;
};

class Server {
public:
    explicit Server(const Options &options) : options_(options), reader_(options.threads) {}

    Json answer(const Json &request) {
        const std::string what = request.at("do");
        if (what == "hello") {
            return hello();
        }
        if (what == "ceilings") {
            Ceilings measured = measure_ceilings(options_.threads);
            keep_larger(measured, ceilings_);
            ceilings_ = measured;
            return ceilings_json(ceilings_);
        }
        if (what == "add") {
            return add(case_of(request.at("shape")));
        }
        if (what == "time") {
            return time(request);
        }
        if (what == "compare") {
            return compare(request);
        }
        if (what == "report") {
            return report();
        }
        throw std::invalid_argument("cannot do \"" + what + "\"");
    }

private:
    Json hello() const {
        Json cases = Json::array();
        for (const Case &c : cases_) {
            cases.push_back(case_json(c));
        }
        Json json = {{"machine", machine_json(machine_facts())}};
        json.update({{"cpus", usable_cpus()}, {"cold_bytes", cold_bytes()}, {"cases", cases}});
        return json;
    }

    Json add(const Case &added) {
        for (const Case &c : cases_) {
            if (c.name == added.name) {
                throw std::invalid_argument("there is a case " + c.name);
            }
        }
        cases_.push_back(added);
        return case_json(added);
    }

    const Case &find_case(const std::string &name) const {
        for (const Case &c : cases_) {
            if (c.name == name) {
                return c;
            }
        }
        throw std::invalid_argument("no case " + name);
    }

    // Kernels read the same memory: where it is makes no difference between them.
    const Arena &arena_of(const Case &c) {
        std::unique_ptr<Arena> &arena = arenas_[types_name(c)];
        if (!arena) {
            Demand demand;
            demand.include(c);
            arena = std::make_unique<Arena>(demand, options_.pages);
        }
        return *arena;
    }

    Prepared prepare(const Case &c, const std::string &kernel, const std::string &isa) {
        const Arena &arena = arena_of(c);
        Prepared prepared{std::make_unique<Workload>(c, kernel, options_.threads, arena), {}};
        if (!isa.empty()) {
            const std::string own = kernel_for_isa(prepared.workload->kernel(), isa);
            prepared.workload = std::make_unique<Workload>(c, own, options_.threads, arena);
        }
        prepared.check = prepared.workload->check();
        if (!(prepared.check.bound_ratio <= 1)) {
            throw std::runtime_error("wrong result: " + std::to_string(prepared.check.bound_ratio) + " of the bound");
        }
        return prepared;
    }

    Entry &entry_of(const Json &request) {
        const heed_dtype dtype = dtype_of(request.value("dtype", "f32"));
        const std::string kv = request.value("kv", ""), kernel = request.value("kernel", ""),
                          isa = request.value("isa", "");
        const Case c = in_types(find_case(request.at("case")), dtype, kv.empty() ? dtype : dtype_of(kv));
        const std::string group = c.name + " " + heed_reference::dtype_name(dtype),
                          key = group + " " + kv + " " + kernel + " " + isa;
        if (group != current_) {
            prepared_.clear();
            arenas_.clear();
            current_ = group;
        }
        if (prepared_.count(key) == 0) {
            prepared_.emplace(key, prepare(c, kernel, isa));
        }
        Prepared &prepared = prepared_.at(key);
        const bool cold = request.value("cold", false) && c.kind == CaseKind::decode;
        const std::string entry_key = key + (cold ? " cold" : "");
        auto found = entries_.find(entry_key);
        if (found == entries_.end()) {
            found = entries_.emplace(entry_key, make_entry(*prepared.workload, cold, prepared.check, reader_)).first;
        }
        found->second.workload = prepared.workload.get();  // it may have been prepared anew
        return found->second;
    }

    Json time(const Json &request) {
        Entry &entry = entry_of(request);
        const double seconds = request.value("seconds", options_.min_time);
        const size_t before = entry.result.seconds.size();
        double spent = 0;
        // At least two, for the first one wakes threads and caches; of a slow call it does not matter.
        constexpr double slow = 0.5;
        for (int n = 0; spent < seconds || (n < 2 && spent < slow); n++) {
            spent += entry.sample();
        }
        const auto first = entry.result.seconds.begin() + static_cast<std::ptrdiff_t>(before);
        return {{"ms", 1e3 * *std::min_element(first, entry.result.seconds.end())},
                {"samples", entry.result.seconds.size() - before},
                {"kernel", entry.result.kernel}};
    }

    static Json compare(const Json &request) {
        for (const heed_kernel_info &kernel : heed::kernels()) {
            if (kernel.supported && kernel.name == request.at("kernel")) {
                return {{"difference", heed_reference::kernel_difference(kernel, request.at("with"))}};
            }
        }
        throw std::invalid_argument("no kernel " + request.at("kernel").get<std::string>() + " runs here");
    }

    Json report() const {
        if (ceilings_.threads == 0) {
            throw std::invalid_argument("no ceilings were measured");
        }
        Json results = Json::array();
        for (const auto &entry : entries_) {
            results.push_back(result_json(entry.second.result, ceilings_));
        }
        return {{"ceilings", ceilings_json(ceilings_)}, {"results", results}};
    }

    Options options_;
    std::vector<Case> cases_ = all_cases();
    DramReader reader_;
    Ceilings ceilings_;
    std::string current_;                                   // case and element type
    std::map<std::string, std::unique_ptr<Arena>> arenas_;  // of those, by the types of all tensors
    std::map<std::string, Prepared> prepared_;              // of those
    std::map<std::string, Entry> entries_;
};

}  // namespace

int serve(const Options &options) {
    Server server(options);
    for (std::string line; std::getline(std::cin, line);) {
        Json answer;
        try {
            answer = server.answer(Json::parse(line));
        } catch (const std::exception &error) {
            answer = {{"error", error.what()}};
        }
        std::cout << answer.dump() << std::endl;
    }
    return 0;
}

}  // namespace heed_bench
