"""The part of the whole conformance space that one commit is tested with, drawn by the commit's hash."""

from __future__ import annotations

#: Of the cases of suites 1 and 4 and of the modules in suite 3; the rest of suites 2 and 3 is always run whole. Bounded
#: by what continuous integration has time for.
SHARE = 0.03
