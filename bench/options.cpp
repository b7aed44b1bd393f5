#include "options.h"

#include <fnmatch.h>

#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>

#include "element_types.h"

namespace heed_bench {

const char *const usage =
    R"(heed_bench [options]: attention on the named cases, checked once against fp64, beside the machine's ceilings
  --threads N        threads per call and per ceiling (2)
  --rounds N         times that every case comes round, in mixed order; minima count (5)
  --min-time S       seconds per case and round, at least one call (0.2)
  --filter A,B,...   cases by name; patterns as in file names: d4k_*
  --suite main|rag|small|lengths   one suite only
  --dtype f32,f16,bf16       element types (f32)
  --kv i8            int8 keys and values
  --rows best|all|NAME,...   the row that the plan chooses, every row that serves the case, or rows by name
  --isa NAME         that instruction set's version of the chosen row: x86_64, avx2, avx512, ...
  --pages standard|4k|huge   memory of the tensors
  --json FILE        results, machine and ceilings
  --list             print the cases and leave
  --serve            answer requests on stdin instead, for ./dev bench --peers
  --benchmark_*      any flag of Google Benchmark
)";

namespace {

int positive(const std::string &option, const std::string &text) {
    size_t end = 0;
    int value = 0;
    try {
        value = std::stoi(text, &end);
    } catch (const std::exception &) {
        end = 0;
    }
    if (end != text.size() || text.empty() || value < 1) {
        throw std::invalid_argument(option + " is \"" + text + "\", not a positive number");
    }
    return value;
}

double seconds(const std::string &option, const std::string &text) {
    try {
        const double value = std::stod(text);
        if (value > 0) {
            return value;
        }
    } catch (const std::exception &) {
    }
    throw std::invalid_argument(option + " is \"" + text + "\", not a time in seconds");
}

std::string one_of(const std::string &option, const std::string &text, const std::vector<std::string> &allowed) {
    std::string names;
    for (const std::string &name : allowed) {
        if (name == text) {
            return text;
        }
        names += " " + name;
    }
    throw std::invalid_argument(option + " is \"" + text + "\", not one of:" + names);
}

Pages pages_of(const std::string &option, const std::string &text) {
    one_of(option, text, {"standard", "4k", "huge"});
    return text == "huge" ? Pages::huge : (text == "4k" ? Pages::small : Pages::standard);
}

std::vector<heed_dtype> dtypes_of(const std::string &option, const std::string &text) {
    std::vector<heed_dtype> dtypes;
    std::istringstream names(text);
    for (std::string name; std::getline(names, name, ',');) {
        dtypes.push_back(dtype_of(one_of(option, name, {"f32", "f16", "bf16"})));
    }
    return dtypes;
}

bool matches(const std::string &filter, const std::string &name) {
    std::istringstream patterns(filter);
    for (std::string pattern; std::getline(patterns, pattern, ',');) {
        if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) {
            return true;
        }
    }
    return filter.empty();
}

}  // namespace

Options parse_options(int argc, char **argv) {
    Options o;
    using Setter = std::function<void(const std::string &name, const std::string &value)>;
    const std::map<std::string, Setter> setters = {
        {"--threads", [&](auto &name, auto &value) { o.threads = positive(name, value); }},
        {"--rounds", [&](auto &name, auto &value) { o.rounds = positive(name, value); }},
        {"--min-time", [&](auto &name, auto &value) { o.min_time = seconds(name, value); }},
        {"--filter", [&](auto &, auto &value) { o.filter = value; }},
        {"--suite",
         [&](auto &name, auto &value) {
             o.suite = one_of(name, value, {"main", "rag", "small", "lengths"});
         }},
        {"--dtype", [&](auto &name, auto &value) { o.dtypes = dtypes_of(name, value); }},
        {"--kv", [&](auto &name, auto &value) { o.int8_kv = one_of(name, value, {"i8"}) == "i8"; }},
        {"--rows", [&](auto &, auto &value) { o.rows = value; }},
        {"--isa", [&](auto &, auto &value) { o.isa = value; }},
        {"--pages", [&](auto &name, auto &value) { o.pages = pages_of(name, value); }},
        {"--json", [&](auto &, auto &value) { o.json = value; }},
    };
    for (int i = 1; i < argc; i++) {
        const std::string argument = argv[i];
        const size_t equals = argument.find('=');
        const std::string name = argument.substr(0, equals);
        if (name.compare(0, 12, "--benchmark_") == 0) {
            o.benchmark_flags.push_back(argument);
        } else if (name == "--list") {
            o.list = true;
        } else if (name == "--serve") {
            o.serve = true;
        } else if (name == "--help" || name == "-h") {
            o.help = true;
        } else if (setters.count(name) == 0) {
            throw std::invalid_argument("unknown option " + argument);
        } else if (equals != std::string::npos) {
            setters.at(name)(name, argument.substr(equals + 1));
        } else if (i + 1 < argc) {
            setters.at(name)(name, argv[++i]);
        } else {
            throw std::invalid_argument(name + " needs a value");
        }
    }
    return o;
}

std::vector<Case> selected_cases(const Options &options) {
    std::vector<Case> cases;
    for (const Case &c : all_cases()) {
        if ((!options.suite.empty() && c.suite != options.suite) || !matches(options.filter, c.name)) {
            continue;
        }
        for (const heed_dtype dtype : options.dtypes) {
            cases.push_back(in_types(c, dtype, options.int8_kv ? HEED_I8 : dtype));
        }
    }
    return cases;
}

}  // namespace heed_bench
