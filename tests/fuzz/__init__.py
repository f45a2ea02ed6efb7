"""A fuzzer of operators: random calls of every aten overload, on fakes and for real, in processes that may die.

    bash run fuzz --calls 20000 --seed 7

A call is a line of Python. The steps, a module each:

1. `tensors`, `arguments`: random arguments by an overload's schema, likely to be accepted as a rule.
2. `calls`: the line; calls that were accepted, made again with one argument wrong, or with `out=` of every kind.
3. `observing`: makes a call, for real or in a mode, and describes what came out.
4. `servers`: makes many calls in a forked process, and says which one ended it.
5. `verdicts`: holds a call on fakes against the real one, and the second time against the first.
6. `known_deviations`: where sizes or refusals are known to differ, and why. Nothing excuses a crash.
"""
