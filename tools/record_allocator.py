"""Records the behaviour of PyTorch's caching allocator on a real card: random programs, by configuration.

    OUT=folder python tools/record_allocator.py       # writes allocator.json.gz, for tests/memory/recorded

One process per configuration. A program is a list of allocations, frees and other steps; recorded with it are the
allocator's own trace (every block and segment allocated and freed, with its address), its statistics every few steps,
and the last snapshot.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import traceback

CONFIGURATIONS = {
    "default": {},
    "second": {"seed": 2},
    "streams": {"streams": 3},
    "small": {"sizes": "small"},
    "large": {"sizes": "large"},
    "expandable": {"conf": "expandable_segments:True"},
    "expandable_streams": {"conf": "expandable_segments:True", "streams": 3},
    "expandable_limit": {"conf": "expandable_segments:True", "limit": 600, "sizes": "large"},
    "max_split": {"conf": "max_split_size_mb:100", "sizes": "large"},
    "max_split_limit": {"conf": "max_split_size_mb:40", "sizes": "large", "limit": 600},
    "roundup": {"conf": "roundup_power2_divisions:8"},
    "roundup_list": {"conf": "roundup_power2_divisions:[64:8,256:4,1024:4,>:1]", "sizes": "large"},
    "garbage": {"conf": "garbage_collection_threshold:0.6", "limit": 1200, "sizes": "large"},
    "limit": {"limit": 500, "sizes": "large"},
    "limit_streams": {"limit": 500, "sizes": "large", "streams": 2},
    "pools": {"pools": 2, "streams": 2},
    "non_split": {"conf": "max_non_split_rounding_mb:32,max_split_size_mb:64", "sizes": "large"},
    "large_segment": {"conf": "large_segment_size_mb:64"},
}
STEPS = 1200
ACTIONS = [
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom",
    "snapshot",
]  # fmt: skip
PARTS = "/tmp/record_allocator"


def draw_size(rng: random.Random, sizes: str) -> int:
    kind = rng.random()
    mib = 1 << 20
    if sizes == "small":
        bounds = [(1, 2048), (1, 300_000), (512 * 1024, mib), (mib - 2000, mib + 2000)]
    elif sizes == "large":
        bounds = [(mib, 3 * mib), (mib, 12 * mib), (9 * mib, 25 * mib), (20 * mib, 130 * mib), (1000, 100_000)]
    else:
        bounds = [(1, 4096), (1, mib), (mib // 2, 2 * mib), (mib, 20 * mib), (10 * mib, 60 * mib)]
    low, high = bounds[int(kind * len(bounds))]
    size = rng.randint(low, high)
    if rng.random() < 0.3:
        size = max(512, size // 512 * 512)
    if rng.random() < 0.1 and size > mib:
        size = size // mib * mib
    return size


def record(name: str) -> dict:
    import torch

    setting = CONFIGURATIONS[name]
    rng = random.Random(f"{name}-{setting.get('seed', 1)}")
    sizes = setting.get("sizes", "mixed")
    torch.cuda.init()
    total = torch.cuda.get_device_properties(0).total_memory
    result = {
        "name": name,
        "setting": setting,
        "torch": torch.__version__,
        "card": torch.cuda.get_device_name(0),
        "total_memory": total,
        "mem_get_info": torch.cuda.mem_get_info(),
        "initial_stats": torch.cuda.memory_stats(),
    }
    if "limit" in setting:
        fraction = setting["limit"] * (1 << 20) / total
        torch.cuda.set_per_process_memory_fraction(fraction)
        result["fraction"] = fraction
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, context=None, stacks="python")
    streams = [torch.cuda.default_stream()] + [torch.cuda.Stream() for _ in range(setting.get("streams", 1) - 1)]
    pools = [torch.cuda.MemPool() for _ in range(setting.get("pools", 0))]
    live: dict[int, torch.Tensor] = {}
    steps, stats, errors = [], [], []
    budget = setting.get("limit", 3000) * 1.05 * (1 << 20)
    used = 0
    number = 0
    aim = 0.5
    for step in range(STEPS):
        if step % 100 == 0:
            aim = rng.choice([0.2, 0.5, 0.8, 1.0])
        kind = rng.random()
        # More births than deaths while there are few blocks, and the reverse.
        if kind < 0.02:
            steps.append(["empty_cache"])
            torch.cuda.empty_cache()
        elif kind < 0.03 and len(streams) > 1 and live:
            which = rng.choice(list(live))
            stream = rng.randrange(len(streams))
            steps.append(["record_stream", which, stream])
            live[which].record_stream(streams[stream])
        elif live and (used > budget * aim or rng.random() < 0.42):
            which = rng.choice(list(live))
            steps.append(["free", which])
            used -= live[which].numel()
            del live[which]
            # A block used on another stream is freed once that stream has caught up.
            torch.cuda.synchronize()
        else:
            size = draw_size(rng, sizes)
            stream = rng.randrange(len(streams))
            pool = rng.randrange(len(pools) + 1) - 1
            steps.append(["alloc", number, size, stream] + ([pool] if pools else []))
            try:
                with torch.cuda.stream(streams[stream]):
                    if pool >= 0:
                        with torch.cuda.use_mem_pool(pools[pool]):
                            live[number] = torch.empty(size, dtype=torch.uint8, device="cuda")
                    else:
                        live[number] = torch.empty(size, dtype=torch.uint8, device="cuda")
                used += size
            except torch.OutOfMemoryError as error:
                if len(errors) < 20:
                    errors.append([step, str(error)])
            number += 1
        if step % 60 == 59:
            stats.append([step, torch.cuda.memory_stats()])
    snapshot = torch.cuda.memory._snapshot()
    ids = {stream.cuda_stream: i for i, stream in enumerate(streams)}
    trace = [
        [e["action"], e.get("addr", e.get("device_free", 0)), e["size"], ids.get(e["stream"], e["stream"])]
        for e in snapshot["device_traces"][0]
    ]
    segments = []
    for segment in snapshot["segments"]:
        segment = dict(segment)
        segment["stream"] = ids.get(segment["stream"], segment["stream"])
        segment.pop("frames", None)
        segment["blocks"] = [
            {k: v for k, v in block.items() if k not in ("frames", "history")} for block in segment["blocks"]
        ]
        segments.append(segment)
    result |= {
        "steps": steps,
        "stats": stats,
        "errors": errors,
        "trace": trace,
        "segments": segments,
        "snapshot_keys": list(snapshot),
        "settings": snapshot.get("allocator_settings"),
        "summary": torch.cuda.memory_summary() if name == "default" else None,
        "trace_entry": {k: repr(v) for k, v in snapshot["device_traces"][0][0].items()},
    }
    return result


def compact(results: list[dict]) -> dict:
    """The results reduced to what the tests read."""
    keys = sorted(results[0]["stats"][0][1])
    programs = []
    for result in results:
        segments = [
            [
                *(
                    s[key]
                    for key in ("address", "total_size", "allocated_size", "active_size", "requested_size", "stream")
                ),
                s["segment_type"],
                s["is_expandable"],
                [[b["address"], b["size"], b["requested_size"], b["state"]] for b in s["blocks"]],
            ]
            for s in result["segments"]
        ]
        programs.append(
            {
                "name": result["name"],
                "setting": result["setting"],
                "fraction": result.get("fraction"),
                "total_memory": result["total_memory"],
                "steps": result["steps"],
                "trace": [[ACTIONS.index(action), *rest] for action, *rest in result["trace"]],
                "stats": [[step, [values[key] for key in keys]] for step, values in result["stats"]][3::4],
                "errors": result["errors"][:4],
                "segments": segments,
                "settings": result["settings"],
                "summary": result["summary"],
            }
        )
    first = results[0]
    return {"torch": first["torch"], "card": first["card"], "actions": ACTIONS, "stat_keys": keys, "programs": programs}


def main() -> None:
    out = os.environ["OUT"]
    os.makedirs(PARTS, exist_ok=True)
    if len(sys.argv) == 2:
        name = sys.argv[1]
        try:
            result = record(name)
        except Exception:
            result = {"name": name, "error": traceback.format_exc()}
        with open(f"{PARTS}/{name}.json", "w") as file:
            json.dump(result, file)
        return
    running = {}
    pending = list(CONFIGURATIONS)
    while pending or running:
        while pending and len(running) < 6:
            name = pending.pop(0)
            env = dict(os.environ)
            conf = CONFIGURATIONS[name].get("conf")
            if conf:
                env["PYTORCH_ALLOC_CONF"] = conf
                env["PYTORCH_CUDA_ALLOC_CONF"] = conf
            running[name] = subprocess.Popen([sys.executable, __file__, name], env=env)
        name = next(iter(running))
        try:
            running.pop(name).wait(timeout=150)
        except subprocess.TimeoutExpired:
            print("timeout", name)
    results = []
    for name in CONFIGURATIONS:
        try:
            with open(f"{PARTS}/{name}.json") as file:
                result = json.load(file)
        except OSError as error:
            result = {"name": name, "error": str(error)}
        print(name, result.get("error") or (len(result["trace"]), len(result["segments"]), len(result["errors"])))
        results.append(result)
    content = json.dumps(compact(results), separators=(",", ":")).encode()
    with gzip.GzipFile(f"{out}/allocator.json.gz", "wb", mtime=0) as file:
        file.write(content)


if __name__ == "__main__":
    main()
