"""Trains Blenderbot (2.7 B parameters, 10 GiB) on an H200 that is not there, and prints its layers.

Nothing is downloaded, and neither the memory nor a GPU is needed. `bash run demo`, or, where torchfake[models] is
installed, `python examples/blenderbot.py`.
"""

from __future__ import annotations

import resource
import time

import torch
from transformers import BlenderbotConfig, BlenderbotForConditionalGeneration

from torchfake import fake_mode
from torchfake.inspect_model import format_bytes, print_layers, survey

BATCH, LENGTH = 8, 128


def main() -> None:
    imports = peak_memory()
    with fake_mode(gpus="H200"):
        start = time.perf_counter()
        model = BlenderbotForConditionalGeneration(BlenderbotConfig()).cuda()
        model.train()
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.ones(BATCH, LENGTH, dtype=torch.long, device="cuda")
        built = time.perf_counter()
        out = model(input_ids=tokens, labels=tokens)
        ran = time.perf_counter()
        out.loss.backward()
        went_back = time.perf_counter()
        optimizer.step()
        end = time.perf_counter()
        card, peak = torch.cuda.get_device_name(), torch.cuda.max_memory_allocated()

    print_layers(survey(model), title="BlenderbotForConditionalGeneration")
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    logits = out.logits
    print(f"forward:   {tuple(tokens.shape)} tokens -> {tuple(logits.shape)} {logits.dtype} on {logits.device}")
    print(f"backward:  {len(gradients)} gradients on {', '.join(sorted({str(g.device) for g in gradients}))}")
    print(f"on card:   {format_bytes(peak)} at the peak of a training step with AdamW, on an {card}")
    print(
        f"time:      {built - start:.2f} s to build, {ran - built:.2f} s forward, {went_back - ran:.2f} s backward, "
        f"{end - went_back:.2f} s step"
    )
    print(f"memory:    {format_bytes(peak_memory())} at the peak, {format_bytes(imports)} of it to import PyTorch")


def peak_memory() -> int:
    """The most memory this process has really used, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
