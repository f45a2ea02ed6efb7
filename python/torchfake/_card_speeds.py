"""How fast the known cards are at most: what their makers publish, beside the table of `_cards`.

The bandwidth of memory and the rate of ordinary arithmetic follow from clocks, buses and multiprocessors of that table.
Products on tensor cores are published for a clock of their own: dense (not sparse), accumulated in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchfake._cards import CARDS, Card

_TERA = 1e12
_GIGA = 1e9

#: Multiplications and additions of float32 in a cycle of a multiprocessor, by compute capability.
_FLOAT32_OF_CYCLE = {(7, 0): 128, (7, 5): 128, (8, 0): 128, (8, 6): 256, (8, 9): 256, (9, 0): 256, (10, 0): 256}

#: Those of float64, as a part of float32's.
_FLOAT64_PART = {(7, 0): 1 / 2, (8, 0): 1 / 2, (9, 0): 1 / 2, (10, 0): 1 / 2}
_FLOAT64_PART_OF_OTHERS = 1 / 64


@dataclass(frozen=True, slots=True)
class Speed:
    """The most that a card can do in a second.

    Attributes:
        tensor_cores: Multiplications and additions of products on tensor cores, by dtype; "TF32" are float32's where
            the program allows it. A dtype that is not there has none.
        float32: The same of ordinary arithmetic, for any other dtype.
        float64: Likewise.
        memory: Bytes read and written.
        link: Bytes that a card sends to the others of its machine, in one direction.
        host: Bytes between the host and the card, in one direction.
        network: Bytes that a card sends to other machines.
        launch: Seconds that a kernel takes, however little it does.
    """

    tensor_cores: dict[str, float]
    float32: float
    float64: float
    memory: float
    link: float
    host: float
    network: float = 50 * _GIGA
    launch: float = 2e-6

    def products(self, dtype: str, may_use_tf32: bool) -> float:
        """Multiplications and additions of products of a dtype, as PyTorch's C++ names it, in a second."""
        if dtype == "Float" and may_use_tf32:
            return self.tensor_cores.get("TF32", self.float32)
        usual = self.float64 if dtype in ("Double", "ComplexDouble") else self.float32
        return self.tensor_cores.get(dtype, usual)


def _tensor_cores(
    half: float, tf32: float = 0, float8: float = 0, int8: float = 0, float64: float = 0, *, bfloat16: bool = True
) -> dict[str, float]:
    found = {"Half": half, "TF32": tf32, "Char": int8, "Byte": int8, "Double": float64}
    found |= {"BFloat16": half} if bfloat16 else {}
    found |= {name: float8 for name in ("Float8_e4m3fn", "Float8_e5m2")}
    return {name: rate * _TERA for name, rate in found.items() if rate}


#: NVLink, or PCI Express where a card has no other: bytes in one direction, a half of what is advertised.
_NVLINK2, _NVLINK3, _NVLINK4, _NVLINK5 = 150 * _GIGA, 300 * _GIGA, 450 * _GIGA, 900 * _GIGA
_PCIE3, _PCIE4, _PCIE5 = 15.75 * _GIGA, 31.5 * _GIGA, 63 * _GIGA

#: By the names of `CARDS`: tensor cores, link, host.
_PUBLISHED: dict[str, tuple[dict[str, float], float, float]] = {
    "H200": (_tensor_cores(989.4, 494.7, 1978.9, 1978.9, 66.9), _NVLINK4, _PCIE5),
    "H100-80GB": (_tensor_cores(989.4, 494.7, 1978.9, 1978.9, 66.9), _NVLINK4, _PCIE5),
    "H100-94GB": (_tensor_cores(835.5, 417.5, 1670.5, 1670.5, 60), 300 * _GIGA, _PCIE5),
    "A100-40GB": (_tensor_cores(312, 156, 0, 624, 19.5), _NVLINK3, _PCIE4),
    "A100-80GB": (_tensor_cores(312, 156, 0, 624, 19.5), _NVLINK3, _PCIE4),
    "B200": (_tensor_cores(2250, 1125, 4500, 4500, 37), _NVLINK5, _PCIE5),
    "L40S": (_tensor_cores(362, 183, 733, 733), _PCIE4, _PCIE4),
    "L4": (_tensor_cores(121, 60, 242.5, 242.5), _PCIE4, _PCIE4),
    "A10": (_tensor_cores(125, 62.5, 0, 250), _PCIE4, _PCIE4),
    "T4": (_tensor_cores(65, 0, 0, 130, bfloat16=False), _PCIE3, _PCIE3),
    "RTX-4090": (_tensor_cores(165.2, 82.6, 330.3, 660.6), _PCIE4, _PCIE4),
    "RTX-3090": (_tensor_cores(71, 35.6, 0, 284), _PCIE4, _PCIE4),
    "V100": (_tensor_cores(125, bfloat16=False), _NVLINK2, _PCIE3),
}


def speed_of(card: Card) -> Speed:
    """The speed of a card of the table, whatever memory it was given.

    Raises:
        ValueError: The table has no such kind.
    """
    for name, known in CARDS.items():
        if known.name == card.name:
            cores, link, host = _PUBLISHED[name]
            cycles = card.multi_processor_count * card.clock_rate * 1e3
            float32 = cycles * _FLOAT32_OF_CYCLE[card.capability]
            part = _FLOAT64_PART.get(card.capability, _FLOAT64_PART_OF_OTHERS)
            # Two transfers for each cycle of the memory's clock.
            memory = card.memory_clock_rate * 1e3 * 2 * card.memory_bus_width / 8
            return Speed(cores, float32, float32 * part, memory, link, host)
    raise ValueError(f"the speed of a card '{card.name}' is not known; it is for {', '.join(CARDS)}")
