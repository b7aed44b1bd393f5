"""Goals, and whether they are met."""
import dataclasses
import fnmatch

# What the best peer's time / ours is to reach, as (patterns of cases, f32, bf16, bf16 on a machine with AMX). The first line
# that has a case is its goal.
LINES = [("p8k_gqa p512_mha p2k_gqa p2k_gqa_*", 1.4, 2.0, 2.5),
         ("p1k_d64_*", 1.4, 2.0, 2.3),
         ("c256_4k_gqa*", 1.4, 2.0, 2.0),
         ("bert_8x512", 1.4, 2.0, 1.9),
         ("add_11qk bool_11qk *_2k_mask alibi softcap dropout temperature", 1.2, 1.5, 1.5),
         ("d72 d80 d96* d256 dk192_dv128 dk64_dv111", 1.3, 1.5, 1.5),
         ("q*_4k_*", 1.2, 1.2, 1.2),
         ("linear_*", 1.0, 1.0, 1.0),
         ("probs_*", 1.5, 1.5, 1.5),
         ("layer_*", 1.3, 1.5, 1.5),
         ("encoder_*", 1.3, 1.3, 1.3)]
F16, AVX2 = 1.2, 1.2

# Decoding from DRAM: the most that the time may be of what memory and arithmetic allow, by query heads for a head of keys and
# values (up to 4, 8, more); never slower than the best peer.
COLD = [("d4k_mha* d4k_g2* d4k_gqa* d2k_b16_gqa* d32k_gqa", 1.15), ("d4k_g8*", 1.2), ("d4k_g16* d4k_mqa* mla_*", 1.6)]

# The share of the peak of the machine's unit that is to be reached in addition, where arithmetic bounds the time and not memory:
# (patterns, f32, bf16 with AMX).
SHARES = [("p2k_gqa p8k_gqa", None, 0.30), ("linear_*", 0.85, 0.35)]

ENOUGH_OF_FLOOR = 0.88  # of what f32, and any type without AMX, could reach: it meets a goal that the ratio misses
LEAST_RATIO = 1.0  # below it nothing is met

# Our own time in another form / ours: the least and the most.
REFERENCES = {"heed_f32": (1 / 1.1, float("inf")), "heed_default_layout": (0.95, 1.05),
              "heed_native": (1 / 1.15, float("inf")), "heed_in_a_row": (1 / 1.15, float("inf"))}


@dataclasses.dataclass(frozen=True)
class Goal:
    ratio: float
    share: float = None  # of the peak
    floor: float = None  # the most that the time may be of the floor
    floor_counts: bool = True


@dataclasses.dataclass(frozen=True)
class Standing:
    """What was reached: `ratios` the 25th, 50th and 75th percentile of the rounds' ratios to the best peer, or None; `own`
    the same by name, to REFERENCES."""
    ratios: tuple = None
    share_of_floor: float = 0.0
    share_of_peak: float = 0.0
    bound_by_memory: bool = False
    own: dict = dataclasses.field(default_factory=dict)
    failed: tuple = ()  # peers that are not there or failed


def line_of(lines, case):
    return next((values for patterns, *values in lines if any(fnmatch.fnmatch(case, p) for p in patterns.split())), None)


def goal_of(measurement, has_amx):
    """None: it has none."""
    case = measurement.like or measurement.case
    line = line_of(LINES, case)
    if measurement.temperature == "cold" and not measurement.kv and (most := line_of(COLD, case)):
        return Goal(LEAST_RATIO, floor=most[0], floor_counts=False)
    if measurement.temperature or measurement.kv or line is None:
        return None
    if measurement.isa:
        return Goal(AVX2)
    amx = has_amx and measurement.dtype == "bf16"
    if measurement.dtype == "f16":
        return Goal(F16)
    shares = line_of(SHARES, case) or (None, None)
    if measurement.dtype == "f32":
        return Goal(line[0], shares[0])
    return Goal(line[2], shares[1], floor_counts=False) if amx else Goal(line[1])


def quartiles(ratios):
    """25th, 50th and 75th percentile."""
    ordered = sorted(ratios)
    return tuple(ordered[round(part * (len(ordered) - 1))] for part in (0.25, 0.5, 0.75))


def misses(goal, standing):
    """Why a goal is missed, in words; none: it is met. A ratio is below a goal when its 75th percentile is."""
    found = [f"{name} failed" for name in standing.failed]
    if standing.ratios is None:
        return found + ["no peer"]
    most = standing.ratios[2]
    by_floor = goal.floor_counts and standing.share_of_floor >= ENOUGH_OF_FLOOR and most >= LEAST_RATIO
    if most < goal.ratio and not by_floor:
        found.append("ratio")
    if goal.share is not None and not standing.bound_by_memory and standing.share_of_peak < goal.share:
        found.append(f"{100 * goal.share:.0f}% of peak")
    if goal.floor is not None and standing.share_of_floor * goal.floor < 1:
        found.append(f"{goal.floor} of the floor")
    for name, (low, _, high) in standing.own.items():
        least, most = REFERENCES[name]
        if high < least or low > most:
            found.append(name)
    return found
