"""The command line: `bash run fuzz --calls 5000 --seed 3`, or one call: `bash run fuzz --line 'torch.ops.aten…'`."""

from __future__ import annotations

import argparse
import collections
import json
import os
import platform
import sys
import time

from .calls import parsed
from .campaign import Campaign, Report, run
from .observing import REAL, VARIANTS
from .servers import Limits
from .verdicts import FINDINGS, Finding, findings


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bash run fuzz", description=__doc__)
    parser.add_argument("--calls", type=int, default=6000, help="how many random calls; each is made nine times")
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same calls")
    parser.add_argument("--only", metavar="NAME", help="one operator or one overload: kron, kron.out")
    parser.add_argument("--line", help="one call, as a finding prints it: shows what every variant gives")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long a call may take")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser.parse_args()


def make_limits(seconds: float) -> Limits:
    """The address sanitizer reserves more address space than any limit would allow."""
    sanitized = "libasan" in os.environ.get("LD_PRELOAD", "")
    return Limits(seconds * 3, 0) if sanitized else Limits(seconds)


def check_heaps() -> None:
    """Makes glibc check the heaps of the servers on every free: a kernel that writes out of bounds is identified."""
    if platform.libc_ver()[0] == "glibc" and "LD_PRELOAD" not in os.environ:
        os.environ["LD_PRELOAD"] = "libc_malloc_debug.so.0"
        os.environ["MALLOC_CHECK_"] = "3"


def show_line(campaign: Campaign, line: str) -> int:
    call = parsed(line)
    reals, fakes = campaign._answers([call])
    for variant, answer in {REAL: reals[0], **fakes[0]}.items():
        ending = answer.died or ("no answer in time" if answer.hung else "")
        for observation in answer.observations:
            print(f"{variant:13} {observation}")
        if ending:
            print(f"{variant:13} {ending}")
    found = list(findings(call, reals[0], fakes[0]))
    for finding in found:
        print(f"{finding.kind} ({finding.variant})")
    return 1 if found else 0


def show(report: Report, as_json: bool, seconds: float) -> None:
    if as_json:
        summary = {
            "calls": report.calls,
            "accepted": report.accepted,
            "overloads": len(report.overloads),
            "accepted_overloads": len(report.accepted_overloads),
            "real_operator_died": report.excused,
            "seconds": round(seconds, 1),
            "explained": dict(report.explained),
            "findings": [_as_json(x) for x in report.found],
        }
        print(json.dumps(summary, indent=1))
        return
    for kind in FINDINGS:
        of_kind = [x for x in report.found if x.kind == kind]
        if of_kind:
            print(f"\n{kind}")
        for overload, some in sorted(_by_overload(of_kind).items()):
            print(f"  {overload} ({len(some)})  {some[0].variant}: {some[0].detail[:240]}")
            print(f"    {some[0].reproduce}")
    counted = collections.Counter(x.kind for x in report.found)
    print(
        f"\n{report.calls} calls of {len(report.overloads)} overloads in {seconds:.0f} s; the real operators accepted "
        f"{report.accepted} of them ({len(report.accepted_overloads)} overloads), and "
        f"{report.excused} ended their process"
    )
    for kind in FINDINGS:
        print(f"  {counted[kind]:6} {kind}")
    for reason, count in report.explained.items():
        print(f"  {count:6} known: {reason}")


def _as_json(finding: Finding) -> dict[str, str]:
    return {
        "kind": finding.kind,
        "variant": finding.variant,
        "call": str(finding.call),
        "detail": finding.detail,
    }


def _by_overload(some: list) -> dict[str, list]:
    found = collections.defaultdict(list)
    for finding in some:
        found[finding.call.overload].append(finding)
    return found


def main() -> int:
    given = arguments()
    check_heaps()
    campaign = Campaign(make_limits(given.seconds), VARIANTS)
    started = time.monotonic()
    try:
        if given.line:
            return show_line(campaign, given.line)

        shown = 0

        def progress(report: Report) -> None:
            nonlocal shown
            for finding in report.found[shown:]:
                print(json.dumps(_as_json(finding)), file=sys.stderr)
            shown = len(report.found)
            seconds = time.monotonic() - started
            print(f"{report.calls} calls, {len(report.found)} findings, {seconds:.0f} s", file=sys.stderr, flush=True)

        report = run(campaign, given.calls, given.seed, given.only, progress)
        show(report, given.json, time.monotonic() - started)
        return 1 if report.found else 0
    finally:
        campaign.close()


if __name__ == "__main__":
    sys.exit(main())
