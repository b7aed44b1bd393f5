#include "generators/lowering/row_lines.h"

#include "generators/common/serial_loop.h"
#include "generators/lowering/step_stages.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

Stmt RowLines::ask(const Expr &row, const Expr &line) const {
    const Expr byte = cast<int64_t>(line) * make_const(Int(64), line_bytes);
    return prefetch_line(buffer, first + cast<int64_t>(min(row, last)) * stride + byte, wanted);
}

AskedRows::AskedRows(const std::vector<RowLines> &all, int parts) : all(all), parts(parts) {
    for (const RowLines &of : all) {
        if (of.rows % parts != 0) throw CompileError("rows of " + of.buffer + " do not fall into equal parts");
    }
}

int AskedRows::lines() const {
    int sum = 0;
    for (const RowLines &of : all) sum += of.rows / parts * constant(of.lines);
    return sum;
}

Stmt AskedRows::line(const Expr &part, int number) const {
    for (const RowLines &of : all) {
        const int rows = of.rows / parts, lines = constant(of.lines);
        if (number < rows * lines) return of.ask(part * rows + number / lines, number % lines);
        number -= rows * lines;
    }
    return Evaluate::make(0);
}

namespace {

// of_block: a part of all rows of a block, else of the rows up to the last one.
Stmt burst(const std::vector<RowLines> &all, const Expr &part, const Expr &parts, bool of_block) {
    std::vector<Stmt> of_all{Evaluate::make(0)};
    for (const RowLines &of : all) {
        const std::string row = unique_name("asked_row"), line = unique_name("asked_line");
        const Stmt asks = of.ask(Variable::make(Int(32), row), Variable::make(Int(32), line));
        // In 64 bits: parts may be as many as keys.
        const Expr rows = cast<int64_t>(of_block ? Expr(of.rows) : of.last + 1), all_parts = cast<int64_t>(parts);
        const Expr begin = simplify(cast<int32_t>(cast<int64_t>(part) * rows / all_parts)),
                   end = cast<int32_t>((cast<int64_t>(part) + 1) * rows / all_parts);
        of_all.push_back(serial_loop(row, begin, simplify(end - begin), serial_loop(line, 0, of.lines, asks)));
    }
    return Block::make(of_all);
}

}  // namespace

Stmt burst_of(const std::vector<RowLines> &all, const Expr &part, const Expr &parts) {
    return burst(all, part, parts, false);
}

Stmt AskedRows::burst(const Expr &part) const { return heed::burst(all, part, parts, true); }

}  // namespace heed
