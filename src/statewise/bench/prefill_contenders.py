"""Who is timed in a prefill: our convolution and scan, and every peer's that can be imported, on a packed batch.

A scan starts from the states in the pool and leaves the final ones there. What a peer cannot do itself its user pays,
so it is timed: gathering initial states (vLLM, mamba_ssm, fla-core), scattering final ones (mamba_ssm, fla-core),
and for fla-core expanding B and C to heads, folding dt into its inputs and adding D x.
"""

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.bench.workload import Shape
from statewise.ops import causal_conv_prefill, ssd_prefill

WIDTH = 4  # of the convolution
OURS = "statewise"
READY = "inputs ready"  # ends the name of one whose preparation of its inputs is not timed
CACHED = 4e8  # bytes of one contender's inputs over all layers: several times the L2 cache of an H200


@dataclass
class PrefillLayer:
    """One layer's inputs, caches and outputs. L tokens, Q sequences, C = H P + 2 G N channels."""

    xBC: Tensor  # noqa: N815 - the field's name. (L, C), a view of the projection's output
    dt: Tensor  # (L, H), likewise
    weight: Tensor  # (C, K)
    bias: Tensor  # (C,)
    A: Tensor
    D: Tensor
    dt_bias: Tensor
    state: Tensor  # (Q + 1, H, P, N), float32; row 0 is nobody's
    window: Tensor  # (Q + 1, C, K - 1)
    convolved: Tensor  # (L, C)
    y: Tensor  # (L, H, P)


class PrefillWorkload:
    """``layers`` layers of a packed batch of equal sequences, random data, bfloat16 activations."""

    def __init__(self, shape: Shape, tokens: int, sequences: int, has_initial: bool, layers: int | None = None):
        self.shape, self.tokens, self.sequences, self.has_initial = shape, tokens, sequences, has_initial
        self.g = torch.Generator("cuda").manual_seed(0)
        self.lengths = [tokens // sequences] * sequences
        self.cu_seqlens = torch.arange(sequences + 1, device="cuda", dtype=torch.int32) * (tokens // sequences)
        self.slots = torch.randperm(sequences, generator=self.g, device="cuda").int() + 1
        self.has_state = torch.full((sequences,), has_initial, device="cuda")
        count = layers or max(2, min(32, math.ceil(CACHED / prefill_bytes(shape, tokens, sequences, has_initial))))
        self.layers = [self._layer() for _ in range(count)]

    def normal(self, *size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Random numbers, standard normal."""
        return torch.randn(*size, generator=self.g, device="cuda", dtype=dtype)

    def _layer(self) -> PrefillLayer:
        s, length, slots = self.shape, self.tokens, self.sequences + 1
        inner, channels = s.heads * s.head_dim, s.heads * s.head_dim + 2 * s.groups * s.state_size
        _, xBC, dt = self.normal(length, inner + channels + s.heads).split([inner, channels, s.heads], 1)
        return PrefillLayer(
            xBC=xBC,
            dt=dt,
            weight=self.normal(channels, WIDTH) / 2,
            bias=self.normal(channels),
            A=-torch.rand(s.heads, generator=self.g, device="cuda") * 4 - 0.5,
            D=self.normal(s.heads, dtype=torch.float32),
            dt_bias=self.normal(s.heads, dtype=torch.float32) - 3,
            state=self.normal(slots, s.heads, s.head_dim, s.state_size, dtype=torch.float32),
            window=self.normal(slots, WIDTH - 1, channels).mT,
            convolved=torch.empty(0, device="cuda"),
            y=torch.empty(0, device="cuda"),
        )

    def parts(self, d: PrefillLayer) -> tuple[Tensor, Tensor, Tensor]:
        """x, B and C as views of the convolution's output."""
        s = self.shape
        x, B, C = d.convolved.split([s.heads * s.head_dim] + [s.groups * s.state_size] * 2, 1)
        return x.unflatten(1, (s.heads, s.head_dim)), B.unflatten(1, (s.groups, -1)), C.unflatten(1, (s.groups, -1))


def prefill_bytes(shape: Shape, tokens: int, sequences: int, has_initial: bool) -> float:
    """The fewest bytes of convolution and scan: xBC, dt and y once, states and windows written, and read if there."""
    inner, bc = shape.heads * shape.head_dim, 2 * shape.groups * shape.state_size
    cache = inner * shape.state_size * 4 + (inner + bc) * (WIDTH - 1) * 2
    return tokens * (2 * inner + bc + shape.heads) * 2 + sequences * cache * (1 + has_initial)


def prefill_operations(shape: Shape, tokens: int) -> float:
    """The fewest operations of the matrix units: two products of a state a token, as if chunks cost nothing."""
    return tokens * shape.heads * shape.head_dim * shape.state_size * 4.0


Call = Callable[[PrefillLayer], None]
Make = Callable[[PrefillWorkload], Call]


def convolutions() -> dict[str, Make]:
    """Ours, and vLLM's if it is installed: ``convolved`` from ``xBC``, and the windows."""
    found: dict[str, Make] = {OURS: _our_convolution}
    if importlib.util.find_spec("vllm"):
        found["vllm"] = _vllm_convolution
    return found


def scans() -> dict[str, Make]:
    """Ours, and those whose package is installed: ``y`` and the states from ``convolved``."""
    found: dict[str, Make] = {OURS: _our_scan}
    if importlib.util.find_spec("vllm"):
        found |= {f"vllm chunk {size}": _vllm_scan(size) for size in (128, 256)}
    if importlib.util.find_spec("mamba_ssm"):
        found["mamba_ssm"] = _mamba_ssm_scan
    if importlib.util.find_spec("fla"):
        found |= {"fla-core": _fla_scan(is_ready=False), f"fla-core, {READY}": _fla_scan(is_ready=True)}
    return found


def _our_convolution(w: PrefillWorkload) -> Call:
    def call(d: PrefillLayer) -> None:
        d.convolved = causal_conv_prefill(
            d.xBC, d.weight, w.cu_seqlens, bias=d.bias, window=d.window, slots=w.slots,
            has_window=w.has_state if w.has_initial else None, backend="triton",
        )  # fmt: skip

    return call


def _our_scan(w: PrefillWorkload) -> Call:
    def call(d: PrefillLayer) -> None:
        x, B, C = w.parts(d)
        d.y, _ = ssd_prefill(
            x, d.dt, d.A, B, C, w.cu_seqlens, has_initial_state=w.has_state if w.has_initial else None,
            state=d.state, slots=w.slots, D=d.D, dt_bias=d.dt_bias, backend="triton",
        )  # fmt: skip

    return call


def _vllm_convolution(w: PrefillWorkload) -> Call:
    from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_fn
    from vllm.v1.attention.backends.utils import compute_causal_conv1d_metadata

    metadata = compute_causal_conv1d_metadata(w.cu_seqlens.cpu(), device=w.cu_seqlens.device)

    def call(d: PrefillLayer) -> None:
        d.convolved = causal_conv1d_fn(
            d.xBC.mT, d.weight, d.bias, conv_states=d.window, query_start_loc=w.cu_seqlens, cache_indices=w.slots,
            has_initial_state=w.has_state, activation="silu", metadata=metadata,
        ).mT  # fmt: skip

    return call


def _vllm_scan(chunk_size: int) -> Make:
    def make(w: PrefillWorkload) -> Call:
        from vllm.model_executor.layers.mamba.ops.ssd_combined import mamba_chunk_scan_combined_varlen

        chunks = [-(-length // chunk_size) for length in w.lengths]
        edges = [b + k * chunk_size for b, n in zip(w.cu_seqlens.tolist(), chunks, strict=False) for k in range(n)]
        owner = [i for i, n in enumerate(chunks) for _ in range(n)]

        def ints(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device="cuda")

        last = ints(chunks).cumsum(0).int() - 1
        cu_chunks, owners = ints([*edges, w.tokens]), ints(owner)

        def call(d: PrefillLayer) -> None:
            x, B, C = w.parts(d)
            d.y = torch.empty(x.shape, device="cuda", dtype=x.dtype)
            mamba_chunk_scan_combined_varlen(
                x, d.dt, d.A, B, C, chunk_size, w.cu_seqlens, cu_chunks, last, owners, d.y, D=d.D, dt_bias=d.dt_bias,
                initial_states=d.state[w.slots] if w.has_initial else None, dt_softplus=True, state_dtype=d.state.dtype,
                final_states_out=d.state, final_state_indices=w.slots,
            )  # fmt: skip

        return call

    return make


def _mamba_ssm_scan(w: PrefillWorkload) -> Call:
    """Its form for a batch of equal sequences, which takes initial states; its packed form does not."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    def call(d: PrefillLayer) -> None:
        x, dt, B, C = (t.unflatten(0, (w.sequences, -1)) for t in (w.parts(d)[0], d.dt, *w.parts(d)[1:]))
        initial = d.state[w.slots] if w.has_initial else None
        y, final = mamba_chunk_scan_combined(
            x, dt, d.A, B, C, chunk_size=256, D=d.D, dt_bias=d.dt_bias, initial_states=initial, dt_softplus=True,
            return_final_states=True,
        )  # fmt: skip
        d.y = y.flatten(0, 1)
        d.state.index_copy_(0, w.slots.long(), final)

    return call


def _fla_scan(is_ready: bool) -> Make:
    """Its form for a batch of equal sequences; the packed one waits for the host, which a CUDA graph cannot hold.

    is_ready: its inputs are made before the clock starts and D x is left out; else its user's whole way is timed.
    """

    def make(w: PrefillWorkload) -> Call:
        from fla.ops.simple_gla import chunk_simple_gla

        ready: dict[int, tuple[Tensor, ...]] = {}

        def inputs(d: PrefillLayer) -> tuple[Tensor, ...]:
            x, B, C = w.parts(d)
            step = torch.nn.functional.softplus(d.dt + d.dt_bias)
            q, k = (t.repeat_interleave(w.shape.heads // w.shape.groups, 1) for t in (C, B))
            return q, k, (x * step[..., None]).bfloat16(), step * d.A

        def call(d: PrefillLayer) -> None:
            if is_ready and id(d) not in ready:
                ready[id(d)] = inputs(d)
            q, k, v, g = (t.unflatten(0, (w.sequences, -1)) for t in (ready[id(d)] if is_ready else inputs(d)))
            y, final = chunk_simple_gla(
                q, k, v, g, scale=1.0, initial_state=d.state[w.slots] if w.has_initial else None,
                output_final_state=True, state_v_first=True,
            )  # fmt: skip
            y = y.flatten(0, 1)
            d.y = y if is_ready else torch.addcmul(y, w.parts(d)[0], d.D[:, None].bfloat16())
            d.state.index_copy_(0, w.slots.long(), final)

        return call

    return make
