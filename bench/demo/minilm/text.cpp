#include "bench/demo/minilm/text.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

namespace minilm {
namespace {

std::vector<Piece> read_pieces(const nlohmann::json &pieces, int32_t vocabulary, size_t max_tokens) {
    std::vector<Piece> result;
    for (const auto &piece : pieces) {
        result.push_back({piece.at("text").get<std::string>(), piece.at("ids").get<std::vector<int32_t>>()});
        const auto &ids = result.back().ids;
        if (ids.empty() || ids.size() > max_tokens) throw std::runtime_error("a piece of text has a bad length");
        for (const int32_t id : ids) {
            if (id < 0 || id >= vocabulary) throw std::runtime_error("token id " + std::to_string(id) + " is unknown");
        }
    }
    if (result.empty()) throw std::runtime_error("a list of texts is empty");
    return result;
}

}  // namespace

Assets read_assets(const std::string &path, int32_t vocabulary, size_t max_tokens) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error("cannot open " + path + "; prepare.py writes it");
    try {
        const auto json = nlohmann::json::parse(file);
        return {json.at("weights").get<std::string>(), json.at("title").get<std::string>(),
                read_pieces(json.at("sentences"), vocabulary, max_tokens),
                read_pieces(json.at("passages"), vocabulary, max_tokens),
                read_pieces(json.at("queries"), vocabulary, max_tokens)};
    } catch (const std::exception &error) {
        throw std::runtime_error(path + ": " + error.what());
    }
}

std::vector<Batch> make_batches(const std::vector<Piece> &pieces, size_t batch_size) {
    std::vector<size_t> order(pieces.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return pieces[a].ids.size() < pieces[b].ids.size(); });

    std::vector<Batch> batches;
    for (size_t first = 0; first < order.size(); first += batch_size) {
        const size_t count = std::min(batch_size, order.size() - first);
        Batch batch;
        batch.batch = static_cast<int32_t>(count);
        for (size_t b = 0; b < count; b++) {
            const size_t source = order[first + b];
            const auto &ids = pieces[source].ids;
            const auto len = static_cast<int32_t>(ids.size());
            batch.ids.insert(batch.ids.end(), ids.begin(), ids.end());
            for (int32_t t = 0; t < len; t++) batch.positions.push_back(t);
            batch.cu_seqlens.push_back(batch.cu_seqlens.back() + len);
            batch.longest = std::max(batch.longest, len);
            batch.sources.push_back(source);
        }
        batches.push_back(std::move(batch));
    }
    return batches;
}

}  // namespace minilm
