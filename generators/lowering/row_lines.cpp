#include "generators/lowering/row_lines.h"

#include "generators/lowering/prefetch_line.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

Stmt RowLines::ask(const Expr &row, const Expr &line) const {
    const Expr byte = cast<int64_t>(line) * make_const(Int(64), line_bytes);
    return prefetch_line(buffer, first + cast<int64_t>(row) * stride + byte, is_written);
}

Stmt RowLines::ask_for_rows(const Expr &begin, int count) const {
    const auto loop = [](const std::string &name, const Expr &extent, const Stmt &body) {
        return For::make(name, 0, extent, ForType::Serial, Partition::Never, DeviceAPI::None, body);
    };
    const std::string row = unique_name("asked_row"), line = unique_name("asked_line");
    const Stmt asks = ask(begin + Variable::make(Int(32), row), Variable::make(Int(32), line));
    return loop(row, count, loop(line, lines, asks));
}

Stmt ask_for_all(const std::vector<RowLines> &rows) {
    std::vector<Stmt> all{Evaluate::make(0)};
    for (const RowLines &of : rows) all.push_back(of.ask_for_rows(0, of.rows));
    return Block::make(all);
}

}  // namespace heed
