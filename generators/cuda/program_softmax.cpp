// One block of keys: the online softmax.
#include "generators/attention/logits.h"
#include "generators/cuda/program_builder.h"

namespace heed::cuda {

using namespace Halide;

namespace {

// The sums are rescaled when the maximum has grown by this power of 2: a weight of up to 2^8 is as exact, and sums are
// seldom touched (Zadouri et al., FlashAttention-4).
constexpr float most_growth = 8;

Expr unsigned_bits(const Expr &x) { return reinterpret<uint32_t>(x); }

}  // namespace

// One value of the four lanes that share a row.
Expr ProgramBuilder::over_quad(Expr x, const std::function<Expr(const Expr &, const Expr &)> &combine) {
    for (int lanes : {1, 2}) {
        Expr mine = code.let("mine", x);
        x = combine(mine, from_lane(mine, lanes));
    }
    return x;
}

// The maximum of row r over all keys so far.
Expr ProgramBuilder::largest_logit(int r) {
    Expr largest = row_max[r];
    for (int n = 0; n < key_tiles; n++) {
        for (int e = 0; e < 2; e++) largest = maximum(largest, logit(r, n, e));
    }
    return code.let("largest", over_quad(largest, maximum));
}

// 2 to the power of (x - maximum) * unit, in one fma, whose rounding of base changes all weights of a row alike.
Expr ProgramBuilder::exponential(const Expr &x, const Expr &base) const { return exp2(fma(x, unit, -base)); }

// Where base is so large that its rounding could carry the weights out of range, the maximum is subtracted first. By
// rows, so that none depends on another.
void ProgramBuilder::subtract_huge_maxima(const std::vector<Expr> &old_max) {
    constexpr float huge_base = 1 << 20;  // half a unit of it is 2^-4
    std::vector<Expr> huge;
    Expr any = 0;
    for (int r = 0; r < rows_of_thread; r++) {
        huge.push_back(code.let("huge", cast<int32_t>(abs(bases[r]) > huge_base)));
        any = any | huge[r];
    }
    code.when(any_lane(code.let("any_huge", any)) != 0, [&] {
        for (int r = 0; r < rows_of_thread; r++) {
            change_row(r, [&](const Expr &x, int, int) { return select(huge[r] != 0, x - row_max[r], x); });
            Expr factor = exp2((old_max[r] - row_max[r]) * unit);
            code.set(factors, r, select(huge[r] != 0, factor, factors[r]));
            code.set(bases, r, select(huge[r] != 0, 0.f, bases[r]));
        }
    });
}

// A thread sums its own columns; lanes of a row are summed once, for the results. `stores_weights`: for steps key by
// key.
void ProgramBuilder::softmax(bool stores_weights) {
    std::vector<Expr> old_max;
    for (int r = 0; r < rows_of_thread; r++) {
        old_max.push_back(code.let("old_max", row_max[r]));
        Expr largest = largest_logit(r);
        largest = code.let("largest", select((largest - old_max[r]) * unit > most_growth, largest, old_max[r]));
        // As long as all keys are hidden any number but -inf.
        code.set(bases, r, select(is_negative_infinity(largest), 0.f, largest * unit));
        // Exactly 1 where the maximum stays: the base's rounding would make it nearly 1.
        code.set(factors, r, select(old_max[r] == largest, 1.f, exponential(old_max[r], bases[r])));
        code.set(row_max, r, largest);
    }
    if (!cfg.modifies_logits()) subtract_huge_maxima(old_max);
    for (int r = 0; r < rows_of_thread; r++) {
        Expr sum = row_sum[r] * factors[r];
        std::vector<Expr> weight;  // column e of tile n is number 2 * n + e
        for (int n = 0; n < key_tiles; n++) {
            for (int e = 0; e < 2; e++) weight.push_back(code.let("weight", exponential(logit(r, n, e), bases[r])));
            sum += weight[2 * n] + weight[2 * n + 1];
        }
        code.set(row_sum, r, sum);
        for (int n = 0; n < key_tiles; n++) {
            if (stores_weights) store_weights(r, n, weight[2 * n], weight[2 * n + 1]);
            for (int e = 0; e < 2; e++) code.set(logits, logit_register(r, n, e), weight[2 * n + e]);
        }
    }
    if (stores_weights) rescale();
}

// Mostly no maximum grows: then every factor is exactly 1.
void ProgramBuilder::rescale_if_grown() {
    Expr grows = 0;
    for (int r = 0; r < rows_of_thread; r++) {
        grows = grows | cast<int32_t>(unsigned_bits(factors[r]) != unsigned_bits(1.f));
    }
    code.when(any_lane(code.let("grows", grows)) != 0, [&] { rescale(); });
}

void ProgramBuilder::rescale() {
    for (int i = 0; i < 4 * out_tiles; i++) code.run(set_sum(i, sum_so_far(i) * factors[i % 4 / 2]));
}

}  // namespace heed::cuda
