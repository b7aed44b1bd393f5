"""The speed parameters of a kernel, as heed_generate lists them, and points of their space.

A parameter is one of some values, or a multiple of another one. What a study samples for the latter is the factor, so
that most points are such as the generator takes. `values` are the parameters' own: {"lanes": 16, "row_block": 48}."""


def start(parameters):
    """What the schedule chooses by itself."""
    return {name: p["default"] for name, p in parameters.items()}


def sampled_name(name, p):
    return name if "values" in p else f"{name}/{p['multiple_of']}"


def unit_of(p, values):
    return values.get(p["multiple_of"], p["unit"])


def suggest(trial, parameters):
    """Values, of what an Optuna trial suggests."""
    values = {}
    for name, p in parameters.items():
        if "values" in p:
            values[name] = trial.suggest_categorical(name, p["values"])
        else:
            values[name] = unit_of(p, values) * trial.suggest_int(sampled_name(name, p), 1, p["most_factor"])
    return values


def sampled(parameters, values):
    """What a study would have sampled for these values."""
    return {sampled_name(name, p): values[name] if "values" in p else values[name] // unit_of(p, values)
            for name, p in parameters.items()}


def as_arguments(values):
    return [f"{name}={value}" for name, value in values.items()]


def bytes_of(text):
    """'256K', '1M' or a number of bytes."""
    units = {"K": 1 << 10, "M": 1 << 20}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)
