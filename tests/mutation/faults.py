"""Seeded faults: what is replaced where, and the tests that should notice. See mutate.py."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    name: str
    words: str
    edits: tuple  # of (file, text that occurs there once, what replaces it)
    tests: dict   # program: its --gtest_filter


def fault(name, words, file, old, new, **tests):
    return Fault(name, words, ((file, old, new),), tests)


SEQUENCES, TASKS, KERNEL_CALL = "runtime/sequences.cpp", "runtime/tasks.cpp", "runtime/kernel_call.cpp"
BRIDGE, RANGES, POOL = "runtime/halide_bridge.cpp", "runtime/ranges.cpp", "runtime/thread_pool.cpp"
LOGITS, STAGES, BLOCKS = "generators/attention/logits.cpp", "generators/attention/stages.cpp", "generators/attention/blocks.cpp"
VALUES, OUTPUTS = "generators/attention/values.cpp", "generators/attention/outputs.cpp"
DECODE = "schedules/attention_decode_x86.cpp"

SOFTCAP = """        capped = c.where_capped(c.capped(tempered, units), tempered);
"""
BIAS = """    if (added.defined()) value = capped + in_units(added, units);
"""
LATE_SOFTCAP = """    if (c.softcap.defined()) value = c.where_capped(c.capped(value, units), value);
"""

RUNTIME = [
    fault("window_off_by_one", "the left window is a token short", SEQUENCES,
          "seq.q_offset - p.window_left,", "seq.q_offset - p.window_left + 1,",
          api="*VisibleRange*", kernel="*Visibility.Windows*", adversarial="*Case08*"),
    fault("top_left_for_bottom_right", "BOTTOM_RIGHT is where TOP_LEFT is", SEQUENCES,
          "seq->q_offset = int64_t{seq->kv_len} - seq->q_len;", "seq->q_offset = 0;",
          kernel="*Visibility.Causal*", adversarial="*Case05*:*Case06*"),
    fault("capacity_for_kv_len", "tasks have the capacity for the number of keys", TASKS,
          "task[task_kv_len] = seq.kv_len;", "task[task_kv_len] = p.max_kv_len;",
          api="*Tasks*", kernel="*Visibility.KeyLengths*:*Poison.BeyondTheLengths*"),
    fault("modulo_for_group", "head h reads keys of h % num_kv_heads, not of h / group_size", TASKS,
          "task[task_kv_head] = head / group_size;", "task[task_kv_head] = head % (p.num_heads / group_size);",
          kernel="*Shapes.GroupSizes*:*GqaIsMha*", adversarial="*Case30*"),
    fault("page_check_left_out", "page ids are not checked", SEQUENCES,
          "if (page < 0 || page >= p.num_pages) {", "if (page < 0 && page >= p.num_pages) {",
          api="*Metadatas.PageIds*", adversarial="*Case44*"),
    fault("last_sum_not_checked", "prefix sums may end anywhere", SEQUENCES,
          "if (end == total) return HEED_OK;", "if (end <= total) return HEED_OK;",
          api="*Metadatas.PrefixSums*", adversarial="*Case49*"),
    fault("overlap_check_left_out", "outputs may overlap inputs", RANGES,
          "if (range.begin < written.end && written.begin < range.end) {",
          "if (range.begin > range.end && written.begin < range.end) {",
          api="*Case38*:*MetadataMayNotBeWritten*"),
    fault("size_not_checked", "stated capacities are not looked at", RANGES,
          "if (tensor.data != nullptr && tensor.size < span) {", "if (tensor.data != nullptr && tensor.size < 0) {",
          api="*Case39*:*MaskShapes*", ops="Copy.Errors*:Merge.Errors*:Rope.Errors*:Ops.AppendErrors*"),
    fault("scale_of_head_dim_v", "the default scale follows head_dim_v", "runtime/plan.cpp",
          "std::sqrt(static_cast<float>(p->head_dim));", "std::sqrt(static_cast<float>(p->head_dim_v));",
          api="*ScaleDefault*", kernel="*HeadDims.Different*"),
    fault("dropout_scale_left_out", "kept weights are not scaled by 1 / (1 - p)", KERNEL_CALL,
          "dropout_scale(p.dropout_p < 1 ? 1 / (1 - p.dropout_p) : 0)", "dropout_scale(1)",
          kernel="*Dropout.Values*", adversarial="*Case56*"),
    fault("codes_are_fine", "a failing kernel passes for a good one", "runtime/cpu/execute.cpp",
          "if (code == 0) return HEED_OK;", "if (code <= 0) return HEED_OK;", api="Errors.*"),
    fault("workspace_too_small", "the workspace lacks one thread's part", "runtime/cpu/plan.cpp",
          "append_part(&total, Size{p.max_threads} * layout->slice_bytes);",
          "append_part(&total, Size{p.max_threads - 1} * layout->slice_bytes);",
          api="Threads.*:Errors.*:*Workspace*", kernel="*ThreadsChangeNoBit*"),
    fault("shared_scratch", "all threads work in one slice of the workspace", BRIDGE,
          "ScratchSlice *slice = slice_at(*loop.context, index);", "ScratchSlice *slice = slice_at(*loop.context, 0);",
          kernel="*ThreadsChangeNoBit*", adversarial="*Case25*:*Case26*"),
    fault("workers_not_waited_for", "a call returns while its workers compute", POOL,
          "wait_for_workers(Job &job) {\n", "wait_for_workers(Job &job) {\n    if (job.num_items > 0) return;\n",
          api="Threads.*", kernel="*ThreadsChangeNoBit*"),
    fault("fork_forgotten", "a forked child uses its parent's pool", POOL,
          "forget_pool_in_child() { shared_pool.store(nullptr); }", "forget_pool_in_child() {}",
          api="Fork.*", adversarial="*Case58*"),
    fault("float_mode_not_restored", "the caller's rounding and flushing modes are lost",
          "runtime/float_environment.h",
          "~DefaultFloatEnvironment() { _mm_setcsr(saved_); }", "~DefaultFloatEnvironment() { _mm_setcsr(default_mxcsr); }",
          api="*FloatEnvironment*", adversarial="*Case16*"),
    fault("splits_by_threads", "the splits of a decode kernel follow max_threads", "runtime/plan.cpp",
          "choose_splits(plan->problem.max_kv_len, plan->kernel->kv_block, plan->problem.num_splits,",
          "choose_splits(plan->problem.max_kv_len, plan->kernel->kv_block, plan->problem.max_threads,",
          api="*Splits*:*SplitsOfDecode*", adversarial="*Case25*"),
]

ALGORITHM = [
    fault("base_2_lse", "lse is a logarithm to base 2", LOGITS,
          "bits(largest + log(total))", "bits(largest * log2_e + log(total) * log2_e)",
          kernel="*Shapes.KeyLengths*", adversarial="*Case22*"),
    fault("lse_of_empty_row", "a row without keys has a finite lse", LOGITS,
          "select(no_key, bits(sink), is_nan", "select(no_key, bits(lowest_logit()), is_nan",
          kernel="*Sinks.RowsWithoutKeys*:*Visibility.WindowsThat*", adversarial="*Case23*:*Case05*"),
    fault("sink_not_in_the_sum", "the sink moves the maximum and adds nothing", LOGITS,
          "sum * key_factor + power(sink_logit - new_max)", "sum * key_factor",
          kernel="*Sinks.InCompany*:*Sinks.Splits*"),
    fault("alibi_sign", "ALiBi rewards distance", LOGITS,
          "min(distance, -distance), distance);", "min(distance, -distance), -distance);",
          kernel="*Alibi.InCompany*:*Alibi.EveryPosition*", adversarial="*Case57*"),
    Fault("tail_guard_left_out", "rows look after the last key",
          ((LOGITS, "return min(i + visible_end, kv_len); }", "return i + visible_end + 0 * kv_len; }"),
           (STAGES, "min(split_begin + in.split_len, kv_len) : kv_len;",
            "min(split_begin + in.split_len, kv_len) : kv_len + 1;")),
          {"kernel": "*Shapes.KeyLengths*:*Poison.BeyondTheLengths*", "adversarial": "*Case45*:*Case48*"}),
    fault("mask_convention", "mask_true_hides is not looked at", LOGITS,
          "return (mask != cast(mask.type(), 0)) != (form == mask_true_hides);",
          "return (mask != cast(mask.type(), 0)) && form == form;",
          kernel="*Masks.*", adversarial="*Case10*"),
    fault("scale_twice", "the scale is multiplied in twice", STAGES,
          "stored) * (in.scale * log16_e);", "stored) * (in.scale * in.scale * log16_e);",
          kernel="*Shapes.Scales*:*Shapes.SeveralBlocks*", adversarial="*Case13_Scale*"),
    fault("split_loses_a_key", "the last key of a split is in none", STAGES,
          "min(split_begin + in.split_len, kv_len) :", "min(split_begin + in.split_len - 1, kv_len) :",
          kernel="*Sinks.Splits*", adversarial="*Case24*"),
    Fault("softcap_after_bias", "softcap comes after bias and ALiBi",
          ((LOGITS, SOFTCAP, "        capped = tempered;\n"), (LOGITS, BIAS, BIAS + LATE_SOFTCAP)),
          {"kernel": "*Softcaps.InCompany*:*RandomScores*", "adversarial": "*Case11*"}),
    fault("bias_hides_nothing", "a bias of -inf is a low bias", LOGITS,
          "require(!is_negative_infinity(v.bias));", "require(Internal::const_true());",
          kernel="*HidingBias*:*BiasWithHidden*", adversarial="*Case04*:*Case11*"),
    fault("old_sum_kept", "the sum is not rescaled when the maximum grows", BLOCKS,
          "exp16_nonpositive(before - reference)", "exp16_nonpositive(0.f * (before - reference))",
          kernel="*Shapes.SeveralBlocks*", adversarial="*Case22*:*Case15*"),
    fault("hidden_value_in_decode", "decode multiplies hidden values by 0 and adds them", VALUES,
          ": if_visible(chain, number, with, so_far);", ": with;",
          kernel="*Poison.*", adversarial="*Case20*"),
    fault("hidden_value_in_prefill", "prefill multiplies hidden values by 0 and adds them", VALUES,
          "if_visible(chain, k, value(k), 0.f);", "(cfg.packs_kv() ? if_visible(chain, k, value(k), 0.f) : value(k));",
          kernel="*Poison.*", adversarial="*Case20*"),
    fault("hidden_packed_value", "prefill of bf16 multiplies hidden values by 0 and adds them", VALUES,
          "if_visible(chain, k, value(k), 0.f);", "(cfg.packs_kv() ? value(k) : if_visible(chain, k, value(k), 0.f));",
          kernel="*Poison.*", adversarial="*Case20*"),
    fault("seed_and_offset_swapped", "Philox takes the offset for the key", VALUES,
          "DropoutStream::of(in.dropout_seed, in.dropout_offset);", "DropoutStream::of(in.dropout_offset, in.dropout_seed);",
          kernel="*Dropout.EverySeed*:*Dropout.MaskIs*", adversarial="*Case43*"),
    fault("dropout_of_own_length", "the mask's index counts a sequence's own keys", VALUES,
          "Expr element = row * wide(in.max_kv_len)", "Expr element = row * wide(field(TaskField::kv_len))",
          kernel="*Dropout.Storages*:*Dropout.LengthsThat*:*Dropout.WithEverything*", adversarial="*Case43*"),
    fault("scale_of_k_for_v", "int8 values are scaled by the scales of the keys", VALUES,
          "in.v.scale(kv_head(), slot(chain, st.k));", "in.k.scale(kv_head(), slot(chain, st.k));",
          kernel="*Int8.*"),
    fault("split_maxima_ignored", "splits are merged without their maxima", "generators/attention/merged_splits.cpp",
          "in.power(in.row_max(split) - split_max(row));", "in.power(0.f * split_max(row));",
          kernel="*Sinks.Splits*", adversarial="*Case24*"),
    fault("page_stride", "pages are taken for one token longer", "generators/attention/kv_source.cpp",
          "cast<double>(page_size));", "cast<double>(page_size + 1));",
          kernel="*Pages.*", adversarial="*Case48*"),
    fault("stale_scratch", "the padding of copied rows holds what was there before", "generators/attention/kv_source.cpp",
          "rows(at) = cast(value.type(), 0);", "rows(at) = rows(at);",
          kernel="*Shapes.KeyLengths*:*HeadDims.*", adversarial="*Case21*"),
]

SCHEDULES = [
    fault("racy_merge", "several splits add to one sum at once", DECODE,
          ".reorder(st.x, st.decode.over_splits)\n            .vectorize(st.x, cfg.lanes, TailStrategy::GuardWithIf);",
          ".allow_race_conditions()\n            .vectorize(st.decode.over_splits, 4, TailStrategy::GuardWithIf);",
          kernel="*Sinks.Splits*", adversarial="*Case24*"),
    fault("racy_sum", "all keys of a lane add to its sum at once", DECODE,
          "ch.decode.sum_lanes.update().reorder(st.u, ch.decode.lane_keys, st.row).vectorize(st.u);",
          "ch.decode.sum_lanes.update().allow_race_conditions().reorder(ch.decode.lane_keys, st.u, st.row).vectorize(ch.decode.lane_keys.x);",
          kernel="*Shapes.KeyLengths*", adversarial="*Case22*"),
]

FAULTS = RUNTIME + ALGORITHM + SCHEDULES
