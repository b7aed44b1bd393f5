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

// Pieces that run together, end to end.
struct Batch {
    int32_t batch = 0, longest = 0;
    std::vector<int32_t> ids;            // [tokens]
    std::vector<int32_t> positions;      // [tokens], in the piece
    std::vector<int32_t> cu_seqlens{0};  // [batch + 1], where each piece begins, then the number of tokens
    std::vector<size_t> sources;         // [batch], index of the piece

    int32_t begin(int32_t b) const { return cu_seqlens[static_cast<size_t>(b)]; }
    int32_t len(int32_t b) const { return cu_seqlens[static_cast<size_t>(b) + 1] - begin(b); }
};

// Batches of at most `batch_size` pieces. Sorted by length first, so that threads get pieces of one size.
std::vector<Batch> make_batches(const std::vector<Piece> &pieces, size_t batch_size);

}  // namespace minilm
