"""What a search found, measured once more with the schedule's own choice, what random search found and what Halide's
autoschedulers make of the pipeline: in turns, more rounds, on the case of the search and on one held out of it."""
from race import Race
from server import Failed

AUTOSCHEDULERS = ("Mullapudi2016", "Adams2019")
PLAIN = "default"
MOST_FINALISTS = 5  # of each search: a single best trial may be a lucky one


def autoscheduled(builder):
    """Candidates by name, and why others are none."""
    candidates, reasons = {}, {}
    for name in AUTOSCHEDULERS:
        try:
            candidates[name] = builder.candidate(schedule=name)
        except Failed as failure:
            reasons[name] = str(failure)
    return candidates, reasons


def checked(builder, case, candidates, seconds):
    """Those that are right and run, and why others do not: each in a program of its own, for it may crash."""
    good, reasons = {}, {}
    for name, candidate in candidates.items():
        try:
            with builder.program([candidate, builder.oracle()]) as server:
                race = Race(server, case, builder.fields, seconds)
                race.check(candidate, builder.oracle())
                race.round([candidate])
            good[name] = candidate
        except Failed as failure:
            reasons[name] = str(failure)
    return good, reasons


def race_all(builder, case, candidates, rounds, seconds):
    """Milliseconds, share of the roofline and speed against PLAIN in the median round, by name."""
    with builder.program(list(candidates.values())) as server:
        race = Race(server, case, builder.fields, seconds)
        for _ in range(rounds):
            race.round(list(candidates.values()))
        shares = race.shares()
        return {name: {"ms": race.ms[c.name], "share": shares[c.name], "paired": race.paired_speed(c, candidates[PLAIN])}
                for name, c in candidates.items()}


def finals(builder, searches, case, held_out, rounds, seconds):
    """{"values": by search, "case": race, "held_out": race or None, "reasons": of what has no time}"""
    rivals, reasons = autoscheduled(builder)
    rivals, wrong = checked(builder, case, rivals, seconds)
    finalists = {(search.kind, n): values for search in searches for n, values in enumerate(search.best(MOST_FINALISTS))}
    field = {PLAIN: builder.candidate(), **rivals, **{key: builder.candidate(v) for key, v in finalists.items()}}
    measured = race_all(builder, case, field, rounds, seconds)
    winners = {}
    for search in searches:
        keys = [key for key in finalists if key[0] == search.kind]
        if keys:
            winners[search.kind] = min(keys, key=lambda key: measured[key]["ms"])
    named = {name: measured[name] for name in [PLAIN, *rivals]}
    named.update({kind: measured[key] for kind, key in winners.items()})
    result = {"values": {kind: finalists[key] for kind, key in winners.items()}, "case": named,
              "reasons": {**reasons, **wrong}, "held_out": None}
    if held_out:
        pair = {PLAIN: field[PLAIN], **{kind: field[key] for kind, key in winners.items()}}
        try:
            result["held_out"] = race_all(builder, held_out, pair, rounds, seconds)
        except Failed as failure:
            result["reasons"][held_out] = str(failure)
    return result


def speed(race, name, other=PLAIN):
    """How many times as fast as another."""
    return race[other]["ms"] / race[name]["ms"]
