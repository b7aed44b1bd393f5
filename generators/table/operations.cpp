#include "generators/table/operations.h"

namespace heed::table {

namespace {

OpKernels kernels(const Words &dtypes, const Words &isas) { return {dtypes, isas}; }

const std::vector<OpKernels> &kernels_of(const std::string &op) {
    for (const Operation &operation : operations()) {
        if (operation.name == op) return operation.kernels;
    }
    static const std::vector<OpKernels> none;
    return none;
}

void add_each(const std::string &op, const OpKernels &line, const Words &dtypes, const Words &isas,
              std::vector<OpKernel> &list) {
    for_each_of({dtypes, isas, line.tile_rows, line.most_dims}, [&](const Words &of) {
        list.push_back({op, of[0], line.kv_dtype, of[2], of[3], of[1]});
    });
}

// Operations on bytes and integers serve tensors of any dtype.
bool serves(const OpKernels &line, const std::string &dtype) {
    return contains(line.dtypes, dtype) || contains(line.served, dtype) || contains({u8, i32}, line.dtypes[0]);
}

}  // namespace

const std::vector<Operation> &operations() {
    static const Words floats = {f32, f16, bf16};
    static const std::vector<Operation> list = {
#define HEED_REGISTERED(name, cpu, cuda, ...) {#name, {__VA_ARGS__}},
        HEED_OPERATIONS(HEED_REGISTERED)
#undef HEED_REGISTERED
    };
    return list;
}

Words operation_names() {
    Words names;
    for (const Operation &operation : operations()) names.push_back(operation.name);
    return names;
}

Op operation_of(const std::string &name) {
    const Words names = operation_names();
    return static_cast<Op>(std::find(names.begin(), names.end(), name) - names.begin());
}

std::string op_kernel_error(const OpKernel &kernel) {
    const std::string names[] = {"isa", "dtype", "kv_dtype", "rows", "head_dim"};
    const std::string values[] = {kernel.isa, kernel.dtype, kernel.kv_dtype.empty() ? kernel.dtype : kernel.kv_dtype,
                                  kernel.rows, kernel.head_dim};
    std::vector<OpKernels> lines = kernels_of(kernel.op);
    std::string before = "op=" + kernel.op;
    for (int axis = 0; axis < 5; axis++) {
        Words allowed;
        std::vector<OpKernels> left;
        for (const OpKernels &line : lines) {
            const Words on_axis[] = {line.isas,
                                     line.dtypes,
                                     {line.kv_dtype.empty() ? kernel.dtype : line.kv_dtype},
                                     line.tile_rows,
                                     line.most_dims};
            if (contains(on_axis[axis], values[axis])) left.push_back(line);
            for (const std::string &value : on_axis[axis]) {
                if (!contains(allowed, value)) allowed.push_back(value);
            }
        }
        if (left.empty()) {
            return names[axis] + " = '" + values[axis] + "' is not allowed with " + before + ": " +
                   joined(allowed, ", ");
        }
        lines = left;
        before += ", " + names[axis] + "=" + values[axis];
    }
    return "";
}

std::vector<OpKernel> serving_op_kernels(const std::string &op, const std::string &isa, const std::string &dtype,
                                         const std::string &keys) {
    const Words ladder = is_cuda(isa) ? cuda_isas() : cpu_isas();
    std::vector<OpKernel> list;
    std::string highest = isa;
    bool searching = false;
    for (auto rung = ladder.rbegin(); rung != ladder.rend(); ++rung) {
        searching = searching || *rung == highest;
        for (const OpKernels &line : kernels_of(op)) {
            if (!searching || line.kv_dtype != keys || !serves(line, dtype) || !contains(line.isas, *rung)) continue;
            const bool own = line.served.empty() && contains(line.dtypes, dtype);
            add_each(op, line, own ? Words{dtype} : line.dtypes, {*rung}, list);
            highest = line.also;
            searching = false;
        }
    }
    return list;
}

std::vector<OpKernel> all_op_kernels() {
    std::vector<OpKernel> list;
    for (const Operation &operation : operations()) {
        for (const OpKernels &line : operation.kernels) add_each(operation.name, line, line.dtypes, line.isas, list);
    }
    return list;
}

}  // namespace heed::table
