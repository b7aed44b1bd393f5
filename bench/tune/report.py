"""What a search found, as one HTML page without anything outside of it."""
import base64
import collections
import html
import io

import matplotlib.pyplot as plt
import optuna
import optuna.visualization.matplotlib as plots

from finals import PLAIN, speed

plt.switch_backend("agg")

STYLE = """body{font:15px/1.45 sans-serif;max-width:820px;margin:2em auto;color:#1f2328}table{border-collapse:collapse}img{max-width:100%}
td,th{border:1px solid #d0d7de;padding:3px 9px;text-align:left}code,pre{background:#f6f8fa}pre{padding:8px;white-space:pre-wrap}"""
NAMES = {PLAIN: "schedule's own choice", "tpe": "search (TPE)", "random": "random search"}


def named(key):
    return NAMES.get(key, key)


def table(header, rows):
    def cells(kind, values):
        return "<tr>" + "".join(f"<{kind}>{html.escape(str(value))}</{kind}>" for value in values) + "</tr>"

    return "<table>" + cells("th", header) + "".join(cells("td", row) for row in rows) + "</table>"


def picture(axes):
    file = io.BytesIO()
    axes.figure.savefig(file, format="svg", bbox_inches="tight")
    plt.close(axes.figure)
    return f'<img src="data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}">'


def importances(search):
    return picture(plots.plot_param_importances(search.study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()))


def history(searches):
    timed = [search for search in searches if search.timed()]
    if not timed:
        return "<p>No trial was timed to its end.</p>"
    axes = plots.plot_optimization_history([search.study for search in timed], target_name="time")
    axes.set_ylabel("time over that of the schedule's own choice")
    handles, labels = axes.get_legend_handles_labels()
    for search in timed:
        labels = [label.replace(search.study.study_name, named(search.kind)) for label in labels]
    axes.legend(handles, labels)
    return picture(axes)


def outcomes(searches):
    rows = []
    for s in searches:
        ended = s.ended()
        failed = sum("failure" in t.user_attrs for t in ended)
        timed = len(s.timed())
        rows.append([named(s.kind), len(ended), timed, len(ended) - timed - failed, failed])
    return table(["", "trials", "timed to the end", "pruned", "failed"], rows)


def failures(searches):
    reasons = collections.Counter(t.user_attrs["failure"] for s in searches for t in s.ended() if "failure" in t.user_attrs)
    return table(["trials", "failed because"], [[count, reason] for reason, count in reasons.most_common()]) if reasons else \
        "<p>None failed.</p>"


def race_table(race):
    return table(["", "ms", "times as fast as the schedule's own choice", "share of the roofline"],
                 [[named(name), f"{entry['ms']:.4g}", f"{speed(race, name):.3f}", f"{100 * entry['share']:.1f} %"]
                  for name, entry in sorted(race.items(), key=lambda item: item[1]["ms"])])


def parameter_table(defaults, values):
    kinds = list(values)
    return table(["parameter", named(PLAIN), *(named(kind) for kind in kinds)],
                 [[name, default, *(values[kind].get(name) for kind in kinds)] for name, default in defaults.items()])


def page(facts, searches, defaults, found):
    """`facts`: what the page says of the run, by name; `found`: of finals()."""
    race = found["case"]
    parts = [f"<h1>{html.escape(facts['kernel'])}</h1>", table(["", ""], [[name, value] for name, value in facts.items()]),
             "<h2>Best against default</h2>", race_table(race), parameter_table(defaults, found["values"]),
             "<h2>Held-out case</h2>",
             race_table(found["held_out"]) if found["held_out"] else "<p>No case was held out.</p>",
             "<h2>History</h2>", history(searches), outcomes(searches),
             "<h2>Importance of the parameters</h2><p>PED-ANOVA over the timed trials of the search.</p>",
             importances(searches[0]),
             "<h2>Halide's autoschedulers</h2><p>Their kernels are in the table above where they are right; else, their words:</p>"]
    parts += [f"<h3>{html.escape(name)}</h3><pre>{html.escape(reason)}</pre>" for name, reason in found["reasons"].items()]
    parts += ["<h2>Failures</h2>", failures(searches)]
    return f"<!doctype html><meta charset=utf-8><title>{html.escape(facts['kernel'])}</title><style>{STYLE}</style>" + "\n".join(parts)
