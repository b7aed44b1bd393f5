"""Plots as SVG text: points and lines over trials, and bars."""
import html

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 300, 56, 12, 12, 34
COLORS = ("#1f6feb", "#d1702b", "#57606a", "#8250df", "#1a7f37")


def svg(width, height, body):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'font-family="sans-serif" font-size="12">{body}</svg>')


def text(x, y, words, anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(str(words))}</text>'


def line(points, color, dash=""):
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5" stroke-dasharray="{dash}"/>'


def ticks(low, high, number=5):
    return [low + (high - low) * n / (number - 1) for n in range(number)]


def history(series, trials, label):
    """`series`: {name: [(trial, value)]}, points and the best so far; values are cut where most are not."""
    values = sorted(value for points in series.values() for _, value in points)
    if not values:
        return "<p>No trial was timed to its end.</p>"
    low, high = min(values[0], 1) * 0.98, max(values[int(0.9 * (len(values) - 1))], 1) * 1.03

    def at(trial, value):
        return (LEFT + trial / max(trials - 1, 1) * (WIDTH - LEFT - RIGHT),
                TOP + (high - min(value, high)) / (high - low) * (HEIGHT - TOP - BOTTOM))

    body = ""
    for value in ticks(low, high):
        y = at(0, value)[1]
        body += line([(LEFT, y), (WIDTH - RIGHT, y)], "#e5e7eb") + text(LEFT - 6, y + 4, f"{value:.2f}", "end")
    body += line([at(0, 1), at(trials - 1, 1)], "#57606a", "4 3")
    for n, (name, points) in enumerate(series.items()):
        best, steps = float("inf"), []
        for trial, value in points:
            x, y = at(trial, value)
            body += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{COLORS[n]}" fill-opacity="0.45"/>'
            if value < best:
                steps += [at(trial, best)] if steps else []
                best = value
                steps.append(at(trial, best))
        body += line(steps + [at(trials - 1, best)], COLORS[n]) if steps else ""
        body += text(WIDTH - RIGHT - 4, TOP + 14 + 16 * n, f"— {name}", "end").replace("<text", f'<text fill="{COLORS[n]}"')
    body += text(LEFT, HEIGHT - 8, f"trial (0 to {trials - 1}); {label}")
    return svg(WIDTH, HEIGHT, body)


def bars(values, form="{:.2f}"):
    """`values`: {name: number}."""
    if not values:
        return "<p>Nothing to show.</p>"
    most, row, names = max(values.values()) or 1, 24, 190
    body = ""
    for n, (name, value) in enumerate(values.items()):
        length = value / most * (WIDTH - names - 70)
        body += text(names - 8, n * row + 16, name, "end")
        body += f'<rect x="{names}" y="{n * row + 4}" width="{length:.1f}" height="16" fill="{COLORS[0]}"/>'
        body += text(names + length + 6, n * row + 16, form.format(value))
    return svg(WIDTH, len(values) * row + 8, body)
