"""`python -m torchfake`, the same as the `torchfake` command."""

from torchfake.cli import main

main()
