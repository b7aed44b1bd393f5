#include "generators/attention/transposed_tiles.h"

namespace heed {

using namespace Halide;

Expr TransposedTiles::define(int lanes, const Func &in, const Expr &i, const Expr &j, const std::vector<Var> &rest) {
    const int elements = lanes * lanes;
    Var e("e"), ti("tile_i"), tj("tile_j");
    auto with_rest = [&](std::vector<Expr> first) {
        first.insert(first.end(), rest.begin(), rest.end());
        return first;
    };
    std::vector<Var> at{e, ti, tj};
    at.insert(at.end(), rest.begin(), rest.end());
    Func load(name + "0");
    load(at) = in(with_rest({tj * lanes + e % lanes, ti * lanes + e / lanes}));
    steps.push_back(load);
    for (int half = 1; half < lanes; half *= 2) {
        Func shuffle(name + std::to_string(steps.size()));
        shuffle(at) = select(e % 2 == 0, steps.back()(with_rest({e / 2, ti, tj})),
                             steps.back()(with_rest({e / 2 + elements / 2, ti, tj})));
        steps.push_back(shuffle);
    }
    return steps.back()(with_rest({i % lanes + lanes * (j % lanes), i / lanes, j / lanes}));
}

}  // namespace heed
