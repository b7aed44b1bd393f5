#include "generators/driver/operation_table.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <sstream>

#include "generators/common/bad_input.h"
#include "generators/contract/operations.h"

namespace heed {

namespace {

using Values = std::vector<std::string>;
using Line = std::map<std::string, Values>;  // the values of each option, by its name

bool contains(const Values &list, const std::string &value) {
    return std::find(list.begin(), list.end(), value) != list.end();
}

std::string joined(const Values &list) {
    std::string text;
    for (const std::string &value : list) text += (text.empty() ? "" : ", ") + value;
    return text;
}

Line parsed(const std::string &text) {
    Line line;
    Values *values = nullptr;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        if (std::isupper(word[0]) == 0) {
            values->push_back(word);
            continue;
        }
        for (char &c : word) c = static_cast<char>(std::tolower(c));
        values = &line[word];
    }
    return line;
}

std::vector<Line> lines_of(const std::string &op) {
    std::vector<Line> lines;
    for (const char *text : op_kernels) {
        Line line = parsed(text);
        if (contains(line["op"], op)) lines.push_back(line);
    }
    return lines;
}

}  // namespace

void check_kernel(const std::string &op, const std::vector<TableOption> &options) {
    std::vector<Line> lines = lines_of(op);
    std::string before = "op=" + op;
    for (const TableOption &option : options) {
        Values allowed;
        std::vector<Line> left;
        for (Line &line : lines) {
            Values &values = line[option.name];
            if (values.empty()) values = {option.unsaid};
            if (contains(values, option.value)) left.push_back(line);
            for (const std::string &value : values) {
                if (!contains(allowed, value)) allowed.push_back(value);
            }
        }
        if (left.empty()) {
            throw BadInput(option.name + " = '" + option.value + "' is not allowed with " + before + ": " +
                           joined(allowed));
        }
        lines = left;
        before += ", " + option.name + "=" + option.value;
    }
}

}  // namespace heed
