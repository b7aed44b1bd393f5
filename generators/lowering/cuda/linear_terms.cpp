#include "generators/lowering/cuda/linear_terms.h"

#include <algorithm>

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

LinearTerms::Terms LinearTerms::terms_of(const Expr &e) {
    const auto with = [](Terms all, const Terms &more, int64_t factor) {
        for (const Term &term : more) all.push_back({term.factor * factor, term.of});
        return all;
    };
    if (const auto value = as_const_int(e)) return {{*value, {}}};
    if (const auto value = as_const_uint(e)) return {{static_cast<int64_t>(*value), {}}};
    if (const auto *add = e.as<Add>()) return with(terms_of(add->a), terms_of(add->b), 1);
    if (const auto *sub = e.as<Sub>()) return with(terms_of(sub->a), terms_of(sub->b), -1);
    if (const auto *mul = e.as<Mul>()) {
        Terms all;
        for (const Term &x : terms_of(mul->a)) {
            for (const Term &y : terms_of(mul->b)) {
                all.push_back({x.factor * y.factor, x.of});
                all.back().of.insert(all.back().of.end(), y.of.begin(), y.of.end());
            }
        }
        return all;
    }
    const auto *cast = e.as<Cast>();
    if (cast != nullptr && cast->value.type() == Int(32) && e.type().bits() == 64) {
        Terms all = terms_of(cast->value);
        for (Term &term : all) {
            for (Expr &one : term.of) one = Cast::make(e.type(), one);
        }
        return all;
    }
    return {{1, {e}}};
}

void LinearTerms::join() {
    const auto less = [](const Expr &x, const Expr &y) { return IRDeepCompare()(x, y); };
    for (Term &term : terms) std::sort(term.of.begin(), term.of.end(), less);
    Terms joined;
    for (const Term &term : terms) {
        const auto same = std::find_if(joined.begin(), joined.end(), [&](const Term &other) {
            return term.of.size() == other.of.size() &&
                   std::equal(term.of.begin(), term.of.end(), other.of.begin(),
                              [](const Expr &x, const Expr &y) { return equal(x, y); });
        });
        if (same == joined.end()) {
            joined.push_back(term);
        } else {
            same->factor += term.factor;
        }
    }
    joined.erase(std::remove_if(joined.begin(), joined.end(), [](const Term &term) { return term.factor == 0; }),
                 joined.end());
    terms = joined;
}

LinearTerms LinearTerms::that_use(const std::string &variable, bool use) const {
    LinearTerms result = *this;
    result.terms.clear();
    for (const Term &term : terms) {
        const bool uses =
            std::any_of(term.of.begin(), term.of.end(), [&](const Expr &one) { return expr_uses_var(one, variable); });
        if (uses == use) result.terms.push_back(term);
    }
    return result;
}

LinearTerms LinearTerms::operator-(const LinearTerms &other) const {
    LinearTerms result = *this;
    for (const Term &term : other.terms) result.terms.push_back({-term.factor, term.of});
    result.join();
    return result;
}

int64_t LinearTerms::constant() const {
    for (const Term &term : terms) {
        if (term.of.empty()) return term.factor;
    }
    return 0;
}

LinearTerms LinearTerms::without_constant() const {
    LinearTerms result = *this;
    result.terms.erase(
        std::remove_if(result.terms.begin(), result.terms.end(), [](const Term &term) { return term.of.empty(); }),
        result.terms.end());
    return result;
}

Expr LinearTerms::sum() const {
    Expr result = make_zero(type);
    for (const Term &term : terms) {
        Expr product = make_const(type, term.factor);
        for (const Expr &one : term.of) product = product * one;
        result = result + product;
    }
    return simplify(result);
}

}  // namespace heed
