#include "tests/score/score_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>

namespace heed_test {
namespace {

int32_t word_of(float value) {
    int32_t word = 0;
    std::memcpy(&word, &value, sizeof(word));
    return word;
}

void make_prefix_lm(ScoreCase *c, Rng *rng) {
    for (int32_t b = 0; b < c->a.batch; b++) c->words[0].push_back(rng->below(c->a.kv_len));
    c->see([&](int32_t b, int32_t, int32_t, int64_t p, int32_t j) { return j <= p || j < c->words[0][b]; });
}

// Self-attention, or queries at the end of the last document.
void make_document(ScoreCase *c, Rng *rng) {
    const int32_t len = c->a.kv_len;
    for (int32_t b = 0; b < c->a.batch; b++) {
        for (int32_t j = 0, document = 0; j < len; j++) {
            if (rng->chance(0.02)) document++;
            c->words[0].push_back(document);
        }
    }
    c->words[1] = {len};
    const auto &documents = c->words[0];
    // As the buffer is read: clamped to its ends.
    const auto of = [&](int64_t token) {
        return documents[static_cast<size_t>(
            std::clamp<int64_t>(token, 0, static_cast<int64_t>(documents.size()) - 1))];
    };
    c->see([&](int32_t b, int32_t, int32_t, int64_t p, int32_t j) {
        return of(int64_t{b} * len + p) == of(int64_t{b} * len + j);
    });
}

void make_block_sparse(ScoreCase *c, Rng *rng) {
    const int32_t columns = (c->a.kv_len + 127) / 128;
    for (int32_t n = 0; n < columns * columns; n++) c->words[0].push_back(rng->chance(0.4));
    c->words[1] = {columns};
    c->see([&](int32_t, int32_t, int32_t, int64_t p, int32_t j) {
        const int64_t n = p / 128 * columns + j / 128;
        return c->words[0][static_cast<size_t>(std::clamp<int64_t>(n, 0, columns * columns - 1))] != 0;
    });
}

void make_tree(ScoreCase *c, Rng *rng) {
    c->a.q_len = std::min({c->a.q_len, c->a.kv_len, 32});
    c->a = make_attention(c->a, Data::normal, 5, c->a.dtype);
    for (int32_t b = 0; b < c->a.batch; b++) {
        c->words[1].push_back(c->a.kv_len - c->a.q_len);
        std::vector<int32_t> seen(32);
        for (int32_t i = 0; i < 32; i++) {
            seen[i] = (i == 0 ? 0 : seen[rng->below(i)]) | static_cast<int32_t>(1u << i);
        }
        c->words[0].insert(c->words[0].end(), seen.begin(), seen.end());
    }
    c->see([&](int32_t b, int32_t, int32_t i, int64_t, int32_t j) {
        const int32_t node = j - c->words[1][b];
        return node < 0 || ((c->words[0][b * 32 + i] >> node) & 1) != 0;
    });
}

void make_distance(ScoreCase *c, Rng *rng) {
    Attention &a = c->a;
    std::vector<float> strength, reach;
    for (int32_t h = 0; h < a.num_heads; h++) {
        strength.push_back(rng->normal());
        reach.push_back(static_cast<float>(rng->between(1, 100)));
        c->words[0].push_back(word_of(strength.back()));
        c->words[1].push_back(word_of(reach.back()));
    }
    c->type = HEED_F32;
    a.bias = {true, {a.batch, a.num_heads, a.q_len, a.kv_len}, {}};
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t h = 0; h < a.num_heads; h++) {
            for (int32_t i = 0; i < a.q_len; i++) {
                for (int32_t j = 0; j < a.kv_len; j++) {
                    const double distance = static_cast<double>(j - a.position_of(b, i));
                    a.bias.data.push_back(static_cast<float>(strength[h] * std::tanh(distance / reach[h])));
                }
            }
        }
    }
}

void make_capped(ScoreCase *c, Rng *) {
    c->a.softcap = 2.5f;
    c->words[0] = {word_of(c->a.softcap)};
    c->type = HEED_F32;
}

using MakeCase = void (*)(ScoreCase *, Rng *);
const std::map<std::string, MakeCase> makers = {{"prefix_lm", make_prefix_lm},       {"document", make_document},
                                                {"block_sparse", make_block_sparse}, {"tree", make_tree},
                                                {"distance", make_distance},         {"capped", make_capped}};

}  // namespace

void ScoreCase::see(const Visible &visible) {
    a.mask = {true, {a.batch, a.num_heads, a.q_len, a.kv_len}, {}};
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t h = 0; h < a.num_heads; h++) {
            for (int32_t i = 0; i < a.q_len; i++) {
                for (int32_t j = 0; j < a.kv_len; j++) {
                    a.mask.data.push_back(visible(b, h, i, a.position_of(b, i), j));
                }
            }
        }
    }
}

void ScoreCase::make(const char *score_mod, Rng *rng) { makers.at(score_mod)(this, rng); }

void ScoreCase::set_buffers(heed_args *args) const {
    for (int n = 0; n < HEED_MAX_SCORE_BUFFERS; n++) {
        args->score_buffers[n] = {const_cast<int32_t *>(words[n].data()), static_cast<int64_t>(words[n].size()), type};
    }
}

}  // namespace heed_test
