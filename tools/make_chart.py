#!/usr/bin/env python3
"""Draws docs/speedup.svg, the chart of the README: how many times as fast as plain decoding, by context, a line per kind of prompt.

    tools/make_chart.py [docs/results/speedup.jsonl] [-o docs/speedup.svg]

Reads JSON lines with "context" (tokens), "ratio" (speed over plain decoding) and "kind" ("all" is drawn in bold); other keys
are ignored. Standard library only.
"""
import argparse
import collections
import json
import math
import pathlib
import sys
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 60, 110, 44, 46
COLORS = ("#4a7fd0", "#e09f2b", "#5a9e57", "#b0568f", "#7a6bb5", "#888888")


def read(text, name):
    """{kind: [(context, ratio), ...] by context}"""
    lines = collections.defaultdict(dict)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            context, ratio, kind = float(row["context"]), float(row["ratio"]), str(row["kind"])
        except (ValueError, KeyError, TypeError) as e:
            raise SystemExit(f"{name}:{number}: needs context, ratio and kind ({e!r})")
        if not (context >= 1 and 0 < ratio < 1000):
            raise SystemExit(f"{name}:{number}: context {context:g}, ratio {ratio:g}: out of range")
        if context in lines[kind]:
            raise SystemExit(f"{name}:{number}: a second row of {kind} at {context:g}")
        lines[kind][context] = ratio
    if not lines:
        raise SystemExit(f"{name}: no rows")
    return {kind: sorted(points.items()) for kind, points in lines.items()}


def contexts_text(n):
    return f"{n / 1024:g}K" if n >= 1024 else f"{n:g}"


def label_places(wanted, gap=15):
    """Heights of the labels near those wanted, at least `gap` apart."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    places, last = list(wanted), -math.inf
    for i in order:
        places[i] = last = max(wanted[i], last + gap)
    over = max(0, last - (HEIGHT - BOTTOM))
    return [p - over for p in places]


def draw(lines):
    contexts = sorted({c for points in lines.values() for c, _ in points})
    ratios = [r for points in lines.values() for _, r in points]
    low, high = math.log2(contexts[0]), math.log2(contexts[-1])
    step = 0.5 if max(ratios) <= 4 else 1 if max(ratios) <= 10 else 5
    top = step * math.ceil(max(ratios + [1]) / step + 0.2)
    x = lambda c: LEFT + (WIDTH - LEFT - RIGHT) * ((math.log2(c) - low) / (high - low) if high > low else 0.5)
    y = lambda r: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * r / top

    text = lambda at_x, at_y, s, size=12, anchor="middle", color="#666", weight="normal": (
        f'<text x="{at_x:.1f}" y="{at_y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{color}">{escape(s)}</text>')
    line = lambda x1, y1, x2, y2, color, more="": (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{more}/>')
    title = "Speed over plain decoding, by context length"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="Helvetica, Arial, sans-serif" role="img" aria-label="{title}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        text(LEFT, 24, title, 15, "start", "#222", "bold"),
    ]
    for i in range(int(top / step) + 1):
        out.append(line(LEFT, y(i * step), WIDTH - RIGHT, y(i * step), "#e4e7eb"))
        out.append(text(LEFT - 8, y(i * step) + 4, f"{i * step:g}x", anchor="end"))
    out.append(line(LEFT, y(1), WIDTH - RIGHT, y(1), "#555", ' stroke-dasharray="5 4"'))
    out.append(text(LEFT + 4, y(1) - 5, "plain decoding", 11, "start"))
    for c in contexts:
        out.append(text(x(c), HEIGHT - BOTTOM + 18, contexts_text(c)))
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "tokens of context"))
    kinds = sorted(lines, key=lambda kind: (kind == "all", kind))  # the mean lies on top
    places = label_places([y(lines[kind][-1][1]) for kind in kinds])
    for number, (kind, place) in enumerate(zip(kinds, places)):
        bold = kind == "all"
        color, width = ("#222222", 3) if bold else (COLORS[number % len(COLORS)], 1.8)
        points = " ".join(f"{x(c):.1f},{y(r):.1f}" for c, r in lines[kind])
        out.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}"/>')
        out += [f'<circle cx="{x(c):.1f}" cy="{y(r):.1f}" r="{width + 1:g}" fill="{color}"/>' for c, r in lines[kind]]
        label = f"{kind} {lines[kind][-1][1]:.2f}x"
        out.append(text(WIDTH - RIGHT + 10, place + 4, label, 12, "start", color, "bold" if bold else "normal"))
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="?", default=str(ROOT / "docs/results/speedup.jsonl"))
    parser.add_argument("-o", "--output", default=str(ROOT / "docs/speedup.svg"))
    args = parser.parse_args()
    try:
        svg = draw(read(pathlib.Path(args.rows).read_text(encoding="utf-8"), args.rows))
        pathlib.Path(args.output).write_text(svg, encoding="utf-8")
    except OSError as e:
        sys.exit(str(e))


if __name__ == "__main__":
    main()
