#pragma once
// What brings the metadata of attention kernels to the device: words of the host, and the table of sequences from
// lengths and offsets that are there.

#include <limits>

#include "generators/common/device_memory.h"
#include "generators/contract/cuda_arguments.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(WriteMetadataArguments, HEED_CUDA_WRITE_METADATA)

struct WriteMetadataDevice : WriteMetadataArguments, Results {
    Halide::RDom all;  // entry, block

    WriteMetadataDevice() : all(0, MetadataWords::entries, 0, 1, "all") {
        Halide::Expr stored;
        for (int w = 0; w < MetadataWords::entry_words; w++) {
            const Halide::Expr i = all.x * MetadataWords::entry_words + w;
            const Halide::Expr store = store_at_if(2 * i < num_words, to, i, entry_word(word, all.x, w));
            stored = w == 0 ? store : stored + store;
        }
        add(stored);
    }
};

HEED_KERNEL_ARGUMENTS(SequencesArguments, HEED_CUDA_SEQUENCES)

struct SequencesDevice : SequencesArguments, Results {
    Halide::RDom all;  // field, sequence

    SequencesDevice() : all(0, num_sequence_fields, 0, batch, "all"), b(all.y) {
        const Segment queries = segment(cu_seqlens_q, max_q_len, total_q),
                      keys = segment(cu_seqlens_kv, max_kv_len, total_kv);
        const Expr has_lens = given(kv_lens), len = element(has_lens, kv_lens, b);
        const Expr kv_len = select(has_lens, clamp(len, 0, max_kv_len), keys.length);
        const Visible visible = visible_keys(queries.length, kv_len);
        std::vector<Expr> fields(num_sequence_fields, Expr(0));
        fields[sequence_q_len] = queries.length;
        fields[sequence_first_q] = queries.first;
        fields[sequence_kv_len] = kv_len;
        fields[sequence_first_key] = keys.first;
        fields[sequence_visible_begin] = visible.begin;
        fields[sequence_visible_end] = visible.end;
        fields[sequence_position_offset] = visible.position_offset;
        const Expr fault = select(!queries.valid, 1, !keys.valid, 2, has_lens && (len < 0 || len > max_kv_len), 3, 0);
        const Expr reported = all.x == 0 && fault != 0 && given(status);
        const Expr line = after(table, b, bytes_of(Halide::Int(32), num_sequence_fields));
        add(store_at(line, all.x, mux(all.x, fields)) +
            store_at_if_zero(reported, status, Halide::cast<uint32_t>(b * 8 + fault)));
    }

private:
    using Expr = Halide::Expr;
    // heed_position.
    enum Position { top_left, bottom_right, explicit_offsets };

    const Expr b;

    static Expr given(const Expr &address) { return address != Halide::cast<uint64_t>(0); }
    static Expr element(const Expr &on, const Expr &array, const Expr &i) {
        return load_at_if(on, Halide::Int(32), array, i);
    }

    struct Segment {
        Expr first, length, valid;
    };
    Segment segment(const Expr &sums, const Expr &longest, const Expr &total) const {
        const Expr on = given(sums), begin = element(on, sums, b), end = element(on, sums, b + 1);
        const Expr inside = clamp(begin, 0, total);
        const Expr valid = begin >= 0 && begin <= end && end <= total && (b > 0 || begin == 0) &&
                           (b < batch - 1 || end == total) && end - inside <= longest;
        return {select(on, inside, 0),
                select(on, min(max(end, inside) - inside, min(longest, total - inside)), longest), !on || valid};
    }

    // As the runtime does for metadata on the host (tasks.cpp); 64 bits inside, clamped without a change of what is
    // seen.
    struct Visible {
        Expr begin, end, position_offset;
    };
    Visible visible_keys(const Expr &q_len, const Expr &kv_len) const {
        using Halide::cast;
        const auto wide = [](const Expr &x) { return cast<int64_t>(x); };
        const Expr has_offsets = given(q_offsets), least = std::numeric_limits<int32_t>::min();
        const Expr offset =
            select(has_offsets, element(has_offsets, q_offsets, b), position == bottom_right, kv_len - q_len, 0);
        const Expr begin = clamp(wide(offset) - wide(window_left), wide(least), wide(kv_len));
        const Expr right = select(causal != 0, 0, window_right);
        const Expr end = clamp(wide(offset) + wide(right) + cast<int64_t>(1), -wide(q_len), wide(kv_len));
        return {select(window_left >= 0, cast<int32_t>(begin), least),
                select(causal != 0 || window_right >= 0, cast<int32_t>(end), kv_len), offset};
    }
};

}  // namespace heed
