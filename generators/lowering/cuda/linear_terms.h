#pragma once
// An integer as a sum of products of what it is made of: passes so find what of an index or address changes in a loop.
// Sums of 32 bits are taken to overflow nowhere, as indices are.

#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

class LinearTerms {
public:
    explicit LinearTerms(const Halide::Expr &e) : type(e.type()), terms(terms_of(e)) { join(); }

    // The terms that use a variable, or do not.
    LinearTerms that_use(const std::string &variable, bool use) const;
    LinearTerms operator-(const LinearTerms &other) const;
    int64_t constant() const;
    LinearTerms without_constant() const;
    Halide::Expr sum() const;

private:
    struct Term {
        int64_t factor;
        std::vector<Halide::Expr> of;
    };
    using Terms = std::vector<Term>;
    Halide::Type type;
    Terms terms;

    static Terms terms_of(const Halide::Expr &e);
    void join();
};

}  // namespace heed
