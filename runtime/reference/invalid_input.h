// Input that the caller must change: a file, a field, an argument. what() names it, its value and what is allowed.
#pragma once

#include <stdexcept>
#include <string>

namespace heed_reference {

class InvalidInput : public std::runtime_error {
public:
    explicit InvalidInput(const std::string &sentence) : std::runtime_error(sentence) {}
};

}  // namespace heed_reference
