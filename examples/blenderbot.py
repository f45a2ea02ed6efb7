"""Builds Blenderbot (2.7 B parameters, 10 GiB) without its memory, prints its layers, and runs it on cuda:0.

Nothing is downloaded, and neither the memory nor a GPU is needed. `bash run demo`, or, where torchfake[models] is
installed, `python examples/blenderbot.py`.
"""

from __future__ import annotations

import resource
import time

import torch
from transformers import BlenderbotConfig, BlenderbotModel

from torchfake import fake_mode
from torchfake.inspect_model import format_bytes, print_layers, survey

BATCH, LENGTH = 8, 128


def main() -> None:
    imports = peak_memory()
    with fake_mode():
        start = time.perf_counter()
        # eval(): in training, Blenderbot draws a random number to decide whether to skip a layer, and nothing random
        # has a value here.
        model = BlenderbotModel(BlenderbotConfig()).cuda().eval()
        built = time.perf_counter()
        tokens = torch.ones(BATCH, LENGTH, dtype=torch.long, device="cuda")
        hidden = model(input_ids=tokens, decoder_input_ids=tokens).last_hidden_state
        ran = time.perf_counter()
        hidden.sum().backward()
        end = time.perf_counter()

    print_layers(survey(model), title="BlenderbotModel")
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    print(f"forward:   {tuple(tokens.shape)} tokens -> {tuple(hidden.shape)} {hidden.dtype} on {hidden.device}")
    print(f"backward:  {len(gradients)} gradients on {', '.join(sorted({str(g.device) for g in gradients}))}")
    print(f"time:      {built - start:.2f} s to build, {ran - built:.2f} s forward, {end - ran:.2f} s backward")
    print(f"memory:    {format_bytes(peak_memory())} at the peak, {format_bytes(imports)} of it to import PyTorch")


def peak_memory() -> int:
    """The most memory this process has really used, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
