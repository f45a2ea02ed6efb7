"""OpInfo samples with symbolic sizes: expressions and real operators agree at other sizes that the guards allow."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map_only

from torchfake import FakeTensorMode, ShapeEnv, fake_mode
from torchfake.errors import FakeTensorError

#: Families that have symbolic rules, and some that have none.
NAMES = """
    add sub mul div addcmul where clamp exp sigmoid nn.functional.gelu nn.functional.silu nn.functional.relu
    maximum eq lt logical_and pow lerp view reshape permute transpose t unsqueeze squeeze expand select slice
    flatten unbind split chunk narrow diagonal as_strided mm bmm addmm baddbmm matmul mv dot
    nn.functional.linear sum mean amax amin prod any all argmax argmin std var logsumexp softmax log_softmax
    nn.functional.layer_norm nn.functional.embedding cat stack index_select gather masked_fill tril triu cumsum
    clone zeros_like new_zeros flip roll sort topk nn.functional.dropout nn.functional.pad nn.functional.conv1d
    nn.functional.mse_loss repeat tile
"""
BY_NAME = {info.name: info for info in op_db if info.variant_test_name == ""}
SAMPLES = 4


def other_size(size: int) -> int:
    return size if size < 2 else size + 3


def geometry(x: torch.Tensor) -> tuple[Any, ...]:
    return tuple(x.shape), tuple(x.stride()), x.storage_offset(), x.dtype


def at_other_sizes(x: torch.Tensor) -> torch.Tensor:
    """A tensor of other sizes, where every size of 2 and more is 3 more."""
    made = torch.empty([other_size(size) for size in x.shape], dtype=x.dtype)
    return made.uniform_(0.1, 0.9) if x.is_floating_point() else made.zero_()


def check_sample(info: Any, sample: Any) -> str:
    """Returns "held", "refused" by the guards, or "raised"."""
    args = (sample.input, sample.args, sample.kwargs)
    tensors = [leaf for leaf in tree_flatten(args)[0] if isinstance(leaf, torch.Tensor)]
    if any(not x.is_contiguous() or x.layout != torch.strided for x in tensors):
        return "skipped"
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)

    def symbolic(x: torch.Tensor) -> torch.Tensor:
        return mode.from_tensor(x.detach().clone(), dynamic=range(x.dim())) if x.dim() else mode.from_tensor(x.detach())

    first, rest, named = tree_map_only(torch.Tensor, symbolic, args)
    real = info.op(sample.input, *sample.args, **sample.kwargs)
    try:
        fake = info.op(first, *rest, **named)
    except FakeTensorError:
        # Allowed where values are missing: the same call raises with numbers.
        numbers = FakeTensorMode()
        first, rest, named = tree_map_only(torch.Tensor, lambda x: numbers.from_tensor(x.detach()), args)
        with pytest.raises(FakeTensorError):
            info.op(first, *rest, **named)
        return "raised"
    hints = {name: number.node.hint for name, number in env.symbols.items()}
    if None in hints.values():
        return "data"  # a number among the arguments is a tensor: see test_data_dependent_sizes.py
    reals = [x for x in tree_flatten(real)[0] if isinstance(x, torch.Tensor)]
    fakes = [x for x in tree_flatten(fake)[0] if isinstance(x, torch.Tensor)]

    def at(x: torch.Tensor, values: dict[str, Any]) -> tuple[Any, ...]:
        sizes = tuple(env.evaluate(size, values) for size in x.shape)
        strides = tuple(env.evaluate(stride, values) for stride in x.stride())
        return sizes, strides, env.evaluate(x.storage_offset(), values), x.dtype

    assert env.guards_hold(hints)
    assert [at(x, hints) for x in fakes] == [geometry(x) for x in reals]
    values = {name: other_size(hint) for name, hint in hints.items()}
    if not env.guards_hold(values):
        return "refused"
    first, rest, named = tree_map_only(torch.Tensor, at_other_sizes, args)
    again = info.op(first, *rest, **named)
    others = [x for x in tree_flatten(again)[0] if isinstance(x, torch.Tensor)]
    assert [at(x, values) for x in fakes] == [geometry(x) for x in others], env.format_guards()
    return "held"


@pytest.mark.parametrize("name", sorted(set(NAMES.split()) & set(BY_NAME)))
def test_expressions_hold_at_other_sizes(name: str) -> None:
    samples = BY_NAME[name].sample_inputs("cpu", torch.float32, requires_grad=False)
    for sample in itertools.islice(samples, SAMPLES):
        assert check_sample(BY_NAME[name], sample) in ("held", "refused", "raised", "skipped", "data")


def test_integers_that_attention_returns_follow_the_sizes() -> None:
    env = ShapeEnv()
    flash, cudnn = (
        torch.ops.aten._scaled_dot_product_flash_attention,
        torch.ops.aten._scaled_dot_product_cudnn_attention,
    )
    with fake_mode(shape_env=env):
        for hint, name in ((16, "s"), (24, "t")):  # the second is a hit
            q = torch.empty(2, 2, env.create_symint(hint, name), 16, device="cuda", dtype=torch.float16)
            assert [str(number) for number in flash(q, q, q)[4:6]] == [name, name]
            assert [str(number) for number in cudnn(q, q, q, None, False)[4:6]] == [name, name]
