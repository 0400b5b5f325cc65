"""A soak: many short requests through few slots. Nothing may be left of them, on the device or on the host.

    python -m tests.engine.soak --requests 30000                       # on a CPU
    python -m tests.engine.soak --requests 30000 --device cuda         # graphs and asynchronous scheduling on

Requests come in all the time, some are aborted, scarce blocks preempt others by swap. At a third of the way and at the
end the engine is drained, and what is alive is counted.
"""

import argparse
import gc
import os
import random
import sys
import time
from dataclasses import dataclass

import torch

from statewise.engine.core import Engine
from statewise.engine.request import Phase, Request
from tests.engine.harness import LETTERS, drain, engine, greedy
from tests.models.tiny import tiny_config, tiny_model

PATTERN = ("mamba", "attention", "mlp", "mamba")
SLOTS = 8


@dataclass(frozen=True)
class Alive:
    """What is held when no request is at work."""

    requests: int  # objects
    tensors: int
    blocks: int  # of memory that Python has allocated, about one for each small object
    resident: int  # bytes of the process
    device: int  # bytes that PyTorch has allocated on the GPU


def build(device: str = "cpu", interval: int = 4, **options: object) -> Engine:
    """An engine of 8 slots and scarce blocks, over a tiny model in float32."""
    backend = "triton" if device == "cuda" else "torch"
    model = tiny_model(tiny_config(PATTERN), backend=backend, device=torch.device(device)).float().to(device).prepare()
    kinds = {"dtype": "float32", "state_dtype": "float32", "device": device, "backend": backend, "poison": False}
    limits = {"max_batch": SLOTS, "max_batched_tokens": 32, "blocks": 26, "checkpoint_interval": interval}
    return engine(model=model, preempt="swap", **(kinds | limits | options))


def serve(built: Engine, count: int, seed: int) -> dict[str, int]:
    """Serve ``count`` random requests, and drain the engine. Returns how many ended for which reason."""
    rng, reasons, live, submitted = random.Random(seed), dict[str, int](), list[Request](), 0
    while submitted < count or live:
        while submitted < count and len(live) < 3 * SLOTS:
            live.append(_submit(built, rng))
            submitted += 1
        if rng.random() < 0.02:
            built.abort(rng.choice(live))
        built.step()
        for request in live:
            if request.phase is Phase.FINISHED:
                reasons[str(request.finish_reason)] = reasons.get(str(request.finish_reason), 0) + 1
        live = [request for request in live if request.phase is not Phase.FINISHED]
    drain(built)
    built.step()  # takes in the step too many, which holds the request that ended by a token just come in
    built.check_integrity()
    return reasons


def _submit(built: Engine, rng: random.Random) -> Request:
    prompt = [rng.randrange(31) for _ in range(rng.randint(1, 16))]
    params = greedy(
        max_tokens=rng.randint(1, 16),
        temperature=rng.choice([0, 0.8]),
        repetition_penalty=rng.choice([1, 1, 1.2]),
        logprobs=rng.choice([0, 0, 2]),
        prompt_logprobs=rng.choice([None, None, 1]),
        stop_token_ids=(rng.randrange(31),),
    )
    return built.submit(prompt, params, LETTERS, rng.randrange(2**30))


def alive(built: Engine) -> Alive:
    """Count it. Nothing is at work."""
    gc.collect()
    is_gpu = built.runner.device.type == "cuda"
    if is_gpu:
        torch.cuda.synchronize()
    held = gc.get_objects()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return Alive(
        requests=sum(type(thing) is Request for thing in held),
        tensors=sum(type(thing) is torch.Tensor for thing in held),
        blocks=sys.getallocatedblocks(),
        resident=pages * os.sysconf("SC_PAGE_SIZE"),
        device=torch.cuda.memory_allocated() if is_gpu else 0,
    )


def soak(built: Engine, count: int) -> tuple[Alive, Alive, dict[str, int]]:
    """What is alive after a third of ``count`` requests, and after all; and how they ended."""
    first = serve(built, count // 3, seed=1)
    before = alive(built)
    rest = serve(built, count - count // 3, seed=2)
    return before, alive(built), {reason: first.get(reason, 0) + rest.get(reason, 0) for reason in {*first, *rest}}


def leaks(before: Alive, after: Alive) -> list[str]:
    """What has grown: objects and bytes on the device at all, the rest by more than an allocator explains."""
    limits = {"requests": 0, "tensors": 0, "device": 0, "blocks": 1000, "resident": 2**24}
    grown = {name: getattr(after, name) - getattr(before, name) for name in limits}
    return [f"{name} grew by {grown[name]}" for name, limit in limits.items() if grown[name] > limit]


def main() -> int:
    """Returns 1 if anything leaks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=30_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--poison", action="store_true")
    parser.add_argument("--async-scheduling", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    built = build(given.device, poison=given.poison, async_scheduling=given.async_scheduling)
    begin = time.perf_counter()
    before, after, reasons = soak(built, given.requests)
    seconds = time.perf_counter() - begin
    print(f"{given.requests} requests in {seconds:.0f} s: {reasons}", built.counters, sep="\n")
    print(f"after a third: {before}", f"after all:     {after}", sep="\n")
    found = leaks(before, after)
    print(*(found or ["no leak"]), sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
