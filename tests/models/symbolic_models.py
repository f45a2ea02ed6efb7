"""Small models traced with symbolic sizes, forward and backward, and run for real on the CPU at other sizes.

    python tests/models/symbolic_models.py [--only LlamaForCausalLM ResNet]

Batch and length, or batch, height and width, are symbols. A model

    holds      every output and gradient has the sizes that the expressions say, at all other sizes
    partly     likewise, but the guards refuse some of the other sizes
    refused    the guards refuse all other sizes
    wrong      an expression disagrees with the real model
    raised     the trace raises
"""

from __future__ import annotations

import argparse
import copy
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from families import FAMILIES
from observing import loss_of, tensors_in
from torch import Tensor, nn

from torchfake import FakeTensorMode, ShapeEnv

Inputs = dict[str, Tensor]
Found = dict[str, tuple[tuple[int, ...], tuple[int, ...]]]

TEXT = {0: "batch", 1: "length"}
TARGET = {0: "batch", 1: "target"}
PICTURE = {0: "batch", 2: "height", 3: "width"}
NAMES = {
    "input_ids": TEXT,
    "attention_mask": TEXT,
    "labels": TEXT,
    "decoder_input_ids": TARGET,
    "pixel_values": PICTURE,
    "input_values": TEXT,
    "x": PICTURE,
}
# With the sizes of families.py: 2, 12, 8 and 32 x 32. All are tried in every combination.
OTHERS = {"batch": (2, 3, 5), "length": (12, 9, 17), "target": (8, 5), "height": (32, 64), "width": (32, 96)}


@dataclass(frozen=True)
class Case:
    """A model, its inputs, and sizes that are numbers by design, such as those of a picture in ViT."""

    name: str
    build: Callable[[], tuple[nn.Module, Inputs]]
    static: tuple[str, ...] = ()
    others: dict[str, tuple[int, ...]] = field(default_factory=dict)


class Block(nn.Module):
    """Two convolutions around a shortcut, as in ResNet."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
            Block(8, 8, 1),
            Block(8, 16, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 10),
        )


def convolutions(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(2, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1)
    )


class UNet(nn.Module):
    """Down and up again; the ways up are interpolation and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down, self.bottom = convolutions(3, 8), convolutions(8, 16), convolutions(16, 16)
        self.up = nn.ConvTranspose2d(16, 16, 2, 2)
        self.second, self.last = convolutions(32, 8), convolutions(16, 8)
        self.leave = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.enter(x)
        second = self.down(nn.functional.max_pool2d(first, 2))
        bottom = self.bottom(nn.functional.avg_pool2d(second, 2))
        above = self.second(torch.cat([self.up(bottom), second], 1))
        above = nn.functional.interpolate(above, scale_factor=2, mode="bilinear")
        return self.leave(self.last(torch.cat([above, first], 1)))


class MobileNet(nn.Sequential):
    """Depthwise convolutions, padding and hard activations."""

    def __init__(self) -> None:
        super().__init__(
            nn.ReflectionPad2d(1),
            nn.Conv2d(3, 8, 3, 2, bias=False),
            nn.BatchNorm2d(8),
            nn.Hardswish(),
            nn.Conv2d(8, 8, 3, 1, 1, groups=8),
            nn.InstanceNorm2d(8),
            nn.ReLU6(),
            nn.AvgPool2d(3, 2, ceil_mode=True),
            nn.Conv2d(8, 16, 1),
            nn.PixelShuffle(2),
            nn.Upsample(scale_factor=1.5, mode="nearest"),
            nn.LPPool2d(2, 2),
        )


def convolutional(model: Callable[[], nn.Module]) -> Callable[[], tuple[nn.Module, Inputs]]:
    return lambda: (model(), {"x": torch.randn(2, 3, 32, 32)})


def of_family(name: str, eager: bool) -> Callable[[], tuple[nn.Module, Inputs]]:
    family = next(family for family in FAMILIES if family.model == name)
    if eager:  # other kinds of attention first look whether anything is masked, which only data knows
        family = replace(family, options=family.options | {"attn_implementation": "eager"})

    def build() -> tuple[nn.Module, Inputs]:
        model = family.build()
        inputs = family.inputs(model.config)
        if eager:  # without a mask, some look for padding among the tokens
            inputs.setdefault("attention_mask", torch.ones_like(inputs["input_ids"]))
        return model, inputs

    return build


def transformer(name: str, *static: str, eager: bool = False, **others: tuple[int, ...]) -> Case:
    return Case(name, of_family(name, eager), static, others)


CASES = (
    Case("ResNet", convolutional(ResNet)),
    Case("UNet", convolutional(UNet)),
    Case("MobileNet", convolutional(MobileNet)),
    transformer("GPT2LMHeadModel"),
    transformer("LlamaForCausalLM"),
    transformer("Gemma2ForCausalLM", eager=True),
    transformer("Qwen3ForCausalLM"),
    transformer("BloomForCausalLM"),
    transformer("OPTForCausalLM", eager=True),
    transformer("BertForMaskedLM", eager=True),
    transformer("AlbertModel", eager=True),
    transformer("FNetModel"),
    transformer("XLNetModel"),
    transformer("T5ForConditionalGeneration"),
    transformer("BartModel", eager=True),
    transformer("BlenderbotModel", eager=True),
    transformer("ViTForImageClassification", "height", "width"),
    transformer("ConvNextModel"),
    transformer("ResNetForImageClassification"),
    transformer("SegformerForSemanticSegmentation"),
    transformer("Dinov2Model", "height", "width"),
    transformer("Wav2Vec2Model", length=(1600, 1000, 2043)),
    transformer("HubertModel", length=(1600, 1000, 2043)),
    # These loop over the length in Python.
    transformer("MambaForCausalLM", "length"),
    transformer("RwkvModel", "length"),
    transformer("Llama4ForCausalLM"),
    transformer("CLIPModel", "height", "width"),
)


def repeated(tensor: Tensor, sizes: list[int]) -> Tensor:
    """A tensor of these sizes, with the values of `tensor` repeated."""
    count = 1
    for size in sizes:
        count *= size
    flat = tensor.reshape(-1)
    return flat.repeat(-(-count // flat.numel()))[:count].reshape(sizes)


def names_of(case: Case, key: str) -> dict[int, str]:
    return {dim: name for dim, name in NAMES[key].items() if name not in case.static}


def run(model: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
    """The outputs, and the gradients of the parameters and of the inputs that have one."""
    inputs = {key: x.requires_grad_() if x.is_floating_point() else x for key, x in inputs.items()}
    outputs = model(*inputs.values()) if isinstance(model, nn.Sequential) else model(**inputs)
    found = dict(tensors_in(outputs, "outputs"))
    loss = loss_of(outputs if isinstance(outputs, dict) else {}, found)
    loss.backward()
    for name, tensor in [*model.named_parameters(), *inputs.items()]:
        if tensor.grad is not None:
            found[f"gradients.{name}"] = tensor.grad
    return found


def with_fakes(real: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """A copy of the model with fakes of its parameters and buffers."""
    model = copy.deepcopy(real)
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = mode.from_tensor(tensor)  # type: ignore[assignment]
    return model


def combinations(case: Case, names: set[str]) -> Iterator[dict[str, int]]:
    values = [(case.others.get(name) or OTHERS[name]) for name in sorted(names)]
    for chosen in itertools.product(*values):
        yield dict(zip(sorted(names), chosen, strict=True))


def judge(case: Case) -> tuple[str, str]:
    """The outcome, and the reason or the number of other sizes at which it was compared."""
    torch.manual_seed(0)
    real_model, real_inputs = case.build()
    names = {name for key in real_inputs for name in names_of(case, key).values()}
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    try:
        inputs = {key: mode.from_tensor(x, dynamic=names_of(case, key)) for key, x in real_inputs.items()}
        model = with_fakes(real_model, mode)
        with mode:
            found = run(model, inputs)
    except Exception as error:
        return "raised", f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    guards = "; ".join(repr(guard) for guard in env.guards if ">= 2" not in str(guard))
    compared, refused = 0, []
    for values in combinations(case, names):
        others = {}
        for key, x in real_inputs.items():
            dims = names_of(case, key)
            sizes = [values[dims[dim]] if dim in dims else size for dim, size in enumerate(x.shape)]
            others[key] = repeated(x.detach(), sizes).clone()
        if not env.guards_hold(values):
            refused.append(values)
            continue
        real_model.zero_grad()
        real = run(real_model, others)
        if real.keys() != found.keys():
            return "wrong", f"at {values}: {sorted(real.keys() ^ found.keys())[:4]}; guards {guards}"
        for name, tensor in found.items():
            said = [tuple(env.evaluate(x, values) for x in sizes) for sizes in (tensor.shape, tensor.stride())]
            if said != [tuple(real[name].shape), tuple(real[name].stride())]:
                expected = (tuple(real[name].shape), tuple(real[name].stride()))
                return "wrong", f"{name} at {values}: {said}, really {expected}; guards {guards}"
        compared += 1
    total = compared + len(refused)
    verdict = "holds" if compared == total else "partly" if compared > 1 else "refused"
    return verdict, f"{compared} of {total}; guards {guards}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="parts of models' names")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    for case in CASES:
        if not options.only or any(part in case.name for part in options.only):
            verdict, why = judge(case)
            print(f"{verdict:9}{case.name:36}{why}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
