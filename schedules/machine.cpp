#include "schedules/machine.h"

#include <algorithm>
#include <numeric>

namespace heed {

using Halide::Target;

Machine machine_of(const Target &target) {
    const bool wide = target.has_feature(Target::AVX512_Skylake);
    return {target.natural_vector_size<float>(),
            wide ? 32 : 16,
            target.has_feature(Target::FMA),
            target.has_feature(Target::AVX512_Zen4),
            target.has_feature(Target::AVX512_SapphireRapids),
            1 << 20};
}

bool has_bf16_dots(const std::string &isa) { return isa == "avx512bf16" || isa == "amx"; }

Target target_of_isa(const std::string &isa) {
    std::vector<Target::Feature> features{Target::NoRuntime, Target::NoBoundsQuery, Target::UserContext, Target::SSE41};
    const bool amx = isa == "amx", bf16 = has_bf16_dots(isa), wide = bf16 || isa == "avx512";
    if (wide || isa == "avx2") {
        features.insert(features.end(), {Target::AVX, Target::AVX2, Target::FMA, Target::F16C});
    }
    if (wide) features.insert(features.end(), {Target::AVX512, Target::AVX512_Skylake});
    if (bf16) features.insert(features.end(), {Target::AVX512_Cannonlake, Target::AVX512_Zen4});
    if (amx) features.push_back(Target::AVX512_SapphireRapids);
    if (!wide && isa != "x86_64" && isa != "avx2") {
        return Target();
    }
    return Target(Target::Linux, Target::X86, 64, features);
}

namespace {

int row_bytes(const AttentionConfig &config) { return config.head_dim * stored_type(config.kv_dtype).bytes(); }

// One row of floats is so little arithmetic that the prefetchers of the cache keep up and instructions only delay them
// (measured: 68 against 61 GB/s of 74). Copies are read once in their order as well.
bool prefetches(const AttentionConfig &config) {
    return !config.copies_k() && !config.copies_v() && (config.has_gqa || config.kv_dtype != ElementType::f32);
}

// Prefill: k and v of a block, as they are read, in half of L2; the tasks' own scratch has the other half.
void fit_blocks(const Machine &machine, AttentionConfig &config) {
    const int elements = config.padded(config.head_dim) + config.padded(config.head_dim_v);
    const int step = config.packs_kv() ? 32 : 16;
    const int keys = std::max(machine.l2_bytes / 2 / (elements * (config.bf16_dots ? 2 : 4)) / step, 1) * step;
    if (config.kv_block <= keys) return;
    config.masked_block = std::min({config.masked_block, keys, config.packs_kv() ? keys : 48});
    config.kv_block = keys / config.masked_block * config.masked_block;
}

// Elements of d in a step of a tile of floats: with four instead of two AVX2 takes 0.91 to 0.96 of the time (heads of
// 64 and 128, Zen 3).
int own_product_unroll(const Machine &machine, const AttentionConfig &config) {
    const int most = machine.has_fma && machine.vector_registers == 16 ? 4 : 2;
    return std::gcd(config.head_dim, most);  // most, where the head_dim is known at run time
}

}  // namespace

// Prefill holds rows x key_tile accumulators, one column of rows of q and a broadcast in registers:
//   32 registers: 3 x 8 + 3 (the broadcast folds into the FMA);  16 registers: 3 x 4 + 3 + 1;
//   without FMA 2 x 4 + 2 + product. With matrix tiles the products are stages of their own: the queries, weights and
//   sums of 32 rows of head_dim 128 and two tiles of logits stay in L1 (8 + 8 + 16 + 8 of 48 KiB), past which packed k
//   and v stream. Masked steps are blocks too, of which they multiply units of 32 keys. Measured, Xeon with AMX: 32 and
//   64 rows, p1k_d64_full 1.97, 2.41 ms; blocks of 64, 96, 128 and 256 keys, p2k_gqa 26.1, 24.6, 25.0, 31.3 ms,
//   bert_8x512 10.1, 7.4, 7.1, 9.0. In decode, where a step packs its block for the rows of a group, 64 rows of long
//   heads (64 heads on one of 576 elements, 4096 keys: 32 rows 0.88 ms, 64 0.66), 32 of others (one of 128: 0.115,
//   0.132).
// Decode: lanes run along d. Kernels without a mask, a bias or int8 keys, whose conversion bounds them: tasks of
// several blocks of rows (the most: their queries
//   and states stay in a quarter of L2), blocks of 16 keys, of 32 for several rows, so that k and v take turns soon and
//   a block stays in L1 for all rows of its head (one row of floats, 256 / 32 / 16 keys: 17 / 22 / 25 GB/s); a tile of
//   4 keys x 4 rows; the next head or block is asked for. The others: one block of rows, a tile of 4 keys x 1 row, or 1
//   key x 4 rows, where k streams in its order in memory (4 keys, interleaved and without prefetches: 1.35x the time);
//   rows are asked for 8 KiB ahead, so many as DRAM delivers while one is on its way, and at most 32 keys: what follows
//   the last key of a split, of 512 keys at least, is read in vain.
// Blocks of keys in prefill: a masked step computes the keys that are seen only, so that it may be as long as the
// others,
//   but copies of mask and bias are of all its keys. Run-time head dims: the copies of a block of k and v, where they
//   are copied, stay within half of L2 at head_dim 640 (2 x 96 x 656 floats, 492 KiB).
// Values of decode: 32 registers hold tiles of four rows of 4 vectors or one of 8, and v, which is converted once for
//   four rows; 16 registers: two rows of 4 vectors or one of 8. Run-time head dims: one vector of all rows.
void fit_tiles(const Machine &machine, AttentionConfig &config) {
    config.lanes = machine.lanes;
    config.dot_lanes = machine.lanes;
    if (config.rows_are_lanes()) {
        config.key_tile = config.value_tile = machine.vector_registers == 32 ? 8 : 4;
        config.product_unroll = config.bf16_dots ? 4 : own_product_unroll(machine, config);
        config.value_unroll = config.bf16_dots ? 1 : 2;
        config.row_block = machine.lanes * (machine.has_fma ? 3 : 2);
        if (!config.bf16_dots) config.kv_block = config.any_head_dim() ? 96 : 144;
        config.masked_block = config.per_logit() && !config.packs_kv() ? 48 : config.kv_block;
        if (config.bf16_tiles) {
            const bool is_long = config.any_head_dim() || config.head_dim > 256;
            config.row_block = config.packs_in_steps() && is_long ? 64 : 32;
        }
        fit_blocks(machine, config);
    } else {
        const bool wide = machine.vector_registers == 32;
        const bool shares_keys = !config.sweeps() && !config.has_score_mod() && !config.has_kv_scales();
        config.task_blocks = !shares_keys ? 1 : config.any_head_dim() ? 16 : 32;
        config.key_tile = !config.has_gqa || config.any_head_dim() ? 4 : !shares_keys ? 1 : wide ? 4 : 2;
        config.row_block = config.has_gqa ? 4 : 1;
        config.kv_block = shares_keys ? (config.has_gqa ? 32 : 16) : config.any_head_dim() ? 64 : 256;
        config.value_rows =
            config.any_head_dim() || machine.vector_registers == 32 ? config.row_block : std::min(2, config.row_block);
        config.value_vectors = config.any_head_dim() ? 1 : config.value_rows == 1 ? 8 : 4;
        if (shares_keys && !config.copies_k() && !config.copies_v()) {
            config.prefetch_keys = config.kv_block;
            // Several rows of 16 bits, whose conversion bounds them, take 1.3x the time. With 32 registers there are
            // kernels for it: on a Xeon (family 6 model 85, 2 cores) f32 takes 0.5 to 0.65 of the time where keys of
            // all heads have 4 KiB or more and come from memory, 1.05 to 1.2 where they are smaller or in the caches.
            const bool pays = !wide && (!config.has_gqa || config.kv_dtype == ElementType::f32);
            if (pays || config.for_whole_keys) config.whole_keys = 4;
            // Key after key, so that memory is read in its order. Four rows of 8 heads of 128 floats, Zen 5 with
            // AVX-512, 2 threads, of what a plain read reaches: tiles of four keys 0.62 to 0.8, of one 0.68 to 0.87.
            // One row: 0.88, 0.6. Of 16 bits, whose values are visited for four keys at once: 1.1 times as fast, one
            // row 1.2 times.
            if (config.for_whole_keys && (config.has_gqa || config.kv_dtype != ElementType::f32)) {
                config.key_tile = 1;
                config.whole_keys = config.kv_dtype == ElementType::f32 ? 1 : 4;
            }
        } else if (prefetches(config)) {
            config.prefetch_keys = std::min(32, 8192 / row_bytes(config));
        }
    }
}

}  // namespace heed
