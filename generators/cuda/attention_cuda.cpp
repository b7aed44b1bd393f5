#include "attention_cuda.h"

#include "../attention_kernel.h"
#include "../ceil_div.h"
#include "attention_program.h"
#include "intrinsics.h"

namespace heed::cuda {

using namespace Halide;

Module attention_module(const std::string &name, const AttentionConfig &config, const AttentionTile &tile,
                        const Target &target) {
    const AttentionArguments args(config);
    Func attention("attention");
    const std::string out = attention.name();
    ProgramInputs in{{"q", 4},
                     {"k", 4},
                     {"v", 4},
                     {"k_scale", 3},
                     {"v_scale", 3},
                     {"mask", 4},
                     {"bias", 4},
                     {"bias_16", 4},
                     {"sink", 1},
                     {"alibi", 1},
                     {"page_table", 2},
                     {"tasks", 2},
                     {"states", 4},
                     {out + ".0", 4},
                     {out + ".1", 4},
                     args.max_q_len,
                     args.max_kv_len,
                     args.scale,
                     args.softcap,
                     args.split_len,
                     args.num_splits,
                     args.page_size,
                     args.mask_form,
                     args.bias_form,
                     args.alibi_symmetric,
                     args.dropout_seed,
                     args.dropout_offset,
                     args.dropout_threshold,
                     args.dropout_scale,
                     args.device_status,
                     args.uniform,
                     args.visible_begin,
                     args.visible_end,
                     args.position_offset,
                     {},
                     {},
                     {}};

    auto host_value = [](const std::string &value) { return Internal::Variable::make(Int(32), value); };
    in.row_blocks = host_value("row_blocks");
    in.group_size = host_value("group_size");

    std::vector<DeviceTensor> score_buffers;
    std::vector<ScoreBuffers::Buffer> read;
    for (size_t n = 0; n < args.score_buffers.size(); n++) {
        const DeviceTensor tensor = {args.score_buffers[n].name(), 1};
        score_buffers.push_back(tensor);
        read.push_back({[tensor](const Expr &index) {
                            return load_i32(tensor.address() + cast<uint64_t>(index) * cast<uint64_t>(4));
                        },
                        tensor.extent(0), config.score_mod.buffers[n]});
    }
    in.score_buffers = ScoreBuffers(read);

    Launch launch;
    launch.name = name;
    const bool packs = config.packs_group;
    launch.host_values = {
        {"group_size", in.q.extent(1) / in.k.extent(1)},
        {"row_blocks", ceil_div(packs ? args.max_q_len * in.group_size : args.max_q_len, tile.rows())}};
    launch.blocks = in.row_blocks * args.batch * (packs ? in.k.extent(1) * args.num_splits : in.q.extent(1));
    launch.threads = tile.threads();
    launch.shared_bytes = attention_shared_bytes(config, tile);
    launch.tensors = {in.q,          in.k,         in.v,       in.k_scale, in.v_scale,
                      in.mask,       in.bias,      in.bias_16, in.sink,    in.alibi_slopes,
                      in.page_table, in.sequences, in.states,  in.out,     in.lse};
    launch.tensors.insert(launch.tensors.end(), score_buffers.begin(), score_buffers.end());
    launch.program = attention_program(config, tile, in, Launch::block(name), Launch::thread(name));

    return launch_module(name, attention, {stored_type(config.dtype), Float(32)}, 4, args.arguments(), launch, target);
}

}  // namespace heed::cuda
