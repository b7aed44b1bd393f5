#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace minilm {

// A piece of text and its token ids, [CLS] and [SEP] included.
struct Piece {
    std::string text;
    std::vector<int32_t> ids;
};

// What prepare.py wrote.
struct Assets {
    std::string weights;  // path of model.safetensors
    std::string title;
    std::vector<Piece> sentences, passages, queries;
};

// Throws std::runtime_error unless every id is in [0, vocabulary) and every piece has 1..max_tokens ids.
Assets read_assets(const std::string &path, int32_t vocabulary, size_t max_tokens);

// Pieces that run together, shorter ones padded with id 0 to the longest.
struct Batch {
    int32_t batch = 0, padded_len = 0;
    std::vector<int32_t> ids;     // [batch, padded_len]
    std::vector<int32_t> lens;    // [batch], valid ids
    std::vector<size_t> sources;  // [batch], index of the piece
};

// Batches of at most `batch_size` pieces. Sorted by length first, so that little is padded.
std::vector<Batch> make_batches(const std::vector<Piece> &pieces, size_t batch_size);

}  // namespace minilm
