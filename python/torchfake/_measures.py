"""The usual measures to save memory, applied to a program from outside so that their effect can be measured.

Each hooks into the running program: it acts when a model is first called, or when an optimizer is created or steps.
Measures that cannot be applied are reported with the reason.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

from torchfake.modes import fake_mode


class NotApplicableError(Exception):
    """A measure cannot be applied to this program; the message is the reason."""


class Measure:
    """A measure, applied in the process of a trial, so that only its hooks need to be removed."""

    #: Its name in tables and for `torchfake fit --measure`.
    name: str = ""
    #: A one-line description.
    note: str = ""
    #: The factor by which the varied batch is divided.
    micro_batches: int = 1

    def __init__(self) -> None:
        #: The reason why it has not been applied; None once it has.
        self.reason: str | None = "no model was called"

    def steps(self, requested: int) -> int:
        """The number of steps to run with the measure, if `requested` steps are enough without it."""
        return requested

    @contextlib.contextmanager
    def applied(self, mode: fake_mode) -> Iterator[None]:
        raise NotImplementedError


class _AtFirstCall(Measure):
    """Acts on each outermost module on its first call."""

    only_training = True

    @contextlib.contextmanager
    def applied(self, mode: fake_mode) -> Iterator[None]:
        self._mode = mode
        self._seen: list[nn.Module] = []
        self._depth = 0
        hooks = [
            nn.modules.module.register_module_forward_pre_hook(self._before),
            nn.modules.module.register_module_forward_hook(self._after, always_call=True),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _before(self, module: nn.Module, arguments: Any) -> Any:
        self._depth += 1
        if self._depth > 1 or (self.only_training and not (module.training and torch.is_grad_enabled())):
            return None
        if not any(module is seen for seen in self._seen):
            if not any(True for _ in module.parameters()):
                return None
            self._seen.append(module)
            self.act(module)
        return None

    def _after(self, module: nn.Module, arguments: Any, output: Any) -> None:
        self._depth -= 1

    def act(self, module: nn.Module) -> None:
        raise NotImplementedError


def repeated_blocks(root: nn.Module) -> list[nn.Module]:
    """The outermost repeated modules of a list or sequence with submodules: transformer layers, residual blocks."""
    found: list[nn.Module] = []
    inside: set[int] = set()
    for module in root.modules():
        if id(module) in inside or not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        children = [child for child in module.children() if any(True for _ in child.children())]
        for kind in dict.fromkeys(map(type, children)):
            alike = [child for child in children if type(child) is kind]
            if len(alike) > 1 and not isinstance(alike[0], (nn.ModuleList, nn.Sequential)):
                found += alike
                inside.update(id(below) for block in alike for below in block.modules())
    return found


class Checkpointing(_AtFirstCall):
    """`torch.utils.checkpoint` around each block; a model of transformers enables its own checkpointing."""

    name = "checkpointing"
    note = "activation checkpointing of every block"

    def act(self, module: nn.Module) -> None:
        if getattr(module, "supports_gradient_checkpointing", False):
            if module.is_gradient_checkpointing:
                raise NotApplicableError("the model already does so")
            module.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
            self.reason = None
            return
        blocks = repeated_blocks(module)
        if not blocks and self.reason is not None:  # within a backward pass, layers are outermost too
            self.reason = f"no block of layers repeats in {type(module).__name__}"
            return
        for block in blocks:
            self.reason = None
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


class Autocast(_AtFirstCall):
    """The forward pass of the model under autocast."""

    name = "bf16 autocast"
    note = "torch.autocast('cuda', torch.bfloat16) around the model"
    only_training = False

    def act(self, module: nn.Module) -> None:
        _need_bfloat16(self._mode)
        if torch.is_autocast_enabled("cuda"):
            raise NotApplicableError("the program uses autocast already")
        if not _is_float32(module):
            raise NotApplicableError("the parameters are not float32")
        forward = module.forward

        def under_autocast(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast("cuda", torch.bfloat16):
                return forward(*args, **kwargs)

        module.forward = under_autocast
        self.reason = None


class Bfloat16Weights(_AtFirstCall):
    """Parameters, and therefore gradients and optimizer state, in bfloat16."""

    name = "bf16 weights"
    note = "model.to(torch.bfloat16), including its inputs"
    only_training = False

    def act(self, module: nn.Module) -> None:
        _need_bfloat16(self._mode)
        if not _is_float32(module):
            raise NotApplicableError("the parameters are not float32")
        module.to(torch.bfloat16)
        self.reason = None

    def _before(self, module: nn.Module, arguments: Any) -> Any:
        super()._before(module, arguments)
        if self._depth == 1 and self.reason is None:
            return torch.utils._pytree.tree_map_only(torch.Tensor, _as_bfloat16, arguments)
        return None


def _as_bfloat16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16) if tensor.dtype == torch.float32 else tensor


def _is_float32(module: nn.Module) -> bool:
    return all(p.dtype == torch.float32 for p in module.parameters() if p.is_floating_point())


def _need_bfloat16(mode: fake_mode) -> None:
    if mode.cards[0].major < 8:
        raise NotApplicableError(f"{mode.cards[0].name} has no bfloat16 arithmetic")


# ---- Optimizers ------------------------------------------------------------------------------------------------------


class _AtSteps(Measure):
    """Acts when an optimizer steps. May hide the gradients, so that the optimizer does nothing in that step."""

    def __init__(self) -> None:
        super().__init__()
        self._hidden: list[tuple[torch.Tensor, torch.Tensor]] = []

    @contextlib.contextmanager
    def applied(self, mode: fake_mode) -> Iterator[None]:
        hooks = [register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after)]
        self._is_ours = False
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _before(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        if self._is_ours:
            return
        self._is_ours = True
        try:
            takes_part = self.act(optimizer)
        finally:
            self._is_ours = False
        if not takes_part:
            for parameter in (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None):
                self._hidden.append((parameter, parameter.grad))
                parameter.grad = None

    def _after(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        if self._is_ours:
            return
        for parameter, gradient in self._hidden:
            parameter.grad = gradient
        self._hidden.clear()

    def act(self, optimizer: Optimizer) -> bool:
        """Performs the measure. Returns whether the optimizer takes this step itself."""
        raise NotImplementedError


class _InPlaceOfAdam(_AtSteps):
    """Another optimizer takes the steps of Adam and AdamW, with the same parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.reason = "neither Adam nor AdamW takes a step"
        self._others: dict[int, Optimizer] = {}

    def act(self, optimizer: Optimizer) -> bool:
        if not isinstance(optimizer, torch.optim.Adam):
            return True
        if id(optimizer) not in self._others:
            self._others[id(optimizer)] = self.other([{"params": g["params"]} for g in optimizer.param_groups])
            self.reason = None
        self._others[id(optimizer)].step()
        return False

    def other(self, groups: list[dict[str, Any]]) -> Optimizer:
        raise NotImplementedError


class Adafactor(_InPlaceOfAdam):
    name = "Adafactor"
    note = "torch.optim.Adafactor instead of Adam"

    def other(self, groups: list[dict[str, Any]]) -> Optimizer:
        return torch.optim.Adafactor(groups)


class Sgd(_InPlaceOfAdam):
    name = "SGD"
    note = "torch.optim.SGD without momentum instead of Adam: no optimizer state"

    def other(self, groups: list[dict[str, Any]]) -> Optimizer:
        return torch.optim.SGD(groups, lr=1e-3)


class EightBitAdam(_InPlaceOfAdam):
    name = "8-bit Adam"
    note = "the state of bitsandbytes' Adam8bit: a byte per moment and element, a float32 per 256"

    def other(self, groups: list[dict[str, Any]]) -> Optimizer:
        return _EightBitState(groups)


class _EightBitState(Optimizer):
    """Allocates the state of an 8-bit Adam, whose kernel works in place without temporaries."""

    SMALL = 4096  # smaller tensors keep 32 bits
    BLOCK = 256

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            state = self.state[parameter]
            if not state:
                small = parameter.numel() < self.SMALL
                for moment in ("state1", "state2"):
                    dtype = torch.float32 if small else torch.uint8
                    state[moment] = torch.zeros_like(parameter, dtype=dtype)
                    if not small:
                        blocks = -(-parameter.numel() // self.BLOCK)
                        state[f"absmax_{moment}"] = torch.zeros(blocks, device=parameter.device)
            parameter.add_(parameter.grad, alpha=-1e-3)
        return loss


class Accumulation(_AtSteps):
    """Processes the batch in parts: optimizers step and gradients are cleared only after all of them."""

    def __init__(self, micro_batches: int) -> None:
        super().__init__()
        self.micro_batches = micro_batches
        self.name = f"accumulation over {micro_batches}"
        self.note = f"the batch in {micro_batches} parts, with gradients accumulated"
        #: Only after the optimizer's first step do optimizer state and gradients coexist with activations.
        self._enough = 2 * micro_batches
        self.reason = f"the program takes fewer than {self._enough} steps"
        self._counts: dict[int, int] = {}

    def steps(self, requested: int) -> int:
        return max(requested * self.micro_batches, self._enough)

    def act(self, optimizer: Optimizer) -> bool:
        which = id(optimizer)
        if which not in self._counts:
            clear = optimizer.zero_grad

            def clear_at_the_end(set_to_none: bool = True) -> None:
                if self._counts[which] % self.micro_batches == 0:
                    clear(set_to_none)

            optimizer.zero_grad = clear_at_the_end  # type: ignore[method-assign]
        self._counts[which] = self._counts.get(which, 0) + 1
        if self._counts[which] >= self._enough:
            self.reason = None
        return self._counts[which] % self.micro_batches == 0


# ---- The allocator ---------------------------------------------------------------------------------------------------


class ExpandableSegments(Measure):
    """Segments that can grow, so that a large block can use free memory from anywhere."""

    name = "expandable segments"
    note = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, against fragmentation"

    @contextlib.contextmanager
    def applied(self, mode: fake_mode) -> Iterator[None]:
        settings = [os.environ.get(name, "") for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")]
        if any("expandable_segments" in setting for setting in settings):
            raise NotApplicableError("the environment already sets this option")
        model = mode.cards.model
        assert model is not None, "a trial's cards have a memory model"
        model.set_config("expandable_segments:True")
        self.reason = None
        yield


# ---- Sharding --------------------------------------------------------------------------------------------------------


class FullyShard(_AtFirstCall):
    """`fully_shard` on blocks and model before the first call, as the first of several ranks."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.ranks = ranks
        self.name = f"fully_shard over {ranks}"
        self.note = f"over {ranks} such cards, each with this batch; the unsharded model is built first"

    def act(self, module: nn.Module) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        if any(p.device.type != "cuda" for p in module.parameters()):
            raise NotApplicableError("parameters are not on the card")
        if torch.distributed.is_initialized() and self.reason is not None:
            raise NotApplicableError("the program is distributed already")
        # By type: isinstance() would ask a weak proxy for the class of an object that may be gone.
        optimizers = [found for found in gc.get_objects() if issubclass(type(found), Optimizer)]
        if any(optimizer.state for optimizer in optimizers):
            raise NotApplicableError("an optimizer has state before the model is first called")
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("fake", rank=0, world_size=self.ranks)
        mesh = init_device_mesh("cuda", (self.ranks,))
        before = dict(module.named_parameters())
        for block in repeated_blocks(module):
            fully_shard(block, mesh=mesh)
        fully_shard(module, mesh=mesh)
        after = dict(module.named_parameters())
        sharded = {id(before[name]): after[name] for name in before}
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["params"] = [sharded.get(id(p), p) for p in group["params"]]
        self.reason = None
        # The call in progress collected its hooks before these existed.
        for hook in list(module._forward_pre_hooks.values()):
            hook(module, (), {})


def usual(micro_batches: bool) -> list[Callable[[], Measure]]:
    """Factories of the measures to try, one instance per run. With accumulation if the varied quantity is a batch."""
    found: list[Callable[[], Measure]] = [Checkpointing, Autocast, Bfloat16Weights, EightBitAdam, Adafactor, Sgd]
    if micro_batches:
        found += [functools.partial(Accumulation, 2), functools.partial(Accumulation, 4)]
    found.append(ExpandableSegments)
    return [*found, functools.partial(FullyShard, 2), functools.partial(FullyShard, 8)]
