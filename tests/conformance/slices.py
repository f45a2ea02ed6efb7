"""The slice of the conformance space that one commit is tested with, drawn by the commit's hash."""

from __future__ import annotations

#: The share of the cases of suites 1 and 4 and of the modules in suite 3; the rest of suites 2 and 3 always runs whole.
#: Limited by the time that continuous integration has.
SHARE = 0.03
