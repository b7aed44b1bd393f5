#pragma once
// From a key to memory: how k and v are read, and how rows of any length become rows of whole vectors.
//
// A key is in one slot of one page. Strided storage: a page is a sequence of the buffer, or the buffer is one page of
// all sequences end to end; the slot is the key's position after the first one of its sequence. Paged storage: the
// page table of the sequence names the pages, in the order of the keys.

#include <functional>
#include <string>
#include <vector>

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed {

struct KeySlot {
    Halide::Expr slot, page;
};

// One of k and v: rows (d, kv_head, slot, page) with any strides but the innermost; scales (kv_head, slot, page) of
// int8 codes.
struct KvSource {
    Halide::Func rows, scales;
    ElementType type = ElementType::f32;

    Halide::Expr stored(const Halide::Expr &d, const Halide::Expr &kv_head, const KeySlot &at) const {
        return rows(d, kv_head, at.slot, at.page);
    }
    // Element d of a row as a float, of int8 the code.
    Halide::Expr element(const Halide::Expr &d, const Halide::Expr &kv_head, const KeySlot &at) const {
        return to_float(type, stored(d, kv_head, at));
    }
    Halide::Expr scale(const Halide::Expr &kv_head, const KeySlot &at) const {
        return scales(kv_head, at.slot, at.page);
    }
};

// Strided storage: the slot of the key at `position` of a sequence that starts at slot `first`. A trusted position is
// known to be inside the buffer of `num_slots`: plan and execute have validated lengths against it and the kernel
// reads a private copy of them. Another one is clamped: some other key of the buffer is read instead.
Halide::Expr trusted_slot(const Halide::Expr &first, const Halide::Expr &position, const Halide::Expr &num_slots);
Halide::Expr clamped_slot(const Halide::Expr &first, const Halide::Expr &position, const Halide::Expr &num_slots);

// The size of a page. Without pages (0) it is so large that every position is in the first entry of the table, the
// only one that then exists.
Halide::Expr page_size_of(const Halide::Expr &page_size);

// Paged storage. The table's ids are clamped to [0, num_pages): the caller's memory may change while the kernel runs.
struct PageTable {
    Halide::Func pages;                                    // (page in sequence, sequence)
    Halide::Expr max_pages_per_seq, page_size, num_pages;  // of the table, of a page in slots, of the buffer

    // The slot of the key at `position`, which is in [0, kv_len) of `sequence`.
    KeySlot slot(const Halide::Expr &position, const Halide::Expr &sequence) const;
};

// A copy of rows. Where rows have no whole number of vectors, zeros follow their end, so that consumers
// may read whole vectors and read nothing outside a row.
struct PaddedRows {
    Halide::Func rows;
    Halide::RDom zeros, over_d;  // only with zeros: the unit where a row ends, if it is not full; the row

    explicit PaddedRows(const std::string &name) : rows(name) {}

    // `args` are the coordinates of the copy, args[0] being the element; `element(d)` is the element to copy. Consumers
    // read whole units of `unit` elements; 0: rows are whole ones.
    void define(const std::vector<Halide::Var> &args, const Halide::Expr &row_length, int unit,
                const std::function<Halide::Expr(Halide::Expr)> &element);
};

}  // namespace heed
