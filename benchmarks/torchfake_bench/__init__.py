"""torchfake's benchmarks. `python benchmarks/run.py` runs them; see README.md."""
