"""`fake_mode` without draws, for tests about unknown values: small random tensors are unknown, too."""

from __future__ import annotations

from typing import Any

import torchfake


class fake_mode(torchfake.fake_mode):
    def __init__(self, **options: Any) -> None:
        super().__init__(drawn_values_limit=0, **options)
