#include "generators/cuda/token_moves.h"

#include <functional>

#include "generators/common/ceil_div.h"
#include "generators/cuda/index_math.h"
#include "generators/cuda/intrinsics.h"
#include "generators/cuda/row_elements.h"
#include "generators/cuda/token_segments.h"

namespace heed::cuda {

using namespace Halide;

namespace {

Expr bits_of(const Expr &x) { return reinterpret<int32_t>(x); }

// A row as items, each the work of a thread at a time: first those that rotate, then those that copy. An item is 16
// bytes, or one element; one that rotates pairs from both halves of a row is both its parts.
class MoveProgram {
public:
    MoveProgram(const std::string &name, ElementType type)
        : name(name), elements(type, code), size(elements.size()), type(type) {}

    // A thread per item.
    Module copying(const Target &target) {
        const Expr items = in.max_tokens * in.num_heads * row_items;
        start(ceil_div(items, move_threads));
        const Expr item = code.let("item", part * move_threads + Launch::thread(name));
        const Expr row = code.let("row", quotient(item, row_items));
        code.when(row < segment.tokens * in.num_heads, [&] {
            find_row(row);
            const Expr i = code.let("i", remainder(item, row_items));
            for_widths([&](int width) {
                when_rotated(
                    i, width, [&](const Expr &e, const Elements &x) { elements.store(to + bytes_of(e, size), x); },
                    [&](const Expr &e) { elements.copy(from + bytes_of(e, size), to + bytes_of(e, size), width); });
            });
        });
        return module(target);
    }

    // A warp per row: its largest magnitude, then its codes.
    Module quantising(const Target &target) {
        constexpr int warps = move_threads / 32;
        start(ceil_div(in.max_tokens * in.num_heads, warps));
        const Expr thread = Launch::thread(name), row = code.let("row", part * warps + thread / 32);
        code.when(row < segment.tokens * in.num_heads, [&] {
            find_row(row);
            const Expr lane = code.let("lane", thread % 32);
            const Registers largest = code.registers("largest", Int(32), 1);
            code.set(largest, 0, 0);
            each_group(lane, [&](const Expr &, const Elements &x) {
                for (const Expr &e : x) code.set(largest, 0, max(largest[0], bits_of(e) & 0x7fffffff));
            });
            for (const int mask : {1, 2, 4, 8, 16}) {
                const Expr other = from_lane(reinterpret<float>(largest[0]), mask);
                code.set(largest, 0, max(largest[0], bits_of(code.let("other", other))));
            }
            const Expr scale = store_scale(row, lane, largest[0]);
            each_group(lane, [&](const Expr &e, const Elements &x) { store_codes(to + bytes_of(e, 1), x, scale); });
        });
        return module(target);
    }

private:
    // Element of a row, values from there on.
    using Use = std::function<void(const Expr &, const Elements &)>;

    const std::string name;
    const MoveInputs in;
    DeviceCode code;
    RowElements elements;
    const int size;
    const ElementType type;
    const Expr rotated_items = Internal::Variable::make(Int(32), "rotated_items"),
               row_items = Internal::Variable::make(Int(32), "row_items"),
               segment_blocks = Internal::Variable::make(Int(32), "segment_blocks");
    Segment segment;
    Expr part, token, from, to;
    std::vector<std::pair<std::string, Expr>> host_values;

    void start(const Expr &blocks) {
        const Expr width = select(in.wide != 0, elements.width(), 1), rest = in.row_length - 2 * in.num_pairs;
        const Expr rotated_elements = select(in.interleaved != 0 && in.wide != 0, 2 * in.num_pairs, in.num_pairs);
        host_values = {{"rotated_items", rotated_elements / width},
                       {"row_items", rotated_items + rest / width},
                       {"segment_blocks", blocks}};
        const Expr block = Launch::block(name);
        segment = read_segment(code, in, quotient(block, segment_blocks));
        part = code.let("part", remainder(block, segment_blocks));
    }

    void find_row(const Expr &row) {
        token = code.let("token", quotient(row, in.num_heads));
        const Expr head = code.let("head", cast<uint64_t>(remainder(row, in.num_heads)));
        from = code.let("from_row", segment.from + cast<uint64_t>(token) * in.from_token + head * in.from_head);
        to = code.let("to_row", segment.to + cast<uint64_t>(token) * in.to_token + head * in.to_head);
    }

    void for_widths(const std::function<void(int)> &body) {
        code.when(
            in.wide != 0, [&] { body(elements.width()); }, [&] { body(1); });
    }

    // Item i: `use` gets rotated elements, `copy` the first of `width` elements that are not rotated.
    void when_rotated(const Expr &i, int width, const Use &use, const std::function<void(const Expr &)> &copy) {
        if (type == ElementType::i8) {
            copy(code.let("e", i * width));
            return;
        }
        code.when(
            i < rotated_items,
            [&] {
                code.when(
                    in.interleaved != 0, [&] { rotate_neighbours(i, width, use); },
                    [&] { rotate_halves(i, width, use); });
            },
            [&] { copy(code.let("e", 2 * in.num_pairs + (i - rotated_items) * width)); });
    }

    // The same arithmetic in every kernel that rotates: one product rounded, the other not.
    void rotate_pair(const Expr &a, const Expr &b, const Expr &c, const Expr &sin, Expr *first, Expr *second) {
        const Expr s = sin * in.direction;
        *first = code.let("rotated", fma(a, c, -(b * s)));
        *second = code.let("rotated", fma(b, c, a * s));
    }

    Elements table(const Expr &address, const Expr &pair, int count) {
        const Expr row = cast<uint64_t>(segment.table_row) + cast<uint64_t>(token);
        return load_floats(code, address + (row * cast<uint64_t>(in.num_pairs) + cast<uint64_t>(pair)) * 4, count);
    }

    // Pairs (n, n + num_pairs).
    void rotate_halves(const Expr &i, int width, const Use &use) {
        const Expr n = code.let("n", i * width), far = code.let("far", n + in.num_pairs);
        Elements a = elements.load(from + bytes_of(n, size), width),
                 b = elements.load(from + bytes_of(far, size), width);
        const Elements c = table(in.cos, n, width), s = table(in.sin, n, width);
        for (size_t e = 0; e < a.size(); e++) {
            const Expr x = a[e], y = b[e];
            rotate_pair(x, y, c[e], s[e], &a[e], &b[e]);
        }
        use(n, a);
        use(far, b);
    }

    // Pairs (2n, 2n + 1).
    void rotate_neighbours(const Expr &i, int width, const Use &use) {
        const int pairs = width > 1 ? width / 2 : 1;
        const Expr n = code.let("n", i * pairs), e0 = code.let("e", 2 * n);
        Elements x = width > 1 ? elements.load(from + bytes_of(e0, size), width) : Elements{};
        for (int e = 0; e < 2 && width == 1; e++) x.push_back(elements.load(from + bytes_of(e0 + e, size), 1)[0]);
        const Elements c = table(in.cos, n, pairs), s = table(in.sin, n, pairs);
        for (int p = 0; p < pairs; p++) {
            const Expr a = x[2 * p], b = x[2 * p + 1];
            rotate_pair(a, b, c[p], s[p], &x[2 * p], &x[2 * p + 1]);
        }
        if (width > 1) {
            use(e0, x);
        } else {
            for (int e = 0; e < 2; e++) use(e0 + e, {x[e]});
        }
    }

    // All of a warp's row, rounded to the type.
    void each_group(const Expr &lane, const Use &use) {
        for_widths([&](int width) {
            code.loop("round", ceil_div(row_items, 32), [&](const Expr &round) {
                const Expr i = code.let("i", round * 32 + lane);
                code.when(i < row_items, [&] {
                    when_rotated(
                        i, width,
                        [&](const Expr &e, Elements x) {
                            for (Expr &value : x) value = code.let("y", to_float(type, from_float(type, value)));
                            use(e, x);
                        },
                        [&](const Expr &e) { use(e, elements.load(from + bytes_of(e, size), width)); });
                });
            });
        });
    }

    // generators/ops/kv_append.cpp has the same arithmetic for CPUs.
    Expr store_scale(const Expr &row, const Expr &lane, const Expr &largest) {
        const Expr scale = code.let("scale", select(largest >= 0x7f800000, 0x7fc00000,
                                                    bits_of(strict_float(reinterpret<float>(largest) / 127.f))));
        code.when(lane == 0, [&] { code.run(store_u32(segment.scales + bytes_of(row, 4), cast<uint32_t>(scale))); });
        return scale;
    }

    void store_codes(const Expr &at, const Elements &x, const Expr &scale) {
        Elements codes;
        for (const Expr &e : x) {
            const Expr rounded = clamp(round(strict_float(e / reinterpret<float>(scale))), -127.f, 127.f);
            const Expr number = select(scale == 0 || scale == 0x7fc00000, 0, cast<int32_t>(rounded));
            codes.push_back(code.let("code", cast<uint32_t>(number & 0xff)));
        }
        if (codes.size() == 1) {
            code.run(store_u8(at, codes[0]));
            return;
        }
        for (int i = 0; i < static_cast<int>(codes.size()); i += 4) {
            code.run(store_u32(at + cast<uint64_t>(i),
                               codes[i] | codes[i + 1] << 8 | codes[i + 2] << 16 | codes[i + 3] << 24));
        }
    }

    Module module(const Target &target) {
        const Launch launch = {name, in.segments * segment_blocks, move_threads, 0, {}, host_values, code.finish()};
        return launch_module(name, Func("moved"), in.output_types(), in.arguments(), launch, target);
    }
};

}  // namespace

Module rope_module(const std::string &name, ElementType type, const Target &target) {
    return MoveProgram(name, type).copying(target);
}

Module kv_append_module(const std::string &name, ElementType type, const Target &target) {
    return MoveProgram(name, type).quantising(target);
}

Module kv_copy_module(const std::string &name, const Target &target) {
    return MoveProgram(name, ElementType::i8).copying(target);
}

}  // namespace heed::cuda
