"""Step 1: random arguments from an overload's schema, mostly chosen so that the call is likely to be accepted."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import Any

from .tensors import DTYPES, FLOATS, INTEGERS, LAYOUTS, Shape, TensorText, broadcastable, random_shape

#: An argument: a tensor or a list of tensors, still modifiable, or final text.
Argument = TensorText | list[TensorText] | str

_INDEX = re.compile(
    r"^(index|indices|target|targets|offsets|lengths|.*_lengths|.*_indices|repeats|batch_sizes|.*_steps)$"
)
_INT32 = re.compile(r"^(pivots|LU_pivots|cu_seqlens.*|cum_seq.*|offs|zero_point|.*seqstart.*|seqlen.*)$")
_MASK = re.compile(r"^(mask|.*_mask|condition)$")

#: Possible values of strings, by the name of the argument.
_STRINGS = {
    "reduce": ("sum", "mean", "prod", "amax", "amin"),
    "mode": ("reduced", "complete", "r", "constant", "reflect"),
    "norm": ("ortho", "forward", "backward"),
    "ord": ("fro", "nuc"),
    "rounding_mode": ("trunc", "floor"),
    "interpolation": ("linear", "lower", "nearest"),
    "UPLO": ("L", "U"),
    "driver": ("gels", "gesvd"),
    "approximate": ("none", "tanh"),
    "indexing": ("ij", "xy"),
    "side": ("left", "right"),
    "equation": ("ij,jk->ik", "ij,ij->i", "ii"),
    "padding": ("same", "valid"),
    "padding_mode": ("zeros", "reflect"),
    "filename": ("file",),
}


@dataclass
class Scene:
    """The sizes and dtypes shared by the arguments of one call."""

    rng: random.Random
    kind: str
    dtype: str
    base: Shape
    #: The shapes of arguments by name, if the scene specifies more than `base`.
    named: dict[str, Shape] = field(default_factory=dict)
    #: Numbers and lists of numbers by name.
    numbers: dict[str, Any] = field(default_factory=dict)
    #: The length of its tensor lists: operators on lists iterate over several of them in parallel.
    listed: int = 2

    def shape_of(self, name: str) -> Shape:
        if name in self.named:
            return self.named[name]
        if self.kind == "pointwise" and name not in ("self", "input") and self.rng.random() < 0.4:
            return broadcastable(self.rng, self.base)
        return self.base


_IMAGES = re.compile(
    r"conv|pool|upsample|pad|batch_norm|group_norm|instance_norm|im2col|col2im|pixel|grid|shuffle|interpol"
)
_MATRICES = re.compile(
    r"linalg|mm|mv|ger|dot|cholesky|lu|qr|svd|eig|inverse|det|solve|triang|tril|triu|matmul|matrix|kron|cdist|pdist|ldl|"
    r"cov|pinv|lstsq|householder|outer|vander|cross|linear|logdet|orgqr|ormqr|geqrf|addr|baddbmm|addbmm|chain"
)
_SEQUENCES = re.compile(r"lstm|gru|rnn")
_ATTENTION = re.compile(r"attention|sdp")
_CLASSES = re.compile(r"nll_loss|cross_entropy|multi_?margin|multilabel|one_hot|multinomial")
_LOOKUPS = re.compile(r"embedding")

#: Dtypes required by whole families.
_BITS = re.compile(r"bitwise|__i?(and|or|xor|lshift|rshift)__|xor|gcd|lcm|bincount|_mask")
_FLOATING = re.compile(
    r"linalg|norm|loss|conv|pool|softmax|lstm|gru|rnn|attention|dropout|fake_quant|quantile|_backward|fft_r"
)
_COMPLEX = re.compile(r"conj|fft_c|as_real|view_as_real|istft|imag|real")
#: Numbers in tensor form.
_ONE_ELEMENT = ("growth_tracker", "found_inf", "inv_scale", "grad_scale", "scalars", "lr")


#: The kinds of scenes that operator names require; the first match counts.
_NAMED_KINDS = (
    ("attention", _ATTENTION),
    ("sequence", _SEQUENCES),
    ("classes", _CLASSES),
    ("lookup", _LOOKUPS),
    ("image", _IMAGES),
    ("matrix", _MATRICES),
)
#: All kinds. Seeds depend on their order.
_KINDS = ("pointwise", "image", "matrix", "sequence", "attention", "classes", "lookup")


def make_scene(rng: random.Random, name: str) -> Scene:
    """A scene that fits an operator's name, or sometimes any."""
    dtype = _likely_dtype(rng, name)
    if rng.random() < 0.1:
        kind = rng.choice(_KINDS)
    else:
        kind = next((kind for kind, names in _NAMED_KINDS if names.search(name)), "pointwise")
    scene = Scene(rng, kind, dtype, random_shape(rng), listed=rng.randint(1, 3))
    scene.named = dict.fromkeys(_ONE_ELEMENT, (1,))
    {
        "pointwise": lambda scene, name: None,
        "classes": _set_classes,
        "lookup": _set_lookup,
        "image": _set_image,
        "matrix": _set_matrix,
        "sequence": _set_sequence,
        "attention": _set_attention,
    }[kind](scene, name)
    return scene


def _likely_dtype(rng: random.Random, name: str) -> str:
    if rng.random() < 0.25:
        return rng.choice(DTYPES)
    if _COMPLEX.search(name):
        return "complex64"
    if _FLOATING.search(name):
        return rng.choice(("float32", "float32", "float32", *FLOATS))
    if _BITS.search(name):
        return rng.choice(("int64", "int32", "bool", "uint8"))
    return rng.choice(("float32", "float32", "float64", "int64", "bfloat16"))


def _set_classes(scene: Scene, name: str) -> None:
    rng = scene.rng
    batch, classes = rng.randint(1, 3), rng.randint(2, 4)
    pixels: Shape = (2, 3) if "2d" in name else ()
    scene.base = (batch, classes, *pixels)
    scene.named |= {"target": (batch, *pixels), "weight": (classes,), "total_weight": ()}
    if "multilabel" in name:
        scene.named["target"] = scene.base
    if rng.random() < 0.7:
        scene.numbers["reduction"] = 0
        scene.named["grad_output"] = (batch, *pixels)


def _set_lookup(scene: Scene, name: str) -> None:
    rng = scene.rng
    rows, width, count = rng.randint(2, 4), rng.randint(1, 3), rng.randint(1, 4)
    scene.base = (count, width)
    scene.named |= {
        "weight": (rows, width),
        "self": (rows, width),
        "indices": (count,),
        "offsets": (1,),
        "offset2bag": (count,),
        "per_sample_weights": (count,),
        "bag_size": (1,),
        "maximum_indices": (1,),
        "grad": (1, width) if "bag" in name else (count, width),
    }
    scene.numbers |= {"num_weights": rows, "mode": rng.randrange(2), "padding_idx": -1}


def _set_image(scene: Scene, name: str) -> None:
    """Kernels usually have size 1 and no padding, so that gradients have the size of the input."""
    rng = scene.rng
    given = re.search(r"([123])d", name)
    d = int(given.group(1)) if given else rng.randint(1, 3)
    batch, channels = rng.randint(1, 2), rng.choice((1, 2, 4))
    sizes = tuple(rng.randint(2, 4) for _ in range(d))
    leading: Shape = (channels,) if rng.random() < 0.2 else (batch, channels)
    scene.base = (*leading, *sizes)
    padding = [0] * 2 * d
    kernel = 1
    if "pad" in name:
        padding = [rng.choice((0, 1, 1)) for _ in range(2 * d)]
        padded = tuple(sizes[-1 - i] + padding[2 * i] + padding[2 * i + 1] for i in range(d))[::-1]
        scene.named["grad_output"] = (*leading, *padded)
    elif rng.random() < 0.3 and "backward" not in name:
        kernel = rng.randint(1, 3)
    for parameter in ("bias", "running_mean", "running_var", "save_mean", "save_invstd", "mean", "invstd", "save_var"):
        scene.named[parameter] = (channels,)
    is_convolution = "conv" in name
    scene.named["weight"] = (channels, channels, *(kernel,) * d) if is_convolution else (channels,)
    scene.numbers |= {
        "kernel_size": [kernel] * d,
        "stride": [1] * d,
        "dilation": [1] * d,
        "output_padding": [0] * d,
        "padding": padding if "pad" in name and not is_convolution else [0] * d,
        "pad": padding,
        "output_size": list(sizes),
        "input_size": list(scene.base),
        "groups": 1,
        "group": 1,
        "num_groups": 1,
        "N": batch,
        "C": channels,
        "HxW": sizes[0] if d == 1 else sizes[0] * sizes[1],
        "scale_factors": [1.0] * d,
        "bias_sizes": [channels],
        "upscale_factor": 1,
        "downscale_factor": 1,
    }


def _set_matrix(scene: Scene, name: str) -> None:
    rng = scene.rng
    batch: Shape = () if rng.random() < 0.6 else (2,)
    if re.search(r"bmm|batch", name):
        batch = (2,)
    square = rng.random() < 0.75
    m, k, n = [rng.randint(1, 3)] * 3 if square else [rng.randint(1, 4) for _ in range(3)]
    scene.base = (*batch, m, k)
    for right in ("other", "mat2", "batch2", "B", "B_", "input2"):
        scene.named[right] = (*batch, k, n)
    for vector in ("vec", "vec1", "vec2", "tau", "pivots", "LU_pivots", "bias", "S"):
        scene.named[vector] = (*(() if vector in ("vec", "vec1", "vec2", "bias") else batch), k)
    if re.search(r"add(mm|bmm|mv|r)|baddbmm", name):
        scene.named["self"] = (*batch, m, n) if "mm" in name else (m,)
    if re.search(r"(^|_)dot|vdot|ger|outer|addr|vander", name):
        scene.base = (k,)
        scene.named |= {"other": (k,), "tensor": (k,), "vec2": (k,)}
    if "linear" in name:
        scene.named |= {"weight": (n, k), "bias": (n,)}


def _set_sequence(scene: Scene, name: str) -> None:
    rng = scene.rng
    steps, batch, width = 3, 2, rng.randint(1, 3)
    gates = 4 if "lstm" in name else 3 if "gru" in name else 1
    is_cell = "cell" in name
    scene.base = (batch, width) if is_cell else (steps, batch, width)
    scene.named |= {
        "hx": (batch, width) if is_cell else (1, batch, width),
        "cx": (batch, width) if is_cell else (1, batch, width),
        "w_ih": (gates * width, width),
        "w_hh": (gates * width, width),
        "b_ih": (gates * width,),
        "b_hh": (gates * width,),
        "params": (gates * width, width),
    }
    scene.numbers |= {"num_layers": 1, "hidden_size": width, "has_biases": False, "bidirectional": False}


def _set_attention(scene: Scene, name: str) -> None:
    rng = scene.rng
    batch, heads, length, width = 2, 2, rng.randint(2, 4), rng.choice((4, 8))
    scene.base = (batch, heads, length, width)
    scene.named |= {
        "attn_mask": (length, length),
        "attn_bias": (batch, heads, length, length),
        "logsumexp": (batch, heads, length),
        "softmax_lse": (batch, heads, length),
        "qkv_weight": (3 * width, width),
        "qkv_bias": (3 * width,),
        "proj_weight": (width, width),
        "proj_bias": (width,),
    }
    if "multi_head" in name or "transformer" in name:
        scene.base = (batch, length, width)
        scene.numbers |= {"embed_dim": width, "num_heads": 2, "num_head": 2}


def _tensor(scene: Scene, name: str) -> TensorText:
    rng = scene.rng
    dtype, fill = scene.dtype, rng.choice(("count", "ones", "count"))
    if _INDEX.match(name):
        dtype, fill = "int64", rng.choice(("index", "zeros", "ones"))
    elif _INT32.match(name):
        dtype, fill = "int32", "ones"
    elif _MASK.match(name):
        dtype, fill = "bool", "index"
    elif rng.random() < 0.04:
        dtype = rng.choice(DTYPES)
    layout = rng.choice(LAYOUTS) if rng.random() < 0.2 else "plain"
    return TensorText(scene.shape_of(name), dtype, layout, fill)


_OUT_OF_INDICES = re.compile(r"^(indices|index|inverse|counts|max_indices|.*_indices)$")


def _out(scene: Scene, name: str) -> TensorText:
    """An output tensor: usually empty, which may always be resized."""
    rng = scene.rng
    if rng.random() < 0.7:
        dtype = "int64" if _OUT_OF_INDICES.match(name) else "int32" if name in ("info", "pivots") else scene.dtype
        return TensorText((0,), dtype, fill="empty")
    return TensorText(scene.base, rng.choice((scene.dtype, rng.choice(DTYPES))), fill=rng.choice(("ones", "empty")))


_DIM = re.compile(r"^(dim|axis|dim\d|axis\d|start_dim|end_dim|sparse_dim|dense_dim|source|destination)$")


def _integer(scene: Scene, name: str) -> int:
    rng = scene.rng
    if name in scene.numbers and isinstance(scene.numbers[name], int):
        return int(scene.numbers[name])
    if _DIM.match(name) and rng.random() < 0.95:
        dims = max(len(scene.base), 1)
        return rng.randrange(-dims, dims)
    if name == "reduction":
        return rng.randrange(3)
    if rng.random() < 0.01:
        return rng.choice((2**40, -(2**40), 2**62))
    return rng.choice((0, 1, 1, 1, 2, 2, 3, 4, -1))


def _integers(scene: Scene, name: str, length: int | None) -> list[int]:
    rng = scene.rng
    if name in scene.numbers and isinstance(scene.numbers[name], list):
        return list(scene.numbers[name])
    dims = len(scene.base)
    if name in ("dim", "dims", "axes", "axis"):
        if name == "dims" and rng.random() < 0.5:
            return rng.sample(range(dims), dims)
        chosen = rng.sample(range(dims), rng.randint(min(1, dims), dims))
        return [d - dims if rng.random() < 0.3 else d for d in chosen]
    if name in ("size", "sizes", "shape", "normalized_shape", "new_shape", "s", "input_sizes"):
        shape = scene.base
        if name == "normalized_shape":
            shape = shape[rng.randint(0, max(len(shape) - 1, 0)) :]
        return list(shape) if rng.random() < 0.8 else list(random_shape(rng))
    if name in ("stride", "strides"):
        strides, step = [], 1
        for size in reversed(scene.base):
            strides.insert(0, step)
            step *= max(size, 1)
        return strides
    count = length if length and rng.random() < 0.9 else rng.choice((dims, rng.randint(0, 4)))
    return [rng.choice((0, 1, 1, 1, 2, 3)) for _ in range(count)]


def _number(scene: Scene) -> str:
    rng = scene.rng
    if rng.random() < 0.05:
        return rng.choice(('float("nan")', 'float("inf")', "1j", "True", "10**12"))
    return rng.choice(("0", "1", "2", "1", "0.5", "-1", "2.0", "1.0"))


def _plain(scene: Scene, kind: str, name: str, length: int | None) -> Argument:
    """An argument of a non-optional type that is not a list, except of tensors or numbers."""
    rng = scene.rng
    match kind:
        case "Tensor":
            return _tensor(scene, name)
        case "int" | "SymInt":
            return str(_integer(scene, name))
        case "float":
            return rng.choice(("0.0", "0.5", "1.0", "1e-05", "2.0", "-1.0")) if rng.random() < 0.97 else 'float("nan")'
        case "bool":
            return str(scene.numbers[name]) if name in scene.numbers else rng.choice(("True", "False"))
        case "number" | "Scalar":
            return _number(scene)
        case "str":
            return f'"{rng.choice(_STRINGS.get(name, ("none", "sum", "nonsense")))}"'
        case "ScalarType":
            return f"torch.{rng.choice((scene.dtype, 'float32', rng.choice(FLOATS + INTEGERS), rng.choice(DTYPES)))}"
        case "Layout":
            return "torch.strided" if rng.random() < 0.9 else "torch.sparse_coo"
        case "MemoryFormat":
            formats = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
            return f"torch.{rng.choice(formats)}"
        case "Device":
            return "device" if rng.random() < 0.95 else '"meta"'
        case "Generator":
            return "torch.Generator()"
        case "Storage":
            return "torch.ones(4).untyped_storage()"
        case "List[Tensor]" | "List[Optional[Tensor]]":
            return [_tensor(scene, name) for _ in range(length or scene.listed)]
        case "List[int]" | "List[SymInt]":
            return str(_integers(scene, name, length))
        case "List[float]":
            return str([float(x) for x in scene.numbers.get(name, _integers(scene, name, length))])
        case "List[bool]":
            return str([rng.random() < 0.7 for _ in range(length or rng.randint(1, 4))])
        case "List[number]" | "List[Scalar]":
            return f"[{', '.join(_number(scene) for _ in range(length or scene.listed))}]"
    return "None"  # streams, TorchScript classes: refused during argument conversion


def make_argument(scene: Scene, argument: Any, type_text: str) -> Argument:
    """`type_text` is the type as written in the schema, down to ScalarType and SymInt."""
    rng = scene.rng
    if argument.is_out or (argument.alias_info is not None and argument.alias_info.is_write and argument.kwarg_only):
        if not type_text.startswith("List"):
            return _out(scene, argument.name)
        return [_out(scene, argument.name) for _ in range(scene.listed)]
    if argument.has_default_value() and argument.name not in scene.numbers and rng.random() < 0.5:
        return default_text(argument)
    optional = re.fullmatch(r"Optional\[(.*)\]", type_text)
    if optional and rng.random() < (0.4 if argument.name not in scene.numbers else 0.05):
        return "None"
    kind = optional.group(1) if optional else type_text
    return _plain(scene, kind, argument.name, argument.N)


def default_text(argument: Any) -> str:
    """The default of an argument as text; for a dtype, the number in the schema."""
    value = argument.default_value
    if isinstance(value, float) and value != value:
        return 'float("nan")'
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return f'"{value}"' if isinstance(value, str) else str(value)
