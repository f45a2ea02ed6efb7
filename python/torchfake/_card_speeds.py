"""The peak speeds of the known cards, as published by their makers. Extends the table in `_cards`.

Memory bandwidth and the rate of ordinary arithmetic follow from the clocks, bus widths and multiprocessors in that
table. The rates of tensor cores are published for a different clock; they are for dense matrices, accumulated in
float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchfake._cards import CARDS, Card

_TERA = 1e12
_GIGA = 1e9

#: Float32 operations per cycle and multiprocessor, by compute capability.
_FLOAT32_OF_CYCLE = {(7, 0): 128, (7, 5): 128, (8, 0): 128, (8, 6): 256, (8, 9): 256, (9, 0): 256, (10, 0): 256}

#: The rate of float64 operations, as a fraction of float32's.
_FLOAT64_PART = {(7, 0): 1 / 2, (8, 0): 1 / 2, (9, 0): 1 / 2, (10, 0): 1 / 2}
_FLOAT64_PART_OF_OTHERS = 1 / 64


@dataclass(frozen=True, slots=True)
class Speed:
    """The peak speed of a card, per second.

    Attributes:
        tensor_cores: Operations on tensor cores, by dtype. "TF32" is for float32 if the program allows it. Tensor cores
            do not support dtypes that are missing here.
        float32: Operations outside of tensor cores, for any other dtype.
        float64: Operations in float64 outside of tensor cores.
        memory: Bytes read from and written to the card's memory.
        link: Bytes sent to other cards of the same machine, in one direction.
        host: Bytes copied between host and card, in one direction.
        network: Bytes sent to other machines, per card.
        launch: The minimum duration of a kernel, in seconds.
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
        """Operations per second in matrix products of a dtype, given by its name in PyTorch's C++."""
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


#: NVLink, or PCI Express for cards without it: bytes in one direction, which is half of the advertised number.
_NVLINK2, _NVLINK3, _NVLINK4, _NVLINK5 = 150 * _GIGA, 300 * _GIGA, 450 * _GIGA, 900 * _GIGA
_PCIE3, _PCIE4, _PCIE5 = 15.75 * _GIGA, 31.5 * _GIGA, 63 * _GIGA

#: Tensor cores, link and host, by the names in `CARDS`.
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
    """The speed of a card from the table, whatever its memory size was set to.

    Raises:
        ValueError: The card is not in the table.
    """
    for name, known in CARDS.items():
        if known.name == card.name:
            cores, link, host = _PUBLISHED[name]
            cycles = card.multi_processor_count * card.clock_rate * 1e3
            float32 = cycles * _FLOAT32_OF_CYCLE[card.capability]
            part = _FLOAT64_PART.get(card.capability, _FLOAT64_PART_OF_OTHERS)
            # Two transfers per memory clock cycle.
            memory = card.memory_clock_rate * 1e3 * 2 * card.memory_bus_width / 8
            return Speed(cores, float32, float32 * part, memory, link, host)
    raise ValueError(f"the speed of a card '{card.name}' is not known; known are {', '.join(CARDS)}")
