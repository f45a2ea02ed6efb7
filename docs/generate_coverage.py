"""Writes docs/coverage.md: for every operator of PyTorch, which implementation handles it on fakes.

python docs/generate_coverage.py [--check]

With --check, reports whether the table matches the installed engine.
"""

from __future__ import annotations

import collections
import sys
from pathlib import Path

import torch

from torchfake import _C

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from provenance import mark, provenance, sentence

PAGE = Path(__file__).with_name("coverage.md")

MEANING = {
    "rule": "a kernel of torchfake's own, in `csrc/torchfake/rules`",
    "native": "PyTorch's C++ meta kernel",
    "composite": "the composite that every backend runs, in C++",
    "values": "the real CPU kernel where all values are known, otherwise a typed error",
    "python": "Python's kernel on the Meta key",
    "decomposition": "PyTorch decomposes it before the engine sees it",
    "zeros": "the real CPU kernel on zeros, for small inputs",
    "not at all": "`UnsupportedOperatorException`",
}


def depends_on_values(name: str) -> bool:
    """Whether the result depends on values, so that no kernel on fakes can compute it."""
    tags = torch._C._get_operation_overload(*name_and_overload(name))[2]
    return torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags


def name_and_overload(name: str) -> tuple[str, str]:
    base, _, overload = name.partition(".")
    return base, overload


def answered_by(name: str, own: dict[str, bool]) -> str:
    def has(key: str) -> bool:
        return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)

    if name in own:
        return "rule" if own[name] else "native"
    if has("CompositeImplicitAutograd") and not has("Meta"):
        return "decomposition"
    if depends_on_values(name):
        return "values"
    if has("CompositeExplicitAutograd") or has("CompositeExplicitAutogradNonFunctional"):
        return "composite"
    if has("Meta"):
        return "python"
    return "zeros" if has("CPU") else "not at all"


def tables() -> list[str]:
    """The part of the page that only depends on the engine."""
    own = _C.list_native_kernels()
    names = sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    rows = {name: answered_by(name, own) for name in names}
    counts = collections.Counter(rows.values())
    return [
        "| answered by | operators | meaning |",
        "|---|---|---|",
        *(f"| {kind} | {counts[kind]} | {meaning} |" for kind, meaning in MEANING.items()),
        "",
        "| operator | answered by |",
        "|---|---|",
        *(f"| `{name}` | {kind} |" for name, kind in rows.items()),
        "",
    ]


def page() -> str:
    source = provenance()
    lines = [
        "# What answers for each operator",
        "",
        mark(source["commit"]),
        "",
        f"{sentence(source)} The order of choice is that of",
        "[the life of an operator call](../csrc/torchfake/README.md). In a process without Python the operators marked",
        "`python` have no kernel but the one on zeros.",
        "",
        *tables(),
    ]
    return "\n".join(lines)


def main() -> None:
    if "--check" in sys.argv[1:]:
        written, release = PAGE.read_text(), torch.__version__.partition("+")[0]
        if f"PyTorch {release} " not in written:
            print(f"{PAGE.name} is of another PyTorch than {release}")
        elif "\n".join(tables()) not in written:
            sys.exit(f"{PAGE.name} is out of date: python docs/generate_coverage.py")
        return
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
