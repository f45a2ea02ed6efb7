"""Finds C++ code that reads PyTorch's global settings, or what autograd tracks, without KernelEnvironment.

    python tools/check_global_state.py [PATH ...]

An outcome that depends on a setting missing from its cache key becomes wrong when the setting changes.
Only core/kernel_environment.cpp may read settings, because reading them there makes them part of the key (or keeps the
outcome out of the cache, for what no key contains). Prints
`file:line: what` for each other read, and exits with status 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READER = ROOT / "csrc/torchfake/core/kernel_environment.cpp"

# A read of process or thread state or of autograd's, in the spellings that PyTorch offers.
READS = re.compile(
    r"""
    \bglobalContext\b
  | \bget_(num_threads|num_interop_threads|default_dtype\w*|default_complex_dtype|autocast_dtype)\b
  | \bis_autocast_(enabled|cache_enabled)\b
  | \b(InferenceMode|GradMode|AutoFwGradMode)::is_enabled\b
  | \b(userEnabled|allow|benchmark|deterministic)(CuDNN|Mkldnn|NNPACK|\w*SDP|TF32\w*|Algorithms\w*|Fill\w*)\b
  | \b(linalgPreferredBackend|qEngine|float32MatmulPrecision)\b
  | \bgetenv\b
  | \b(_mm_getcsr|fegetround|fegetenv)\b
  | (?<=\.)requires_grad(?=\(\))
  | (?<=>)requires_grad(?=\(\))
  | \bATen/(Context|Parallel|autocast_mode)\.h\b
    """,
    re.VERBOSE,
)

# File, allowed reads, and why no cached outcome depends on them.
ALLOWED = [
    ("csrc/torchfake/devices/absent_devices.cpp", "getenv", "which guards to install, decided once when they are"),
    ("csrc/torchfake/memory/ledger.cpp", "GradMode::is_enabled", "the owner of a block, never an outcome"),
    ("csrc/torchfake/memory/memory_model.cpp", "GradMode::is_enabled", "the owner of a block, never an outcome"),
    ("csrc/torchfake/work/meter.cpp", "ATen/Context.h", "the cost of a call, never an outcome"),
    ("csrc/torchfake/work/meter.cpp", "globalContext", "whether products are computed in TF32, likewise"),
    ("csrc/torchfake/work/meter.cpp", "requires_grad", "whether the host records a node, likewise"),
    ("csrc/torchfake/work/meter.cpp", "GradMode::is_enabled", "likewise"),
    ("csrc/torchfake/dispatch/admission.cpp", "requires_grad", "of real tensors, calls on which are not cached"),
    ("csrc/torchfake/dispatch/allocating_call.h", "requires_grad", "who owns a block, likewise"),
    ("csrc/torchfake/convert/converter.cpp", "requires_grad", "of the tensor to convert; no call is in progress"),
    ("csrc/torchfake/torchfake.cpp", "requires_grad", "of the tensor to convert; no call is in progress"),
    ("csrc/torchfake/rules/symbolic_gradients.cpp", "requires_grad", "on autograd's keys, above the cache"),
    ("csrc/torchfake/rules/symbolic_gradients.cpp", "GradMode::is_enabled", "likewise"),
    ("csrc/torchfake/dispatch/meta_call.cpp", "ATen/autocast_mode.h", "names the dispatch keys of autocast"),
]


def reads_in(path: Path) -> list[tuple[int, str]]:
    """The forbidden reads of a file: line and spelling."""
    if path == READER:
        return []
    allowed = {what for file, what, _ in ALLOWED if path == ROOT / file}
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        code = line.partition("//")[0] if "#include" not in line else line
        found += [(number, match[0]) for match in READS.finditer(code) if match[0] not in allowed]
    return found


def sources(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted([*path.rglob("*.h"), *path.rglob("*.cpp")])


def main(arguments: list[str]) -> int:
    roots = [Path(argument).resolve() for argument in arguments] or [ROOT / "csrc", ROOT / "python/bindings"]
    count = 0
    for path in [source for root in roots for source in sources(root)]:
        for number, what in reads_in(path):
            count += 1
            print(f"{path}:{number}: {what}: read it through KernelEnvironment, which makes it part of the cache key")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
