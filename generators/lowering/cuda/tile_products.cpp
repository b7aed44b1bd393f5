#include "generators/lowering/cuda/tile_products.h"

#include <algorithm>

#include "generators/common/bad_input.h"
#include "generators/common/device_memory.h"
#include "generators/cuda/infinities.h"
#include "generators/cuda/intrinsics.h"
#include "generators/lowering/cuda/shared_memory.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

constexpr int element_bytes = 2;

// Serial loops around c[..] = c[..] + a[..] * b[..], and the indices in full.
struct ProductNest {
    std::vector<const For *> loops;
    const Store *store = nullptr;
    std::string a, b;
    Expr c_index, a_index, b_index;
    Type a_in_registers;      // of elements of a there; undefined: a is in shared memory
    bool leaves_out = false;  // terms of which a is -0

    // Whether it is one of elements in shared memory, or, those of a, in registers.
    bool read(Stmt s, Lets lets, ElementType type, const std::set<std::string> &shared) {
        std::map<std::string, Expr> elements;  // that are read before the sum
        for (;;) {
            if (const auto *loop = s.as<For>()) {
                if (loop->for_type != ForType::Serial) return false;
                loops.push_back(loop);
                s = loop->body;
            } else if (const auto *let = s.as<LetStmt>()) {
                lets.add(let->name, let->value);
                if (let->value.as<Load>() != nullptr) elements[let->name] = let->value;
                s = let->body;
            } else {
                break;
            }
        }
        store = s.as<Store>();
        if (store == nullptr) return false;
        const Expr value = in_sum(substitute(elements, substitute_in_all_lets(store->value)));
        const auto *sum = value.as<Add>();
        if (sum == nullptr) return false;
        const bool old_first = sum->a.as<Load>() != nullptr;
        const auto *old = (old_first ? sum->a : sum->b).as<Load>();
        const Expr added = old_first ? sum->b : sum->a;
        const auto *choice = added.as<Select>();
        const auto *product = (choice != nullptr ? choice->false_value : added).as<Mul>();
        if (old == nullptr || product == nullptr || old->name != store->name || !equal(old->index, store->index))
            return false;
        const Load *x = widened(product->a, type), *y = widened(product->b, type);
        if (x == nullptr || y == nullptr || shared.count(y->name) == 0) return false;
        if (shared.count(x->name) == 0) a_in_registers = x->type;
        leaves_out = choice != nullptr;
        if (leaves_out) {
            const Expr is_left_out = reinterpret<uint32_t>(Expr(x)) == Expr(left_out_bits);
            const bool is_it = equal(simplify(choice->condition), simplify(is_left_out));
            if (!is_it || !is_const_zero(choice->true_value) || a_in_registers != Float(32)) return false;
        }
        a = x->name;
        b = y->name;
        c_index = lets.in_full(store->index);
        a_index = lets.in_full(x->index);
        b_index = lets.in_full(y->index);
        return true;
    }

private:
    // c + select(x, 0, y) for select(x, c, c + y), of which Halide makes one or the other.
    static Expr in_sum(const Expr &value) {
        const auto *choice = value.as<Select>();
        const auto *sum = choice != nullptr ? choice->false_value.as<Add>() : nullptr;
        if (sum == nullptr) return value;
        const bool is_first = equal(sum->a, choice->true_value);
        if (!is_first && !equal(sum->b, choice->true_value)) return value;
        const Expr added = is_first ? sum->b : sum->a;
        return Add::make(choice->true_value, Select::make(choice->condition, make_zero(added.type()), added));
    }

    // The element that is made a float; null for anything else.
    static const Load *widened(const Expr &e, ElementType type) {
        struct Find : IRVisitor {
            const Load *load = nullptr;
            using IRVisitor::visit;
            void visit(const Load *op) override { load = op; }
        } find;
        e.accept(&find);
        if (find.load == nullptr) return nullptr;
        const bool is_stored =
            find.load->type == stored_type(type) && equal(simplify(e), simplify(to_float(type, find.load)));
        const bool is_rounded = find.load->type == Float(32) && equal(e, rounded_on_device(type, find.load));
        return is_stored || is_rounded ? find.load : nullptr;
    }
};

// Whether threads of a block may disagree on a condition: not on what a vote of all of them says.
bool differs_in_block(const Expr &condition) {
    struct Find : IRVisitor {
        bool found = false;
        using IRVisitor::visit;
        void visit(const Variable *op) override { found = found || op->name == thread_variable; }
        void visit(const Call *op) override {
            if (op->name != "heed_barrier_any") IRVisitor::visit(op);
        }
    } find;
    condition.accept(&find);
    return find.found;
}

// Statements in order.
class Code {
public:
    Expr let(const std::string &name, const Expr &value) {
        steps.push_back({unique_name(name), value, Stmt()});
        return Variable::make(value.type(), steps.back().name);
    }
    void run(const Stmt &s) { steps.push_back({"", Expr(), s}); }
    Stmt finish() const {
        Stmt result = Evaluate::make(0);
        for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
            result = step->value.defined() ? LetStmt::make(step->name, step->value, result)
                                           : Block::make(step->leaf, result);
        }
        return result;
    }

private:
    struct Step {
        std::string name;
        Expr value;
        Stmt leaf;
    };
    std::vector<Step> steps;
};

// A nest that is one product of a warp, in 8 x 8 matrices.
class FragmentProduct {
public:
    FragmentProduct(const ProductNest &nest, ElementType type, int threads) : nest(nest), type(type) {
        for (const For *loop : nest.loops) add(loop);
        read_loops();
        for (int thread = 0; thread < threads; thread++) check_deal(thread);
        check_matrices();
        if (threads % 32 != 0) refuse("the block is not of whole warps");
    }

    Stmt lowered() {
        const Expr lane = thread() % 32, in_matrix = lane % edge;
        const Expr a_of_lane = lane % (2 * edge) * a.row + lane / (2 * edge) * edge * a.k;
        const Expr column = lane / (2 * edge) * edge, k = lane / edge % 2 * edge;
        const Expr b_of_lane =
            is_transposed() ? column * b.column + (k + in_matrix) * b.k : (column + in_matrix) * b.column + k * b.k;
        const bool in_registers = nest.a_in_registers != Type();
        const Expr a_at = in_registers ? Expr() : code.let("a_at", address(nest.a, nest.a_index, a_of_lane));
        const Expr b_at = code.let("b_at", address(nest.b, nest.b_index, b_of_lane));
        if (nest.leaves_out) {
            std::vector<Expr> fragments;  // by rows, then steps
            for (int row = 0; row < row_blocks; row += 2) {
                for (int step = 0; step < k_extent; step += 2 * edge) {
                    fragments.push_back(code.let("a_fragment", own_fragment(row, step)));
                }
            }
            for (int block = 0; block < column_blocks; block++) multiply_numbers(fragments, b_at, block);
        } else {
            for (int step = 0; step < k_extent; step += 2 * edge) multiply(a_at, b_at, step);
        }
        return code.finish();
    }

private:
    static constexpr int edge = 8;

    // How far an index moves; 0 where it does not.
    struct Steps {
        int row = 0, column = 0, k = 0;
    };
    struct Loop {
        int in_a, in_b, in_c, extent;
    };
    const ProductNest &nest;
    const ElementType type;
    std::vector<Loop> row_loops, column_loops, k_loops;
    Steps a, b, c;
    int row_blocks = 0, column_blocks = 0, k_extent = 1;  // of a thread
    Code code;

    [[noreturn]] void refuse(const std::string &why) const {
        throw BadInput("the product of " + nest.a + " and " + nest.b + " is not one of tensor cores: " + why);
    }

    // ---- What it is
    Expr first(Expr index) const {
        for (const For *loop : nest.loops) index = substitute(loop->name, loop->min, index);
        return index;
    }
    static Expr at_thread(const Expr &index, const Expr &thread) { return substitute(thread_variable, thread, index); }
    int difference(const Expr &to, const Expr &from) const {
        const auto result = as_const_int(simplify(to - from));
        if (!result) refuse("an index is no sum of steps");
        return static_cast<int>(*result);
    }

    void add(const For *loop) {
        const auto extent = as_const_int(loop->extent);
        if (!extent) refuse("loop " + loop->name + " is not of constant length");
        const auto step = [&](const Expr &index) {
            return difference(first(substitute(loop->name, loop->min + 1, index)), first(index));
        };
        const Loop steps = {step(nest.a_index), step(nest.b_index), step(nest.c_index), static_cast<int>(*extent)};
        const bool in_a = steps.in_a != 0, in_b = steps.in_b != 0, in_c = steps.in_c != 0;
        if (int{in_a} + int{in_b} + int{in_c} != 2) refuse("loop " + loop->name + " is one of no matrix product");
        (in_a && in_b ? k_loops : in_a ? row_loops : column_loops).push_back(steps);
    }

    void read_loops() {
        const auto by_step = [](const Loop &x, const Loop &y) { return x.in_a + x.in_c < y.in_a + y.in_c; };
        std::sort(k_loops.begin(), k_loops.end(), by_step);
        std::sort(column_loops.begin(), column_loops.end(), by_step);
        if (row_loops.size() != 1 || column_loops.size() != 2 || k_loops.empty()) {
            refuse("its loops are not rows 8 apart, columns 8 apart, pairs of columns and k");
        }
        const Loop &rows = row_loops[0], &pair = column_loops[0], &blocks = column_loops[1];
        a = {rows.in_a / edge, 0, k_loops[0].in_a};
        b = {0, pair.in_b, k_loops[0].in_b};
        c = {rows.in_c / edge, pair.in_c, 0};
        row_blocks = rows.extent;
        column_blocks = blocks.extent;
        const bool in_edges = rows.in_a == edge * a.row && rows.in_c == edge * c.row &&
                              blocks.in_b == edge * b.column && blocks.in_c == edge * c.column;
        if (!in_edges || pair.extent != 2) refuse("a thread's rows and columns are not 8 apart");
        for (const Loop &loop : k_loops) {
            if (loop.in_a != k_extent * a.k || loop.in_b != k_extent * b.k) refuse("its steps of k are no neighbours");
            k_extent *= loop.extent;
        }
        if (row_blocks % 2 != 0 || column_blocks % 2 != 0 || k_extent % (2 * edge) != 0) {
            refuse("it is not of whole tiles of 16 rows, 16 columns and 16 steps of k");
        }
    }

    void check_deal(int thread) const {
        const int lane = thread % 32, row = lane / 4, column = lane % 4 * 2;
        const auto moved = [&](const Expr &index) {
            return difference(at_thread(first(index), thread), at_thread(first(index), thread - lane));
        };
        if (moved(nest.a_index) != row * a.row || moved(nest.b_index) != column * b.column ||
            moved(nest.c_index) != row * c.row + column * c.column) {
            refuse("its elements are not dealt out as mma.m16n8k16 has them");
        }
    }

    bool is_transposed() const { return b.column == 1; }

    // The index of what lane 0 of the thread's warp has.
    Expr warps_first(const Expr &index) const { return simplify(at_thread(first(index), thread() / 32 * 32)); }

    void check_matrices() const {
        const auto is_aligned = [&](const Expr &index) {
            const ModulusRemainder place = modulus_remainder(warps_first(index));
            return place.modulus % edge == 0 && place.remainder % edge == 0;
        };
        const bool rows_of_a = a.k == 1 && a.row % edge == 0 && is_aligned(nest.a_index);
        const bool rows_of_b = b.k == 1 ? b.column % edge == 0 : b.column == 1 && b.k % edge == 0;
        const bool fits_a = nest.a_in_registers != Type() || rows_of_a;
        if (!fits_a || !rows_of_b || !is_aligned(nest.b_index)) {
            refuse("rows of its matrices are not 16 aligned bytes");
        }
    }

    // ---- What becomes of it
    static Expr thread() { return Variable::make(Int(32), thread_variable); }

    Expr address(const std::string &array, const Expr &index, const Expr &of_lane) const {
        return shared_address(array, (cast<int32_t>(warps_first(index)) + of_lane) * element_bytes);
    }

    Expr load_b(const Expr &at) const {
        return is_transposed() ? cuda::load_matrices_transposed(at) : cuda::load_matrices(at);
    }
    Expr load_sum(const Expr &index) const {
        return Load::make(Float(32), nest.store->name, index, Buffer<>(), Parameter(), const_true(), {});
    }

    void multiply(const Expr &a_at, const Expr &b_at, int step) {
        std::vector<Expr> x;
        for (int row = 0; row < row_blocks; row += 2) {
            const Expr four = a_at.defined()
                                  ? cuda::load_matrices(a_at + element_bytes * (row * edge * a.row + step * a.k))
                                  : own_fragment(row, step);
            x.push_back(code.let("a_fragment", four));
        }
        for (int block = 0; block < column_blocks; block += 2) {
            const Expr at = b_at + element_bytes * (block * edge * b.column + step * b.k);
            const Expr both = code.let("b_fragments", load_b(at));
            for (int i = 0; i < 2; i++) {
                const Expr y = i == 0 ? cuda::low_half(both) : cuda::high_half(both);
                for (int tile = 0; tile < row_blocks / 2; tile++)
                    add_product(x[static_cast<size_t>(tile)], y, 2 * tile, block + i);
            }
        }
    }

    // A block of columns: the product with the numbers among b, in the order of multiply(), so that sums of numbers
    // have the same bits; where there are others, a second one of 1 where a is not left out and infinities, which are
    // counted.
    void multiply_numbers(const std::vector<Expr> &fragments, const Expr &b_at, int block) {
        const size_t tiles = static_cast<size_t>(row_blocks / 2), steps = static_cast<size_t>(k_extent / (2 * edge));
        const auto for_each = [&](const std::function<void(size_t tile, const Expr &x, const Expr &y)> &multiply) {
            for (size_t step = 0; step < steps; step++) {
                const int k = static_cast<int>(step) * 2 * edge;
                const Expr at = b_at + element_bytes * (block / 2 * 2 * edge * b.column + k * b.k);
                const Expr both = code.let("b_fragments", load_b(at));
                const Expr y = code.let("b_of_columns", block % 2 == 0 ? cuda::low_half(both) : cuda::high_half(both));
                for (size_t tile = 0; tile < tiles; tile++) multiply(tile, fragments[tile * steps + step], y);
            }
        };
        Expr others = cast<uint64_t>(0);
        for_each([&](size_t tile, const Expr &x, const Expr &y) {
            const Expr numbers = code.let("numbers", cuda::numbers_of(type, y));
            if (tile == 0) others = code.let("others", others | (numbers ^ y));
            add_product(x, numbers, static_cast<int>(2 * tile), block);
        });
        Code outer;
        std::swap(code, outer);
        std::vector<Expr> counts(tiles, cuda::zero_fragment());
        for_each([&](size_t tile, const Expr &x, const Expr &y) {
            const Expr there = cuda::ones_unless_negative(type, x), counted = cuda::counted_infinities(type, y);
            counts[tile] = code.let("counts", cuda::mma(type, there, counted, counts[tile]));
        });
        for (size_t tile = 0; tile < tiles; tile++) {
            for (int i = 0; i < 4; i++) {
                const Expr index = sum_index(static_cast<int>(2 * tile), block, i);
                const Expr counted = cuda::float_of(counts[tile], i);
                const Expr with = code.let("with_infinities", cuda::add_infinities(load_sum(index), counted));
                code.run(Store::make(nest.store->name, with, index, Parameter(), const_true(), {}));
            }
        }
        std::swap(code, outer);
        const Expr some = code.let("some", cuda::any_lane(cast<int32_t>(others != cast<uint64_t>(0))));
        code.run(IfThenElse::make(some != 0, outer.finish()));
    }

    // The fragment of a that elements in registers make: they are those of an accumulator's columns.
    Expr own_fragment(int row, int step) const {
        const auto element = [&](int r, int k) {
            const Expr index =
                first(nest.a_index) + ((row + r) * edge * a.row + (step + k) * a.k) + thread() % 4 * (2 * a.k);
            return Load::make(nest.a_in_registers, nest.a, index, Buffer<>(), Parameter(), const_true(), {});
        };
        const auto pair = [&](int r, int k) {
            const Expr low = element(r, k), high = element(r, k + 1);
            if (nest.a_in_registers == Float(32)) return cuda::pack(type, low, high);
            return cast<uint32_t>(low) | cast<uint32_t>(high) << 16;
        };
        return cuda::fragment(pair(0, 0), pair(1, 0), pair(0, edge), pair(1, edge));
    }

    Expr sum_index(int row_block, int column_block, int i) const {
        return first(nest.c_index) + (row_block + i / 2) * edge * c.row + (column_block * edge + i % 2) * c.column;
    }

    // To the four sums of this thread, two of a row.
    void add_product(const Expr &x, const Expr &y, int row_block, int column_block) {
        Expr index[4], sum[4];
        for (int i = 0; i < 4; i++) {
            index[i] = sum_index(row_block, column_block, i);
            sum[i] = load_sum(index[i]);
        }
        const Expr sums = code.let("sums", cuda::mma(type, x, y, cuda::fragment(sum[0], sum[1], sum[2], sum[3])));
        for (int i = 0; i < 4; i++) {
            code.run(Store::make(nest.store->name, cuda::float_of(sums, i), index[i], Parameter(), const_true(), {}));
        }
    }
};

}  // namespace

Stmt LowerTileProducts::visit(const Allocate *op) {
    if (is_shared_array(op)) shared.insert(op->name);
    return IRMutator::visit(op);
}

Stmt LowerTileProducts::visit(const LetStmt *op) {
    lets.add(op->name, op->value);
    return IRMutator::visit(op);
}

Stmt LowerTileProducts::visit(const IfThenElse *op) {
    const ScopedValue<bool> outer(in_some_threads, in_some_threads || differs_in_block(lets.in_full(op->condition)));
    return IRMutator::visit(op);
}

Stmt LowerTileProducts::visit(const For *op) {
    ProductNest nest;
    if (!nest.read(op, lets, type, shared)) return IRMutator::visit(op);
    if (in_some_threads) throw BadInput("a product of tensor cores is computed by some threads of a block only");
    found++;
    return FragmentProduct(nest, type, threads).lowered();
}

}  // namespace heed
