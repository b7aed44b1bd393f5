#include "generators/cuda/attention_cuda.h"

#include "generators/attention/kernel.h"
#include "generators/common/ceil_div.h"
#include "generators/cuda/program_builder.h"

namespace heed::cuda {

using namespace Halide;

namespace {

DeviceTensor tensor(const ImageParam &param) { return {param.name(), param.dimensions()}; }

}  // namespace

int attention_shared_bytes(const AttentionConfig &config, const AttentionTile &tile) {
    return ProgramBuilder::shared_of(config, tile).bytes;
}

Module attention_module(const std::string &name, const AttentionConfig &config, const AttentionTile &tile,
                        const Target &target) {
    const AttentionArguments args(config);
    Func attention("attention");
    const std::string out = attention.name();
#define HEED_TENSOR(name, element, dims) in.name = tensor(args.name);
#define HEED_VALUE(name, type) in.name = args.name;
    ProgramInputs in;
    HEED_ATTENTION(HEED_TENSOR, HEED_VALUE, HEED_IGNORE)
    in.out = {out + ".0", 4};
    in.lse = {out + ".1", 4};
#undef HEED_TENSOR
#undef HEED_VALUE

    auto host_value = [](const std::string &value) { return Internal::Variable::make(Int(32), value); };
    in.row_blocks = host_value("row_blocks");
    in.group_size = host_value("group_size");

    Launch launch;
    launch.name = name;
    launch.host_values = {{"group_size", in.q.extent(1) / in.k.extent(1)},
                          {"row_blocks", ceil_div(args.max_q_len, tile.rows())}};
    launch.blocks = in.row_blocks * args.batch * in.q.extent(1);
    launch.threads = tile.threads();
    launch.shared_bytes = attention_shared_bytes(config, tile);
    launch.tensors = {in.q,          in.k,     in.v,   in.mask, in.bias, in.bias_16, in.sink, in.alibi_slopes,
                      in.page_table, in.tasks, in.out, in.lse};
    launch.program = ProgramBuilder(config, tile, in, Launch::block(name), Launch::thread(name)).build();

    return launch_module(name, attention, args.output_types(), args.arguments(), launch, target);
}

}  // namespace heed::cuda
