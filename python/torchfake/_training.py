"""What training uses besides operators: backward, modules, initialisers, losses, optimizers and data loading."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import cudnn
from torch.utils._pytree import tree_leaves

from torchfake import _C
from torchfake.fake import find_fake
from torchfake.modes import in_mode_of, no_fake_mode

# ---- Backward --------------------------------------------------------------------------------------------------------
#
# Backward has to run on fakes outside the mode too, whatever device they claim.

_FAKE = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("Fake"))
_NO_DISPATCH = torch.Tensor.__torch_dispatch__


def engine_run_backward(
    original: Callable[..., tuple[torch.Tensor, ...]], t_outputs: Sequence[Any], *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, ...]:
    fake = _find_fake(t_outputs)
    if fake is None and any(map(_claims_absent_device, t_outputs)):
        # PyTorch's own fakes. Autograd needs the mode to find the device; the Fake key is excluded from dispatch.
        entered = _C.EnteredFakeMode(_C.ModeState(known_values=0))
        try:
            with torch._C._ExcludeDispatchKeyGuard(_FAKE):
                return original(t_outputs, *args, **kwargs)
        finally:
            entered.leave()
    if fake is None:
        # A real graph stays real, even inside the mode.
        with no_fake_mode() if _C.in_fake_mode() else contextlib.nullcontext():
            return original(t_outputs, *args, **kwargs)
    # Backward creates tensors on the devices of its inputs, and these have to be fake.
    with in_mode_of(fake), _no_search_for_nan():
        return original(t_outputs, *args, **kwargs)


def jvp(original: Callable[..., Any], func: Callable[..., Any], primals: Any, *args: Any, **kwargs: Any) -> Any:
    """Forward-mode differentiation creates tangents of zeros, which have to be fake, as in backward."""
    fake = find_fake(tree_leaves(primals))
    with contextlib.nullcontext() if fake is None else in_mode_of(fake):
        return original(func, primals, *args, **kwargs)


@contextlib.contextmanager
def _no_search_for_nan() -> Iterator[None]:
    """Turns off the NaN check of `detect_anomaly`, which needs values. Its other checks work on fakes."""
    searches = torch.is_anomaly_check_nan_enabled()
    if searches:
        torch.set_anomaly_enabled(torch.is_anomaly_enabled(), False)
    try:
        yield
    finally:
        if searches:
            torch.set_anomaly_enabled(torch.is_anomaly_enabled(), True)


def _find_fake(outputs: Sequence[Any]) -> torch.Tensor | None:
    """The first fake among `outputs`, or in a plain attribute of a wrapper among them."""
    fake = find_fake(outputs)
    return find_fake(chain.from_iterable(map(_attributes, outputs))) if fake is None else fake


def _attributes(output: Any) -> Iterable[object]:
    dispatches = isinstance(output, torch.Tensor) and type(output).__torch_dispatch__ is not _NO_DISPATCH
    return vars(output).values() if dispatches else ()


def _claims_absent_device(output: Any) -> bool:
    return isinstance(output, torch.Tensor) and _C.is_absent(output.device.type)


def make_grads(
    original: Callable[..., tuple[Any, ...]], outputs: Sequence[Any], *args: Any, **kwargs: Any
) -> tuple[Any, ...]:
    with no_fake_mode() if _find_fake(outputs) is None else contextlib.nullcontext():
        return original(outputs, *args, **kwargs)


# allow_mutation_on_saved_tensors identifies tensors by these two. A fake has no address; its position in its storage is
# used instead.
def _address(fake: torch.Tensor) -> int:
    return hash((fake.untyped_storage()._cdata, fake.storage_offset()))


def get_tid(original: Callable[..., tuple[int, int, int]], tensor: torch.Tensor) -> tuple[int, int, int]:
    return (id(tensor), _address(tensor), tensor._version) if _C.is_plain_fake(tensor) else original(tensor)


def get_sid(original: Callable[..., tuple[int, int]], tensor: torch.Tensor) -> tuple[int, int]:
    return (_address(tensor), tensor._version) if _C.is_plain_fake(tensor) else original(tensor)


# ---- Modules and initialisers ----------------------------------------------------------------------------------------
#
# `module.to()` that turns real parameters into fakes gives the module new parameters; the real ones stay real.
# Recurrent modules on a GPU hold their weights in one cuDNN buffer, and compare their addresses.


def make_is_compatible(original: Callable[[Tensor, Tensor], bool]) -> Callable[[Tensor, Tensor], bool]:
    """Modules check whether `input.data = from_` is possible, which it is not between a real tensor and a fake."""

    # A Python function with these parameters, as PyTorch's compiler expects.
    @functools.wraps(original)
    def is_compatible(input: Tensor, from_: Tensor) -> bool:
        return _C.is_plain_fake(input) == _C.is_plain_fake(from_) and original(input, from_)

    return is_compatible


# cuDNN's numbers, which PyTorch defines only if it was built with cuDNN.
_CUDNN_MODES = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}


def flatten_parameters(original: Callable[[nn.RNNBase], None], self: nn.RNNBase) -> None:
    weights = [weight for weight in self._flat_weights if isinstance(weight, Tensor)]
    if not any(map(_C.is_plain_fake, weights)):
        original(self)
        return
    if len(weights) < len(self._flat_weights) or not all(_goes_to_cudnn(weight, weights[0]) for weight in weights):
        return
    places = {(weight.untyped_storage()._cdata, weight.storage_offset()) for weight in weights}
    if len(places) == len(weights):
        layers = self.num_layers * (2 if self.bidirectional else 1)
        _C.flatten_weights(weights, _CUDNN_MODES[self.mode], self.hidden_size, layers)


def _goes_to_cudnn(weight: Tensor, first: Tensor) -> bool:
    return (
        _C.is_plain_fake(weight)
        and weight.is_cuda
        and weight.dtype == first.dtype
        and weight.dtype in cudnn.CUDNN_TENSOR_DTYPES
        and torch._C._get_cudnn_enabled()
    )


def no_grad_trunc_normal_(
    original: Callable[..., Tensor],
    tensor: Tensor,
    mean: float,
    std: float,
    a: float,
    b: float,
    generator: torch.Generator | None = None,
    **kwargs: Any,
) -> Tensor:
    if not _C.is_fake(tensor):
        return original(tensor, mean, std, a, b, generator=generator, **kwargs)
    # The original redraws values outside [a, b]. How often depends on the values; the metadata of the result does not.
    with torch.no_grad():
        return tensor.normal_(mean, std, generator=generator)


# ---- Value checks ----------------------------------------------------------------------------------------------------
#
# Some functions of PyTorch inspect values without their result depending on them: they raise if the input is invalid,
# or read a number that they only multiply by. If the values are known, the checks use them.

_MANY = 1 << 30


def padded_encoder(original: Callable[..., Any], self: nn.TransformerEncoder, *args: Any, **kwargs: Any) -> Any:
    """Keeps a padded batch padded, as in training, since nested tensors cannot be fake. The result is the same."""
    fake = find_fake((*args, *kwargs.values()))
    makes_nested = getattr(self, "use_nested_tensor", False)
    if fake is None or not makes_nested or _C.mode_of(fake).exclusive:
        return original(self, *args, **kwargs)
    self.use_nested_tensor = False
    try:
        return original(self, *args, **kwargs)
    finally:
        self.use_nested_tensor = True


def with_valid_input(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs `original`, assuming that every check of unknown values passes."""
    return _within(_C.EnteredValidInput(_MANY), original, *args, **kwargs)


def with_nothing_negative(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs `original`, assuming that searches for invalid values find nothing."""
    return _within(_C.EnteredValidInput(0), original, *args, **kwargs)


def with_only_factors(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs `original`, assuming that the numbers it reads are only used as factors."""
    return _within(_C.EnteredFactorsAlone(), original, *args, **kwargs)


def _within(entered: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    finally:
        entered.leave()


def continues_generation(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Whether there is more to generate. If that is unknown and the mode has stand-ins, it is assumed to be true."""
    more = original(*args, **kwargs)
    if not isinstance(more, Tensor) or not _C.is_plain_fake(more) or _C.is_known(more):
        return more
    if not _C.stands_in(more, "generate()", "True, there is more to generate"):
        return more
    return torch.ones_like(more)


def one_segment(original: Callable[..., Any], *args: Any, seek_sequence: Tensor, **kwargs: Any) -> Any:
    """The segments of speech in a sequence; a single one if its tokens are unknown and the mode has stand-ins."""
    unknown = _C.is_plain_fake(seek_sequence) and not _C.is_known(seek_sequence)
    if not unknown or not _C.stands_in(seek_sequence, "generate()", "no timestamps, one segment"):
        return original(*args, seek_sequence=seek_sequence, **kwargs)
    without_timestamps = torch.zeros_like(seek_sequence)
    segments, offset = original(*args, seek_sequence=without_timestamps, **kwargs)
    for segment in segments:
        segment["tokens"] = seek_sequence
    return segments, offset


# ---- Data loading ----------------------------------------------------------------------------------------------------
#
# In the mode, seeds and indices are drawn for real, and what a dataset returns is fake. Which samples form a batch is a
# value that `torch.utils.data` draws with PyTorch's random operators, and a fake has no values.


def real(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs `original` outside the mode."""
    if not _C.in_fake_mode():
        return original(*args, **kwargs)
    with no_fake_mode():
        return original(*args, **kwargs)


def real_unless_drawn(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs `original` in the mode if the seeds it draws are known there, because it also checks which cards exist."""
    mode = _C.current_mode()
    draws = mode is not None and mode.drawn_values > 0 and mode.known_values > 0
    return original(*args, **kwargs) if draws else real(original, *args, **kwargs)


def real_indices(original: Callable[..., Iterator[Any]], self: Any) -> Iterator[Any]:
    """Runs each step of a sampler outside the mode. Between the steps its caller is in its own mode."""
    steps, end = original(self), object()
    while (index := real(_next_index, self, steps, end)) is not end:
        yield index


def _next_index(sampler: Any, steps: Iterator[Any], end: object) -> Any:
    with _drawing_on_the_cpu(sampler):
        return next(steps, end)


@contextlib.contextmanager
def _drawing_on_the_cpu(sampler: Any) -> Iterator[None]:
    """Lets a sampler with the generator of a claimed device draw on the CPU, whatever the default device is."""
    generator = getattr(sampler, "generator", None)
    if not isinstance(generator, torch.Generator) or generator.device.type == "cpu" or torch.cuda.is_available():
        yield
        return
    substitute = sampler.__dict__.get("_cpu_generator")
    if substitute is None or substitute.initial_seed() != generator.initial_seed():
        sampler._cpu_generator = substitute = torch.Generator().manual_seed(generator.initial_seed())
    sampler.generator = substitute
    try:
        with torch.device("cpu"):
            yield
    finally:
        sampler.generator = generator


def weighted_init(original: Callable[..., None], self: Any, weights: Any, *args: Any, **kwargs: Any) -> None:
    if isinstance(weights, Tensor) and _C.is_fake(weights):
        weights = weights.tolist()
    real(original, self, weights, *args, **kwargs)
