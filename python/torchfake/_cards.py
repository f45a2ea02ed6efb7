"""The cards that a mode can claim: a table of known ones, and the properties a program can query.

The row of the H200 was read from a real card; the others contain what PyTorch reports for them, which differs by a few
megabytes between drivers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import torch

from torchfake import _C

_MIB = 1 << 20
_GIB = 1 << 30
_MOST = 127  # the largest number of indices that PyTorch supports

#: The CUDA version that `torch.version.cuda` reports in a mode with cards.
CUDA_VERSION = "13.0"
#: The cuDNN version that `torch.backends.cudnn.version()` reports there.
CUDNN_VERSION = 91900
#: The NCCL version.
NCCL_VERSION = (2, 28, 9)
#: The architectures in PyTorch's own builds for that CUDA version.
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
#: The same for builds for cards before Turing, which CUDA 13 no longer supports.
OLDER_CUDA_VERSION = "12.6"
OLDER_ARCHITECTURES = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")


@dataclass(frozen=True, slots=True)
class Card:
    """A kind of GPU, as described by `torch.cuda.get_device_properties`."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    L2_cache_size: int
    shared_memory_per_multiprocessor: int
    shared_memory_per_block_optin: int
    max_threads_per_multi_processor: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    max_threads_per_block: int = 1024
    warp_size: int = 32
    is_integrated: int = 0
    is_multi_gpu_board: int = 0

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability."""
        return (self.major, self.minor)


def _card(
    name: str,
    capability: tuple[int, int],
    mebibytes: int,
    processors: int,
    l2_mebibytes: int,
    shared_kibibytes: int,
    threads: int,
    clocks: tuple[int, int],
    bus: int,
) -> Card:
    return Card(
        name,
        *capability,
        total_memory=mebibytes * _MIB,
        multi_processor_count=processors,
        L2_cache_size=l2_mebibytes * _MIB,
        shared_memory_per_multiprocessor=shared_kibibytes << 10,
        # One kibibyte per processor is reserved by the system, except on Volta and Turing.
        shared_memory_per_block_optin=(shared_kibibytes - (1 if capability >= (8, 0) else 0)) << 10,
        max_threads_per_multi_processor=threads,
        clock_rate=clocks[0],
        memory_clock_rate=clocks[1],
        memory_bus_width=bus,
    )


#: The known cards, by the names that `gpus=` takes.
CARDS: dict[str, Card] = {
    "H200": replace(
        _card("NVIDIA H200", (9, 0), 143155, 132, 60, 228, 2048, (1980000, 3201000), 6016), total_memory=150_109_880_320
    ),
    "H100-80GB": _card("NVIDIA H100 80GB HBM3", (9, 0), 81079, 132, 50, 228, 2048, (1980000, 2619000), 5120),
    "H100-94GB": _card("NVIDIA H100 NVL", (9, 0), 95320, 132, 60, 228, 2048, (1785000, 2619000), 6016),
    "A100-40GB": _card("NVIDIA A100-SXM4-40GB", (8, 0), 40338, 108, 40, 164, 2048, (1410000, 1215000), 5120),
    "A100-80GB": _card("NVIDIA A100-SXM4-80GB", (8, 0), 81050, 108, 40, 164, 2048, (1410000, 1593000), 5120),
    "B200": _card("NVIDIA B200", (10, 0), 182642, 148, 126, 228, 2048, (1965000, 3996000), 7680),
    "L40S": _card("NVIDIA L40S", (8, 9), 45457, 142, 96, 100, 1536, (2520000, 9001000), 384),
    "L4": _card("NVIDIA L4", (8, 9), 22563, 58, 48, 100, 1536, (2040000, 6251000), 192),
    "A10": _card("NVIDIA A10", (8, 6), 22515, 72, 6, 100, 1536, (1695000, 6251000), 384),
    "T4": _card("Tesla T4", (7, 5), 15102, 40, 4, 64, 1024, (1590000, 5001000), 256),
    "RTX-4090": _card("NVIDIA GeForce RTX 4090", (8, 9), 24217, 128, 72, 100, 1536, (2520000, 10501000), 384),
    "RTX-3090": _card("NVIDIA GeForce RTX 3090", (8, 6), 24259, 82, 6, 100, 1536, (1695000, 9751000), 384),
    "V100": _card("Tesla V100-SXM2-16GB", (7, 0), 16160, 80, 6, 96, 2048, (1530000, 877000), 4096),
}

_ALIASES = {"H100": "H100-80GB", "A100": "A100-80GB", "RTX4090": "RTX-4090", "RTX3090": "RTX-3090"}

#: The memory that a process takes before its first tensor, for CUDA's context. Read from an H200.
CONTEXT_BYTES = 552_402_944

#: The kind of card that a mode claims by default (docs/decisions/0009).
DEFAULT = CARDS["H200"]


def find_card(name: str) -> Card:
    """The card of that name, ignoring case.

    Raises:
        ValueError: There is no such card.
    """
    wanted = name.strip().upper().replace(" ", "-").removeprefix("NVIDIA-")
    wanted = _ALIASES.get(wanted, wanted)
    if wanted not in CARDS:
        raise ValueError(f"there is no card '{name}' in the table; the known cards are {', '.join(CARDS)}")
    return CARDS[wanted]


def parse_size(text: str | int) -> int:
    """A number of bytes: 24GiB, 80GB, 512MiB, or a plain number.

    Raises:
        ValueError: The text has another form.
    """
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": _MIB, "GIB": _GIB}
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", str(text))
    if found is None or found[2].upper() not in units:
        raise ValueError(f"'{text}': expected a size in bytes, such as 24GiB, 80GB or a number")
    size = int(float(found[1]) * units[found[2].upper()])
    if size <= 0:
        raise ValueError(f"'{text}': expected a size above 0")
    return size


def parse_gpus(text: str) -> tuple[Card, ...]:
    """The cards of a machine, from `H200` or `8xH100-80GB`.

    Raises:
        ValueError: The text has another form, or names an unknown card.
    """
    count, times, name = text.strip().partition("x")
    if not times or not count.isdigit():
        count, name = "1", text
    if not 1 <= int(count) <= _MOST:
        raise ValueError(f"gpus='{text}': expected 1 to {_MOST} cards")
    return (find_card(name),) * int(count)


class Cards:
    """The cards of a mode: those requested, or as many of the default kind as have been claimed."""

    def __init__(self, asked: tuple[Card, ...] | None, *, unlimited: bool = False) -> None:
        self._asked = asked
        self.are_unlimited = unlimited
        #: Workspace sizes set by the program, by library.
        self.workspace_sizes: dict[str, int] = {}
        #: What synchronization should cause: 0 nothing, 1 a warning, 2 an error.
        self.sync_debug_mode = 0
        #: The number of open nvtx ranges.
        self.ranges = 0
        #: The memory returned by `torch.cuda.caching_allocator_alloc`, by address.
        self.given_out: dict[int, torch.Tensor] = {}
        #: The allocator of the requested cards.
        self.model: _C.MemoryModel | None = None
        #: Counts the memory on cards that were not requested, which never refuse an allocation.
        self.counter: _C.CardMemory | None = None
        if asked:
            self.model = _C.MemoryModel(
                total=asked[0].total_memory, capability=asked[0].major, context=CONTEXT_BYTES, unlimited=unlimited
            )
        else:
            self.counter = _C.CardMemory()

    def memory_of(self, state: _C.ModeState) -> None:
        """Attaches the memory model of these cards to a mode's storages."""
        if self.model is not None:
            _C.set_memory_model(state, self.model)

    def allocated(self, index: int) -> tuple[int, int]:
        """The bytes allocated on a card now, and their peak."""
        if self.model is not None:
            statistic = self.model.stats(f"cuda:{index}")["allocated_bytes"]["all"]
            return statistic["current"], statistic["peak"]
        assert self.counter is not None
        return self.counter.allocated(index), self.counter.peak(index)

    def peak_reserved(self, index: int) -> int | None:
        """The peak of the bytes reserved by PyTorch's allocator on a card; None without a memory model."""
        if self.model is None:
            return None
        peak: int = self.model.stats(f"cuda:{index}")["reserved_bytes"]["all"]["peak"]
        return peak

    def needed(self, index: int) -> int:
        """The peak of allocated bytes of a card plus the CUDA context."""
        return self.allocated(index)[1] + CONTEXT_BYTES

    def out_of_memory_errors(self) -> int:
        """The number of allocations that cards refused, whether or not the program recovered."""
        if self.model is None:
            return 0
        return sum(self.model.stats(f"cuda:{index}")["num_ooms"] for index in range(len(self)))

    @classmethod
    def of(
        cls, gpus: str | None, gpu_memory: str | int | None, *, faked: bool = True, unlimited: bool = False
    ) -> Cards:
        """The cards of a mode, from its options. With `faked=False` there are none.

        Raises:
            ValueError: An option contains an unknown card or an invalid size.
        """
        if not faked:
            return cls(())
        if gpus is None and gpu_memory is None:
            return cls(None)
        asked = (DEFAULT,) if gpus is None else parse_gpus(gpus)
        if gpu_memory is not None:
            asked = tuple(replace(card, total_memory=parse_size(gpu_memory)) for card in asked)
        return cls(asked, unlimited=unlimited)

    def __deepcopy__(self, memo: dict[int, object]) -> Cards:
        return self  # the copy of a mode claims the same cards

    @property
    def are_limited(self) -> bool:
        """Whether a number of cards was requested, so that there are no other indices and no more memory."""
        return self._asked is not None

    def __len__(self) -> int:
        if self._asked is not None:
            return len(self._asked)
        return max(_C.claimed_device_count(), _C.exchange_device("cuda", None) + 1)

    def __getitem__(self, index: int) -> Card:
        if not 0 <= index < (_MOST if self._asked is None else len(self._asked)):
            raise AssertionError("Invalid device id")  # the error of torch.cuda
        return DEFAULT if self._asked is None else self._asked[index]

    @property
    def cuda_version(self) -> str:
        """The CUDA version of PyTorch builds for such cards."""
        return OLDER_CUDA_VERSION if self[0].capability < (7, 5) else CUDA_VERSION

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures that such a build contains."""
        return OLDER_ARCHITECTURES if self[0].capability < (7, 5) else ARCHITECTURES

    def describe(self) -> str:
        """Their number and kind, in words."""
        names = [self[index].name for index in range(len(self))]
        return f"{len(names)} x {names[0]}" if names else "none"
