"""The HTML page of a memory report, without scripts and external references.

Whatever comes from the program (names of modules, phases, operators, files) goes through `text`.
"""

from __future__ import annotations

import html
from typing import Any

#: Colours by owner, distinguishable on light and dark backgrounds.
_COLOURS = {
    "parameters": "#4269d0",
    "gradients": "#ff725c",
    "optimizer state": "#a463f2",
    "buffers": "#6cc5b0",
    "activations": "#efb118",
    "inputs": "#3ca951",
    "temporaries": "#9c6b4e",
    "workspaces": "#9498a0",
    "communication": "#e15fa3",
}
_PHASES = ("#7aa6d8", "#d8a07a", "#9ccf8a", "#c79ad6", "#d6cf7a")
_ROWS = 20  # in a table
_DEEPEST = 6  # the number of module levels drawn
_NARROWEST = 0.4  # minimum width in percent of a module that is drawn


def size(nbytes: int) -> str:
    """Formats a number of bytes: "1.50 GiB"."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} TiB"


def text(value: object) -> str:
    return html.escape(str(value), quote=True)


def page_of(memory: dict[str, Any], run: dict[str, Any] | None = None, more: str = "") -> str:
    """A complete page of `Report.data`, the report of `torchfake run` if there is one, and the sections in `more`."""
    title = "Memory" if run is None else f"Memory of {run['program']}"
    return _document(title, f"{'' if run is None else _run(run)}{_body(memory)}{more}")


def page_of_ranks(program: str, roles: list[tuple[str, str, dict[str, Any]]], left_out: str) -> str:
    """A page of several ranks: a table of them, and a collapsible section with the memory of each.

    Args:
        program: The name of the program.
        roles: For each role: its ranks, its name, and the report of one of its ranks.
        left_out: The ranks that did not run.
    """
    title = f"Memory of {program} by rank"
    used = {o for _, _, run in roles for device in run["memory"]["devices"] for o, n in device["owners"].items() if n}
    owners = [owner for owner in _COLOURS if owner in used]
    has_roles = any(role for _, role, _ in roles)
    rows: list[str] = []
    sections: list[str] = []
    for ranks, role, run in roles:
        devices = run["memory"]["devices"]
        for device in sorted(devices, key=lambda device: -int(device["peak"]))[:1]:
            rows.append(
                f"<tr><td>{text(ranks)}{f'<td>{text(role)}' if has_roles else ''}"
                f"<td class=number>{int(run['exit_code'])}"
                f"<td class=number>{size(device['peak'])}<td class=number>{size(device['reserved'])}"
                f"<td>{_verdict(device, run)}"
                + "".join(f"<td class=number>{size(device['owners'].get(owner, 0))}" for owner in owners)
            )
        opened = "" if sections else " open"
        name = f"{'Rank' if ranks.isdigit() else 'Ranks'} {text(ranks)}{f': {text(role)}' if role else ''}"
        sections.append(f"<details{opened}><summary>{name}</summary>{_body(run['memory'])}</details>")
    names = ("Exit", "Allocated", "Reserved", "", *owners)
    head = f"<th>Ranks{'<th>Role' if has_roles else ''}" + "".join(f"<th class=number>{text(name)}" for name in names)
    note = f"<p class=note>Did not run: {text(left_out)}" if left_out else ""
    return _document(title, f"{table(head, ''.join(rows))}{note}{''.join(sections)}")


def _document(title: str, body: str) -> str:
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{text(title)}</title>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style><main class=torchfake><h1>{text(title)}</h1>{body}</main></html>"
    )


def fragment_of(memory: dict[str, Any]) -> str:
    """The HTML of a report for a notebook."""
    return f"<style>{STYLE}</style><div class=torchfake>{_body(memory)}</div>"


def _body(memory: dict[str, Any]) -> str:
    parts = [_device(device) for device in memory["devices"]]
    if memory["host"]["peak"]:
        parts.append(f"<p>Host memory: {size(memory['host']['peak'])} at the peak.")
    return "".join(parts) or "<p>Nothing was allocated on a card."


def _run(run: dict[str, Any]) -> str:
    if run["out_of_memory"]:
        said = f"<p class=bad>Ended by {text(run['error'].splitlines()[0])}"
    else:
        said = f"<p>Ended with {run['exit_code']} after {run['seconds']:.1f} s." + (
            f" {text(run['error'].splitlines()[0])}" if run["error"] else ""
        )
    rows = "".join(
        f"<tr><td>cuda:{card['index']}<td>{text(card['name'])}<td class=number>{size(card['peak_allocated'])}"
        f"<td class=number>{'' if card['peak_reserved'] is None else size(card['peak_reserved'])}"
        f"<td class=number>{size(card['needed'])}<td class=number>{size(card['total_memory'])}"
        f"<td>{_verdict(card, run)}"
        for card in run["cards"]
    )
    head = (
        "<th>Card<th>Kind"
        + "".join(f"<th class=number>{name}" for name in ("Allocated", "Reserved", "Needed", "Of"))
        + "<th>"
    )
    return f"{said}{table(head, rows)}"


def _verdict(card: dict[str, Any], run: dict[str, Any]) -> str:
    """Whether a program fits on a card. With several cards, an out-of-memory error does not tell which one refused."""
    if card["needed"] > card["total_memory"]:
        return "<strong class=bad>does not fit</strong>"
    if run["out_of_memory"]:
        return "<strong class=bad>ran out of memory</strong>" if len(run["cards"]) == 1 else ""
    return "fits"


def table(head: str, rows: str) -> str:
    return f"<div class=scroll><table><tr>{head}</tr>{rows}</table></div>"


def _device(device: dict[str, Any]) -> str:
    owners = [owner for owner in _COLOURS if any(point["owners"].get(owner) for point in device["timeline"])]
    heading = f"{text(device['device'])}: {size(device['peak'])} at the peak"
    return (
        f"<section><h2>{heading}</h2><p>{size(device['reserved'])} reserved, of {size(device['total_memory'])}."
        f"{_timeline(device, owners)}{_owners(device, owners)}"
        f"<h3>Modules at the peak</h3>{_flame(device)}"
        f"<h3>Largest tensors at the peak</h3>{_largest(device)}"
        f"<h3>What measures would save of the peak, at most</h3>{_savings(device)}</section>"
    )


# ---- Timeline --------------------------------------------------------------------------------------------------------


def _timeline(device: dict[str, Any], owners: list[str]) -> str:
    """Allocated bytes over time, stacked by owner, above a strip of phases."""
    points = device["timeline"]
    if len(points) < 2:
        return ""
    top = max(sum(point["owners"].values()) for point in points) or 1
    width = len(points) - 1
    base = [0] * len(points)
    areas = []
    for owner in owners:
        upper = [below + point["owners"].get(owner, 0) for below, point in zip(base, points, strict=True)]
        edge = [f"{x},{1000 - y * 1000 / top:.1f}" for x, y in enumerate(upper)]
        back = [f"{x},{1000 - y * 1000 / top:.1f}" for x, y in enumerate(base)]
        name = f"<title>{owner}</title>"
        areas.append(f"<polygon points='{' '.join(edge + back[::-1])}' fill='{_COLOURS[owner]}'>{name}</polygon>")
        base = upper
    strip = "".join(
        f"<span style='left:{100 * begin / width:.2f}%;width:{100 * (end - begin) / width:.2f}%;"
        f"background:{colour}' title='{text(name or 'outside of phases')}'>{text(name)}</span>"
        for name, begin, end, colour in _spans(points)
    )
    return (
        f"<div class=chart><span class=top>{size(top)}</span>"
        f"<svg viewBox='0 0 {width} 1000' preserveAspectRatio=none role=img "
        f"aria-label='allocated memory over time, by owner'>{''.join(areas)}</svg><div class=phases>{strip}</div></div>"
    )


def _spans(points: list[dict[str, Any]]) -> list[tuple[str, int, int, str]]:
    """Phases as (name, first point, last point, colour)."""
    colours: dict[str, str] = {"": "transparent"}
    spans = []
    begin = 0
    for index in range(1, len(points) + 1):
        if index == len(points) or points[index]["phase"] != points[begin]["phase"]:
            name = points[begin]["phase"]
            colour = colours.setdefault(name, _PHASES[(len(colours) - 1) % len(_PHASES)])
            spans.append((name, begin, min(index, len(points) - 1), colour))
            begin = index
    return spans


# ---- Tables ----------------------------------------------------------------------------------------------------------


def _owners(device: dict[str, Any], owners: list[str]) -> str:
    peak = device["peak"] or 1
    rows = "".join(
        f"<tr><td><span class=key style='background:{_COLOURS[owner]}'></span>{owner}"
        f"<td class=number>{size(device['owners'][owner])}<td class=number>{device['owners'][owner] / peak:.1%}"
        for owner in owners
    )
    return table("<th>Owner<th class=number>At the peak<th class=number>Share", rows)


def _largest(device: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td class=number>{size(piece['nbytes'])}"
        f"<td><span class=key style='background:{_COLOURS[piece['owner']]}'></span>{text(piece['owner'])}"
        f"<td>{text(piece['op'])}<td class=long>{text(piece['module'])}"
        f"<td class=long>{text(piece['file'])}{':' + str(int(piece['line'])) if piece['file'] else ''}"
        for piece in device["largest"][:_ROWS]
    )
    return table("<th class=number>Size<th>Owner<th>Operator<th>Module<th>Line", rows)


def savings(owners: dict[str, int]) -> list[tuple[str, int, str]]:
    """(measure, upper bound of the bytes saved at the peak, explanation), estimated from the owners."""
    state, activations = owners["optimizer state"], owners["activations"]
    weights = owners["parameters"] + owners["gradients"] + state
    # Temporaries are assumed to have the size and dtype of what they are computed from.
    passing = activations + owners["temporaries"]
    return [
        ("checkpointing", activations, "all activations except the blocks' inputs and those of one block"),
        (
            "bfloat16 instead of float32",
            (weights + passing) // 2,
            "half of weights, gradients, optimizer state, activations and temporaries",
        ),
        ("8-bit optimizer", state * 3 // 4, "three quarters of the optimizer's state, if it is float32"),
        ("optimizer sharded over 8 cards", state * 7 // 8, "seven eighths of the optimizer's state"),
        ("fully_shard over 8 cards", weights * 7 // 8, "seven eighths of weights, gradients and optimizer state"),
        (
            "accumulation over 4 parts",
            (passing + owners["inputs"]) * 3 // 4,
            "three quarters of what a batch takes, including temporaries",
        ),
    ]


def _savings(device: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{name}<td class=number>{size(saved)}<td class=long>{why}"
        for name, saved, why in savings(device["owners"])
    )
    note = "<p class=note>Upper bounds from the owners at the peak. <code>torchfake fit</code> tries the measures."
    return table("<th>Measure<th class=number>At most<th>What it is", rows) + note


# ---- Modules ---------------------------------------------------------------------------------------------------------


def _flame(device: dict[str, Any]) -> str:
    """Modules as bars, with submodules below the module that contains them. Widths are proportional to bytes."""
    tree: dict[str, Any] = {"size": 0, "inside": {}}
    for path, nbytes in device["modules"].items():
        node = tree
        node["size"] += nbytes
        for name in path.split(".")[:_DEEPEST] if path else ["(outside of modules)"]:
            node = node["inside"].setdefault(name, {"size": 0, "inside": {}})
            node["size"] += nbytes
    total = tree["size"] or 1
    levels: list[list[str]] = []

    def draw(node: dict[str, Any], path: str, left: float, level: int) -> None:
        for number, (name, inner) in enumerate(sorted(node["inside"].items(), key=lambda item: -item[1]["size"])):
            width = 100 * inner["size"] / total
            if width >= _NARROWEST:
                while len(levels) <= level:
                    levels.append([])
                full = f"{path}.{name}" if path else name
                levels[level].append(
                    f"<span class=bar{number % 3} style='left:{left:.2f}%;width:{width:.2f}%' "
                    f"title='{text(full)}: {size(inner['size'])}'>{text(name)} {size(inner['size'])}</span>"
                )
                draw(inner, full, left, level + 1)
            left += width

    draw(tree, "", 0.0, 0)
    rows = "".join(f"<div class=level>{''.join(level)}</div>" for level in levels)
    return f"<div class=flame role=img aria-label='modules by bytes at the peak'>{rows}</div>"


STYLE = """
.torchfake { --ink: #1b1e23; --paper: #fff; --line: #d5d9df; --soft: #5c6470; --bad: #b3261e; --bar: 214 60% 86%;
  color-scheme: light dark; max-width: 64rem; margin: 0 auto; padding: 1rem; box-sizing: border-box;
  color: var(--ink); background: var(--paper); font: 16px/1.5 system-ui, sans-serif; }
html:has(> main.torchfake), html:has(> body > main.torchfake) { background: #fff; }
body:has(> main.torchfake) { margin: 0; background: inherit; }
.torchfake h1 { font-size: 1.6rem; line-height: 1.2; overflow-wrap: anywhere; }
.torchfake h2 { font-size: 1.25rem; margin: 2rem 0 0; } .torchfake h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
.torchfake p { margin: .25rem 0 .75rem; } .torchfake .note { color: var(--soft); font-size: .875rem; }
.torchfake .bad { color: var(--bad); }
.torchfake .chart { position: relative; margin: 1rem 0; }
.torchfake .chart .top { position: absolute; left: 0; top: -.25rem; font-size: .75rem; color: var(--soft); }
.torchfake svg { display: block; width: 100%; height: 15rem; border: solid var(--line); border-width: 1px 0; }
.torchfake .phases, .torchfake .level { position: relative; height: 1.5rem; margin-top: 2px; overflow: hidden; }
.torchfake .phases span, .torchfake .level span { position: absolute; box-sizing: border-box; height: 100%;
  padding: 0 .3rem; overflow: hidden; white-space: nowrap; text-overflow: ellipsis; font-size: .75rem;
  line-height: 1.5rem; color: #14171c; border-right: 1px solid var(--paper); }
.torchfake .level span { font-size: .8rem; }
.torchfake .bar0 { background: hsl(var(--bar)); } .torchfake .bar1 { background: hsl(150 40% 82%); }
.torchfake .bar2 { background: hsl(38 75% 84%); }
.torchfake .scroll { overflow-x: auto; }
.torchfake summary { margin: 1.5rem 0 0; font-size: 1.1rem; font-weight: 600; cursor: pointer; }
.torchfake table { border-collapse: collapse; width: 100%; margin: .5rem 0; font-variant-numeric: tabular-nums;
  font-size: .9rem; }
.torchfake td, .torchfake th { padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left;
  white-space: nowrap; background: none; vertical-align: top; }
.torchfake .long { white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
.torchfake .number { text-align: right; }
.torchfake .key { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px; }
@media (max-width: 40rem) { .torchfake .long { min-width: 16rem; } }
@media (prefers-color-scheme: dark) {
  .torchfake { --ink: #e6e8ec; --paper: #16181d; --line: #363b44; --soft: #9aa3b0; --bad: #ff8a80; --bar: 214 35% 62%; }
  html:has(> main.torchfake), html:has(> body > main.torchfake) { background: #16181d; }
  .torchfake .bar1 { background: hsl(150 25% 55%); } .torchfake .bar2 { background: hsl(38 40% 58%); }
}
"""
