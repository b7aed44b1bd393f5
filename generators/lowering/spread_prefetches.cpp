#include "generators/lowering/spread_prefetches.h"

#include <algorithm>

#include "generators/common/serial_loop.h"
#include "generators/lowering/prefetch_line.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

bool ends_with(const std::string &text, const std::string &end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

Stmt line_prefetch(const SpreadPrefetches::Stream &stream, const Expr &line) {
    return prefetch_line(stream.buffer, stream.element(line) * stream.element_bytes, stream.wanted);
}

// Those of one iteration.
Stmt lines_of(const SpreadPrefetches::Stream &stream, const Expr &iteration) {
    const Expr first = iteration * stream.lines;
    if (!stream.total.defined()) {
        std::vector<Stmt> all;
        for (int n = 0; n < *as_const_int(stream.lines); n++) all.push_back(line_prefetch(stream, first + n));
        return Block::make(all);
    }
    const std::string name = unique_name("line");
    const Expr count = min(stream.lines, stream.total - first);
    return serial_loop(name, 0, count, line_prefetch(stream, first + Variable::make(Int(32), name)));
}

}  // namespace

bool SpreadPrefetches::is_inside() const {
    return std::all_of(inside.begin(), inside.end(), [&](const std::string &name) {
        return std::find(around.begin(), around.end(), name) != around.end();
    });
}

Stmt SpreadPrefetches::visit(const For *op) {
    if (!ends_with(op->name, loop) || !is_inside()) {
        around.push_back(op->name);
        Stmt result = IRMutator::visit(op);
        around.pop_back();
        return result;
    }
    found++;
    const Expr iteration = Variable::make(Int(32), op->name) - op->min;
    std::vector<Stmt> body;
    for (const Stream &stream : streams) body.push_back(lines_of(stream, iteration));
    body.push_back(op->body);
    const Stmt asking = with_body(op, Block::make(body));
    return when.defined() ? IfThenElse::make(when, asking, op) : asking;
}

}  // namespace heed
