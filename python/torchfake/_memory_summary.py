"""The table of `torch.cuda.memory_summary`, computed from statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

_SIZES = [
    ("allocated_bytes", "Allocated memory"),
    ("active_bytes", "Active memory"),
    ("requested_bytes", "Requested memory"),
    ("reserved_bytes", "GPU reserved memory"),
    ("inactive_split_bytes", "Non-releasable memory"),
]
_COUNTS = [
    ("allocation", "Allocations"),
    ("active", "Active allocs"),
    ("segment", "GPU reserved segments"),
    ("inactive_split", "Non-releasable allocs"),
]
_OVERSIZE = [("oversize_allocations", "Oversize allocations"), ("oversize_segments", "Oversize GPU segments")]
_POOLS = [("large_pool", "      from large pool"), ("small_pool", "      from small pool")]


def _size(value: int, unit_of: float) -> str:
    units = ["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"]
    unit = 0
    while unit_of >= 768 * 1024 and unit + 1 < len(units):
        unit, value, unit_of = unit + 1, value // 1024, unit_of / 1024
    return f"{value:6d} {units[unit]}"


def _count(value: int, unit_of: float) -> str:
    units = [" ", "K", "M"]
    unit = 0
    while unit_of >= 750 * 1000 and unit + 1 < len(units):
        unit, value, unit_of = unit + 1, value // 1000, unit_of / 1000
    return f"{value:7d} {units[unit]} "


def summary_of(stats: Mapping[str, int], device: int, abbreviated: bool) -> str:
    """The text that PyTorch prints for these statistics."""
    thick, thin = "=" * 75, "-" * 75
    ooms, retries = stats.get("num_ooms", 0), stats.get("num_alloc_retries", 0)
    lines = [
        thick,
        f" {'':16} PyTorch CUDA memory summary, device ID {device:<17d} ",
        thin,
        f"  {'':9} CUDA OOMs: {ooms:<12d} | {'':6} cudaMalloc retries: {retries:<8d}  ",
        thick,
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ",
    ]

    def row(title: str, key: str, units: str, show: Callable[[int, float], str]) -> str:
        parts = ("current", "peak", "allocated", "freed")
        cells = " | ".join(show(stats[f"{key}.{part}"], stats[f"{units}.{part}"]) for part in parts)
        return f" {title:<21} | {cells} "

    for metrics, show in ((_SIZES, _size), (_COUNTS, _count)):
        for key, title in metrics:
            lines += [thin, row(title, f"{key}.all", f"{key}.all", show)]
            if not abbreviated:
                # In the units used for both pools together.
                lines += [row(name, f"{key}.{pool}", f"{key}.all", show) for pool, name in _POOLS]
    for key, title in _OVERSIZE:
        lines += [thin, row(title, key, key, _count)]
    return "|" + "|\n|".join([*lines, thick]) + "|\n"
