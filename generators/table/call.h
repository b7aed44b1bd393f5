#pragma once
// A call of a CMake function that adds kernels, in words: the function, its target, then keywords with their values.

#include <map>
#include <string>

#include "generators/table/words.h"

namespace heed::table {

// Every function throws BadInput: the call, the word that is wrong, and what is allowed.
class Call {
public:
    // lists: keywords of any number of values, none of which is in capitals; others: of one. can_be_empty: a keyword
    // that may have no value.
    Call(const Words &words, const Words &lists, const Words &others, const std::string &can_be_empty = "");

    const Words &list(const std::string &key) const;  // empty where the key is missing
    Words list(const std::string &key, const std::string &fallback) const;
    std::string value(const std::string &key) const;  // likewise

    void require(const Words &keys) const;
    void allow(const std::string &key, const Words &allowed) const;
    // d, dxdv or any, in the range that all of the ISAs serve.
    void check_head_dims(const std::string &key, const Words &isas) const;
    // none, or of the features of kernels, joined by _ in their order.
    void check_features(const Words &phases) const;
    // The name of the function in the file of SCORE_MOD; empty where there is none.
    std::string score_mod() const;

    [[noreturn]] void refuse(const std::string &why) const;

private:
    [[noreturn]] void refuse_value(const std::string &key, const std::string &value, const std::string &why) const;

    std::string name;
    std::map<std::string, Words> given;
};

}  // namespace heed::table
