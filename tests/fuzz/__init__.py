"""An operator fuzzer: random calls of every aten overload, on fakes and for real, in processes that may crash.

    bash run fuzz --calls 20000 --seed 7

A call is a line of Python. The steps, one module each:

1. `tensors`, `arguments`: random arguments from an overload's schema, most of which are accepted.
2. `calls`: the line; accepted calls repeated with one argument wrong, or with `out=` of every kind.
3. `observing`: makes a call, for real or in a mode, and describes the result.
4. `servers`: makes many calls in a forked process, and reports which one ended it.
5. `verdicts`: compares a call on fakes with the real one, and the second call with the first.
6. `known_deviations`: known differences in sizes or refusals, with reasons. Nothing excuses a crash.
"""
