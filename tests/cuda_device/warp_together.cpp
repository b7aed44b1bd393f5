// What the lanes of a warp do together: matrices, shuffles, votes.
#include <cstring>

#include "tests/cuda_device/cuda_abi.h"
#include "tests/cuda_device/formats.h"
#include "tests/cuda_device/warp.h"

namespace heed::device {
namespace {

typedef double Four __attribute__((vector_size(32), may_alias));

// c += a b, of 16 x 16 and 16 x 8 elements row by row.
template <float (*widen)(uint16_t)>
void multiply(const uint16_t *a, const uint16_t *b, Four *c) {
    double x[256];
    alignas(32) double y[128];
    for (int i = 0; i < 256; i++) x[i] = static_cast<double>(widen(a[i]));
    for (int i = 0; i < 128; i++) y[i] = static_cast<double>(widen(b[i]));
    const auto *terms = reinterpret_cast<const Four *>(y);
    // Four rows at once: enough sums that do not wait for one another.
    for (int m = 0; m < 16; m += 4) {
        const double *row = x + m * 16;
        Four *to = c + m * 2;
        Four s0 = to[0], s1 = to[1], s2 = to[2], s3 = to[3], s4 = to[4], s5 = to[5], s6 = to[6], s7 = to[7];
        for (int k = 0; k < 16; k++) {
            const Four left = terms[2 * k], right = terms[2 * k + 1];
            s0 += row[k] * left, s1 += row[k] * right;
            s2 += row[k + 16] * left, s3 += row[k + 16] * right;
            s4 += row[k + 32] * left, s5 += row[k + 32] * right;
            s6 += row[k + 48] * left, s7 += row[k + 48] * right;
        }
        to[0] = s0, to[1] = s1, to[2] = s2, to[3] = s3, to[4] = s4, to[5] = s5, to[6] = s6, to[7] = s7;
    }
}

}  // namespace

// 16 bytes of shared memory.
void Warp::read_shared_chunk(uint64_t address, int lane, uint16_t *to) {
    const uint32_t offset = shared_offset(address, 16, lane, "reads");
    SharedMemory &shared = *execution_.shared;
    if (!shared.read(offset, 16, accessor(lane)))
        fail(lane, cuda_launch_failed, shared.explain(offset, 16, accessor(lane), false));
    std::memcpy(to, shared.data(offset), 16);
}

// 16 x 16 elements. Lane 4 g + q: register r holds row g + 8 (r % 2), columns 2 q + 8 (r / 2) and the next.
void Warp::read_fragment(const Operand *registers, uint16_t *a) const {
    for (int r = 0; r < 4; r++) {
        const uint32_t *words = values<uint32_t>(registers[r]);
        uint16_t *to = a + r % 2 * 128 + r / 2 * 8;
        for (int g = 0; g < 8; g++) std::memcpy(to + g * 16, words + g * 4, 4 * sizeof(uint32_t));
    }
}

// sums + a b, of 16 x 8, 16 x 16 and 16 x 8 elements; without `sums` a b. Registers 2 r and 2 r + 1 of sums are row
// g + 8 r, columns 2 q and the next. Products are exact in double, and the result is rounded to float once.
void Warp::add_product(bool brain, const uint16_t *a, const uint16_t *b, const Operand *sums, const Operand *to) {
    alignas(32) double c[128] = {};
    for (int r = 0; r < 4 && sums != nullptr; r++) {
        const uint32_t *words = values<uint32_t>(sums[r]);
        double *of_register = c + r / 2 * 64 + r % 2;
        for (int lane = 0; lane < warp_size; lane++)
            of_register[lane * 2] = static_cast<double>(bits_float(words[lane]));
    }
    auto *all = reinterpret_cast<Four *>(c);
    brain ? multiply<&brain_to_float>(a, b, all) : multiply<&half_to_float>(a, b, all);
    for (int r = 0; r < 4; r++) {
        auto *words = result<uint32_t>(to[r]);
        const double *of_register = c + r / 2 * 64 + r % 2;
        for (int lane = 0; lane < warp_size; lane++)
            words[lane] = float_bits(canonical(static_cast<float>(of_register[lane * 2])));
    }
}

// Lane 8 m + r holds the address of row r of matrix m; lane l gets elements 2 (l % 4) and the next of row l / 4, or of
// column l / 4 where the matrix is transposed.
void Warp::load_matrix(const Instruction &i) {
    if (live_ != ~0u) fail(__builtin_ctz(live_), cuda_launch_failed, "ldmatrix needs a warp of 32 threads");
    const Operand *o = operands(i);
    uint64_t at[warp_size];
    addresses(i, o[i.num_results], at);
    for (int m = 0; m < i.num_elements; m++) {
        uint16_t rows[8][8];
        for (int r = 0; r < 8; r++) {
            const int lane = 8 * m + r;
            read_shared_chunk(at[lane], lane, rows[r]);
        }
        auto *to = result<uint32_t>(o[m]);
        for (int lane = 0; lane < warp_size; lane++) {
            const int row = lane / 4, column = lane % 4 * 2;
            const uint16_t low = i.kind == 0 ? rows[row][column] : rows[column][row];
            const uint16_t high = i.kind == 0 ? rows[row][column + 1] : rows[column + 1][row];
            to[lane] = low | static_cast<uint32_t>(high) << 16;
        }
    }
}

// d = a b + c of 16 x 16, 16 x 8 and 16 x 8 elements. In b rows and columns change places.
void Warp::mma(const Instruction &i) {
    if (live_ != ~0u) fail(__builtin_ctz(live_), cuda_launch_failed, "mma needs a warp of 32 threads");
    const Operand *o = operands(i);
    uint16_t a[256], b[128];
    read_fragment(o + 4, a);
    for (int r = 0; r < 2; r++) {
        const uint32_t *words = values<uint32_t>(o[8 + r]);
        for (int q = 0; q < 4; q++)
            for (int g = 0; g < 8; g++) {
                b[(q * 2 + r * 8) * 8 + g] = static_cast<uint16_t>(words[g * 4 + q]);
                b[(q * 2 + r * 8 + 1) * 8 + g] = static_cast<uint16_t>(words[g * 4 + q] >> 16);
            }
    }
    add_product(i.kind != 0, a, b, o + 10, o);
}

// Late, it is done at the wait, else where it is begun.
void Warp::warpgroup_mma(const Instruction &i) {
    if (live_ != ~0u || all_lanes_ != ~0u) fail(__builtin_ctz(live_), cuda_launch_failed, "wgmma needs whole warps");
    const Operand *after = operands(i) + 2 * 4 * i.num_elements;  // sums; b, whether to add to them, a
    const uint64_t a = i.has_fragments ? 0 : values<uint64_t>(after[2])[0];
    const Product product = {&i, a, values<uint64_t>(after[0])[0], predicate_mask(after[1]) != 0, product_groups_};
    if (!execution_.late_products) return end(product);
    products_.push_back(product);
}

void Warp::wait_products(uint32_t groups) {
    size_t ended = 0;
    for (; ended < products_.size() && products_[ended].group + groups < product_groups_; ended++) {
        end(products_[ended]);
    }
    products_.erase(products_.begin(), products_.begin() + static_cast<std::ptrdiff_t>(ended));
}

// A descriptor: bits 0-13 address / 16, 16-29 and 32-45 strides / 16, 62-63 swizzle (1: of 128 bytes).
void Warp::end(const Product &product) {
    const Instruction &i = *product.instruction;
    struct Matrix {
        uint32_t begin, next_panel, next_eight;
    };
    const auto matrix = [&](uint64_t word) {
        // The address within eight rows is that of 32 bytes of the first one.
        if (word >> 61 != 2 || (word >> 3 & 7) != 0 || (word >> 49 & 7) != 0)
            fail(0, cuda_launch_failed,
                 "a matrix of wgmma is not of 128-byte swizzle from a multiple of 1024 bytes on");
        const auto field = [&](int bit) { return static_cast<uint32_t>(word >> bit & 0x3fff) * 16; };
        return Matrix{field(0), field(16), field(32)};
    };
    // Where the 128-byte swizzle has a chunk.
    const auto read_chunk = [&](uint32_t address, uint16_t *to) {
        read_shared_chunk(address ^ (address >> 7 & 7) << 4, 0, to);
    };
    const Operand *o = operands(i);
    const int count = 4 * i.num_elements;
    const Operand *sources = o + count, *after = sources + count;
    const Matrix b_matrix = matrix(product.b_matrix);
    uint16_t a[256], b[128];
    if (i.has_fragments) {
        read_fragment(after + 2, a);
    } else {
        const Matrix m = matrix(product.a_matrix);
        for (uint32_t row = 0; row < 16; row++) {
            const uint32_t at = m.begin + (index_ % 4 * 2 + row / 8) * m.next_eight + row % 8 * 128;
            for (uint32_t half = 0; half < 2; half++) read_chunk(at + 16 * half, a + row * 16 + half * 8);
        }
    }
    for (int tile = 0; tile < i.num_elements; tile++) {
        const auto n = static_cast<uint32_t>(tile);
        if (i.transposes) {
            const uint32_t at = b_matrix.begin + n / 8 * b_matrix.next_panel + n % 8 * 16;
            for (uint32_t k = 0; k < 16; k++) read_chunk(at + k / 8 * b_matrix.next_eight + k % 8 * 128, b + k * 8);
        } else {
            for (uint32_t column = 0; column < 8; column++) {
                uint16_t terms[16];
                const uint32_t at = b_matrix.begin + n * b_matrix.next_eight + column * 128;
                for (uint32_t half = 0; half < 2; half++) read_chunk(at + 16 * half, terms + half * 8);
                for (uint32_t k = 0; k < 16; k++) b[k * 8 + column] = terms[k];
            }
        }
        add_product(i.kind != 0, a, b, product.adds ? sources + 4 * tile : nullptr, o + 4 * tile);
    }
}

void Warp::shuffle(const Instruction &i, uint32_t mask) {
    const Operand *o = operands(i);
    const uint32_t *a = values<uint32_t>(o[2]), *b = values<uint32_t>(o[3]), *c = values<uint32_t>(o[4]);
    const uint32_t *members = values<uint32_t>(o[5]);
    uint32_t value[warp_size] = {}, in_range[warp_size] = {};
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        if ((members[lane] & live_) != mask)
            fail(lane, cuda_launch_failed, "the threads that shuffle are not those of the mask");
        const int clamp = static_cast<int>(c[lane] & 31), segment = static_cast<int>(c[lane] >> 8 & 31);
        const int first = lane & segment, last = first | (clamp & ~segment), offset = static_cast<int>(b[lane] & 31);
        int from = lane;
        bool valid = false;
        switch (static_cast<ShuffleKind>(i.kind)) {
        case ShuffleKind::up:
            from = lane - offset, valid = from >= last;
            break;
        case ShuffleKind::down:
            from = lane + offset, valid = from <= last;
            break;
        case ShuffleKind::butterfly:
            from = lane ^ offset, valid = from <= last;
            break;
        case ShuffleKind::index:
            from = first | (offset & ~segment), valid = from <= last;
            break;
        }
        if (!valid) from = lane;
        if ((mask >> from & 1) == 0)
            fail(lane, cuda_launch_failed, "reads from lane " + std::to_string(from) + ", which does not take part");
        value[lane] = a[from];
        in_range[lane] = valid ? ~0u : 0u;
    }
    set_lanes(o[0], mask, value);
    set_lanes(o[1], mask, in_range);
}

void Warp::vote(const Instruction &i, uint32_t mask) {
    const Operand *o = operands(i);
    const uint32_t *members = values<uint32_t>(o[2]);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        if ((members[lane] & live_) != mask)
            fail(lane, cuda_launch_failed, "the threads that vote are not those of the mask");
    }
    const uint32_t votes = predicate_mask(o[1]) & mask;
    uint32_t answer = votes;
    switch (static_cast<VoteKind>(i.kind)) {
    case VoteKind::all:
        answer = votes == mask ? ~0u : 0u;
        break;
    case VoteKind::any:
        answer = votes != 0 ? ~0u : 0u;
        break;
    case VoteKind::uniform:
        answer = votes == mask || votes == 0 ? ~0u : 0u;
        break;
    case VoteKind::ballot:
        break;
    }
    uint32_t lanes[warp_size];
    for (uint32_t &lane : lanes) lane = answer;
    set_lanes(o[0], mask, lanes);
}

}  // namespace heed::device
