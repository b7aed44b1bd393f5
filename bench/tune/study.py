"""Studies of a kernel: Optuna's trials in an SQLite file, which processes may share and continue.

A trial's value is the candidate's time over that of the schedule's own choice (Race.ratio), timed in turns; small is good."""
import time

import optuna
from optuna.trial import TrialState

import space
from race import Race, hopeless
from server import Failed

SAMPLERS = ("tpe", "random")
START_UP_TRIALS = 10  # of TPE at random
ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


def make_sampler(kind, seed):
    if kind == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(multivariate=True, constant_liar=True, n_startup_trials=START_UP_TRIALS, seed=seed)


class Search:
    """One study: `kind` is how it samples, `facts` what tells it from other studies, `starts` the points that it tries first."""

    def __init__(self, storage, kind, facts, parameters, starts, resume):
        name = " ".join([*facts, kind])
        exists = name in optuna.get_all_study_names(storage)
        if exists and not resume:
            raise SystemExit(f"there is a study '{name}' already: --resume continues it, another --out makes a new one")
        self.kind, self.parameters = kind, parameters
        self.study = optuna.create_study(storage=storage, study_name=name, load_if_exists=True)
        # One that starts anew must not repeat itself. Searches share their first points: luck there is no merit.
        self.study.sampler = make_sampler(kind, len(self.study.trials))
        for values in [] if exists else starts:
            self.study.enqueue_trial(space.sampled(parameters, values))

    def ended(self):
        return self.study.get_trials(deepcopy=False, states=ENDED)

    def timed(self):
        """Those that were timed to their end."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))

    def best_value(self):
        return min((trial.value for trial in self.timed()), default=float("nan"))

    def best(self, number=1):
        """Values of the best trials, best first, each point once."""
        points = []
        for trial in sorted(self.timed(), key=lambda trial: trial.value):
            if trial.user_attrs["values"] not in points:
                points.append(trial.user_attrs["values"])
        return points[:number]


class Bench:
    """How candidates are tried: rounds of `seconds` each on a case."""

    def __init__(self, builder, case, rounds, seconds):
        self.builder, self.case, self.rounds, self.seconds = builder, case, rounds, seconds

    def attempt(self, trial, values, best):
        """The value; `best`: the best points so far. Raises Failed, or optuna.TrialPruned."""
        candidate, plain, oracle = self.builder.candidate(values), self.builder.candidate(), self.builder.oracle()
        rivals = [plain] + [self.builder.candidate(point) for point in best]
        with self.builder.program([candidate, oracle, *rivals]) as server:
            race = Race(server, self.case, self.builder.fields, self.seconds)
            race.check(candidate, oracle)
            for n in range(1, 2 * self.rounds + 1):
                race.round([candidate, *rivals])
                trial.report(race.ratio(candidate, plain), n)
                if best and hopeless(n, race.ratio(candidate, rivals[-1])):
                    raise optuna.TrialPruned
                # Twice the rounds for what seems the best so far: a lucky one would mislead the sampler.
                if n >= self.rounds and best and race.ratio(candidate, rivals[-1]) > 1:
                    break
        trial.set_user_attr("ms", race.ms[candidate.name])
        return race.ratio(candidate, plain)


def take_trial(search, bench):
    """One trial of a study. A point that it had is not tried again; one that cannot be made counts as the worst, so that the
    sampler keeps away from it."""
    trial = search.study.ask()
    values = space.suggest(trial, search.parameters)
    trial.set_user_attr("values", values)
    earlier = next((t for t in search.ended() if t.user_attrs.get("values") == values), None)
    if earlier is not None:
        trial.set_user_attr("same_as", earlier.number)
        if "failure" in earlier.user_attrs:
            trial.set_user_attr("failure", earlier.user_attrs["failure"])
        timed = earlier.state == TrialState.COMPLETE
        search.study.tell(trial, earlier.value if timed else None, state=earlier.state)
        return
    started, value = time.monotonic(), None
    try:
        value = bench.attempt(trial, values, search.best())
    except optuna.TrialPruned:
        pass
    except Failed as failure:
        trial.set_user_attr("failure", str(failure))
    trial.set_user_attr("seconds", time.monotonic() - started)
    search.study.tell(trial, value, state=TrialState.PRUNED if value is None else TrialState.COMPLETE)
