"""The section of a report on step time: HTML in the style of `_memory_page`."""

from __future__ import annotations

from typing import Any

from torchfake._memory_page import STYLE, size, table, text

_ROWS = 20


def shown_seconds(seconds: float) -> str:
    """A time with a suitable unit: "1.23 ms"."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.2f} {name}"
    return f"{seconds * 1e6:.1f} us"


def basis_of(data: dict[str, Any]) -> str:
    """What an estimate rests on, and its error."""
    basis = {
        "lower bound": "a lower bound from the roofline, not fitted to a recording of the card",
        "by analogy": "fitted to a recording of another card and scaled by published speeds; not checked on this one",
        "fitted": "fitted to a recording of the card",
    }[data["basis"]]
    error = data["error"]
    return basis if error is None else f"{basis}, {error:.0%} off in the median of programs not used for it"


def host_of(data: dict[str, Any]) -> str:
    """The host's part of an estimate."""
    waits = "the card waits for it" if data["on_host"] >= data["seconds"] else "hidden by the card's own"
    return f"{shown_seconds(data['on_host'])} on the host, to call operators and launch kernels: {waits}"


def fragment_of(data: dict[str, Any]) -> str:
    """The HTML of an estimate for a notebook."""
    return f"<style>{STYLE}</style><div class=torchfake>{section_of(data)}</div>"


def section_of(data: dict[str, Any]) -> str:
    """The section of a page that shows `Estimate.data`."""
    is_bound = data["basis"] == "lower bound"
    basis = basis_of(data)
    steps = f" for {data['steps']} steps" if data["steps"] > 1 else ""
    counted = (
        f"{data['flops']:.3g} FLOP, {size(data['nbytes'])} of memory moved, {data['launches']:,} kernels"
        + (f", {size(data['traffic'])} sent to other cards" if data["traffic"] else "")
        + (f"; {data['uncounted']} calls not counted" if data["uncounted"] else "")
    )
    parts = "".join(
        f"<h3>By {name}</h3>{_shares(title, data[key])}"
        for name, title, key in (
            ("phase", "Phase", "phases"),
            ("what they wait for", "Limit", "limits"),
            ("family", "Family", "families"),
            ("operator", "Operator", "operators"),
            ("module", "Module", "modules"),
        )
    )
    return (
        f"<section><h2>Time on {text(data['card'])}: {'at least' if is_bound else 'about'} "
        f"{shown_seconds(data['seconds'])}{steps}</h2><p>{basis[0].upper()}{basis[1:]}.<p>{counted}."
        f"{f'<p>{host_of(data)}.' if data['on_host'] else ''}{parts}</section>"
    )


def _shares(title: str, seconds: dict[str, float]) -> str:
    total = sum(seconds.values()) or 1.0
    rows = "".join(
        f"<tr><td class=long>{text(name or '(outside of modules)')}<td class=number>{shown_seconds(value)}"
        f"<td class=number>{value / total:.1%}"
        for name, value in list(seconds.items())[:_ROWS]
    )
    return table(f"<th>{title}<th class=number>Time<th class=number>Share", rows)
