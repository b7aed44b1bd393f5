// Which weights dropout keeps, as bits of words of lanes. Philox makes four words at a time, those of four neighbouring
// keys of a query, which belong to lanes that share the work.
#include "generators/ops/backward_tensor.h"
#include "generators/ops/shared_counters.h"

namespace heed {

using namespace Halide;

namespace {

// The number that differs in a bit, below `end`.
Expr other(const Var &x, int bit, int end) { return clamp(x + bit - x / bit % 2 * (2 * bit), 0, end - 1); }

}  // namespace

// Where a bit is, in words that lanes share, before they are moved by what a lane has of a counter.
Expr BackwardTensorDevice::bit_of(const Expr &of_column) const {
    const Expr eight = of_column / 8, in_pair = of_column % 2;
    return is_of_keys() ? keys_of_counter * (2 * eight + in_pair) : 8 * eight + in_pair;
}

// Of keys the four lanes of a counter are those of rows, each with a quarter of the columns; of queries two lanes of
// columns, each with half of the eights.
void BackwardTensorDevice::define_kept() {
    const std::vector<Var> of_lane = {u, row, part, across, down};
    const std::vector<Expr> own(of_lane.begin(), of_lane.end());
    const Expr lane = is_of_keys() ? row % keys_of_counter : u % 2;
    Expr first;  // of the columns of a counter
    Logit at;
    if (is_of_keys()) {
        const Expr number = lane * (tile.columns / 16) + over_counters;
        first = number / 2 * 8 + number % 2;
        at = logit(first + u * 2);
        at.key -= lane;
    } else {
        first = (2 * over_counters + lane) * 8;
        at = logit(first + u / 2 * keys_of_counter);
    }
    const DropoutStream stream = DropoutStream::on_device(dropout_seed, dropout_offset);
    const Expr bits = kept_of_counter(stream, dropout_threshold, element_of_dropout(at.query, at.key) >> 2);
    counted(of_lane) = Expr(0u);
    counted(of_lane) = select(same_for_block(drops()), counted(own) | bits << low_word(bit_of(first)), counted(own));

    // Words of all lanes of a counter.
    Func all = counted;
    for (const int bit : {1, 2}) {
        if (!is_of_keys() && bit == 2) break;
        std::vector<Expr> elsewhere = own;
        const size_t axis = is_of_keys() ? 1 : 0;
        elsewhere[axis] = other(of_lane[axis], bit, is_of_keys() ? tile.rows : 4);
        gathered.emplace_back("gathered");
        gathered.back()(of_lane) = select(same_for_block(drops()), all(own) | all(elsewhere), Expr(0u));
        all = gathered.back();
    }
    kept(of_lane) = select(shares_counters(max_kv_len), all(own) >> low_word(is_of_keys() ? lane : lane * 2), Expr(0u));
    const Expr of_column = over_columns.y * 8 + over_columns.x;
    const Logit one = logit(of_column + u * 2);
    const Expr bit = select(keeps(one.query, one.key), Expr(1u) << low_word(bit_of(of_column)), Expr(0u));
    kept(of_lane) = select(same_for_block(drops()), kept(own) | bit, kept(own));
}

Expr BackwardTensorDevice::keeps_weight() const {
    const Expr of_lane = kept(column % 8 / 2, row, part, across, down);
    return (of_lane & Expr(1u) << low_word(bit_of(column))) != Expr(0u);
}

}  // namespace heed
