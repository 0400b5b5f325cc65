"""A package ``flashinfer`` for tests: the signatures of two releases, with the layout checks of the real binding.

The new one computes with our torch ops, so the adapter must give what the torch backend gives. As with the real one,
the checkpointed step leaves the output rows of pads alone, the plain step writes rubbish there, and the monolith wants
dead ring rows to be finite.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch

from statewise.ops import checkpointed_step, state_step


def install(monkeypatch, version="0.7.4", **functions) -> list[tuple[str, dict]]:
    """Put the package where imports find it. Returns the list of calls that it will get: (function, arguments)."""
    calls: list[tuple[str, dict]] = []
    package, mamba = ModuleType("flashinfer"), ModuleType("flashinfer.mamba")
    package.__version__ = version
    for module in (package, mamba):
        module.__spec__ = ModuleSpec(module.__name__, None)
    for function in (checkpointing_ssu, selective_state_update, allocate_checkpointing_ssu_scratch):
        setattr(mamba, function.__name__, functions.get(function.__name__, function))
    package.mamba, mamba.calls = mamba, calls
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setitem(sys.modules, "flashinfer.mamba", mamba)
    return calls


def remove(monkeypatch) -> None:
    """Make ``flashinfer`` a package that is not there."""
    monkeypatch.setitem(sys.modules, "flashinfer", None)


def old_checkpointing_ssu(
    state, old_x, old_B, old_dt, old_cumAdt, cache_buf_idx, prev_num_accepted_tokens, x, dt, A, B, C, out, D=None,
    z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None, pad_slot_id=-1,
):  # fmt: skip
    """That of 0.6.12 to 0.6.18."""
    raise AssertionError("the old function must not be called")


def checkpointing_ssu(
    state, x_cache, B_cache, dt_cache, ring_start, prev_num_accepted_tokens, x, dt, A, B, C, out, D=None, z=None,
    dt_bias=None, dt_softplus=False, state_batch_indices=None, pad_slot_id=-1, state_scale=None, rand_seed=None,
    philox_rounds=10, d_split=None, cu_seqlens=None, max_seqlen=None, enable_pdl=False, cb_scaled=None,
    cumAdt_vec=None, cb_old=None, precompute_heads_per_cta=0, algorithm="auto",
):  # fmt: skip
    """That of 0.7.4."""
    sys.modules["flashinfer.mamba"].calls.append(("checkpointing_ssu", dict(locals())))
    batch, tokens, heads, head_dim = x.shape
    window = x_cache.shape[2] - tokens
    assert dt_softplus
    assert pad_slot_id == -1
    assert 1 <= tokens <= window <= 16
    _check_layout(state, x, dt, A, B, C, D, z, dt_bias)
    assert D is None or dt_bias is None or D.dtype == dt_bias.dtype
    assert x.dtype == x_cache.dtype == B_cache.dtype == out.dtype
    assert state_batch_indices.is_contiguous()
    if algorithm == "monolith":  # it multiplies dead rows by zero
        live = state_batch_indices[state_batch_indices >= 0].long()
        assert all(cache[live].isfinite().all() for cache in (x_cache, B_cache, dt_cache))
    else:
        assert cb_scaled.shape[0] >= batch
        assert cb_scaled.shape[1:] == (heads, 32, 8)
        assert cumAdt_vec.shape[1:] == (heads, 16)
        assert cb_old.shape[1:] == (heads, 32, (window + 7) // 8 * 4)
        for scratch in (cb_scaled, cumAdt_vec, cb_old):
            scratch[:batch] = torch.nan
    ring = {"x_ring": x_cache, "B_ring": B_cache, "dt_ring": dt_cache}
    trackers = {"ring_start": ring_start, "pending": prev_num_accepted_tokens}
    D, dt_bias = (None if t is None else t[:, 0] for t in (D, dt_bias))
    y = checkpointed_step(
        x, dt[..., 0], A[:, 0, 0], B, C, state, **ring, **trackers, window=window, read_slots=state_batch_indices,
        D=D, z=z, dt_bias=dt_bias,
    )  # fmt: skip
    live = state_batch_indices >= 0
    out[live] = y[live]
    return out


def selective_state_update(
    state, x, dt, A, B, C, D, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None, pad_slot_id=-1,
    state_scale=None, out=None, disable_state_update=False, dst_state_batch_indices=None, algorithm="auto",
):  # fmt: skip
    """That of 0.7.4, without what concerns speculative decoding."""
    sys.modules["flashinfer.mamba"].calls.append(("selective_state_update", dict(locals())))
    assert dt_softplus
    assert pad_slot_id == -1
    assert state.shape[0] >= x.shape[0]
    _check_layout(state, x, dt, A, B, C, D, z, dt_bias)
    assert D.dtype == dt.dtype
    assert dt_bias is None or dt_bias.dtype == dt.dtype
    assert out.is_contiguous()
    read, write = state_batch_indices, dst_state_batch_indices
    if write is not None:
        assert write.dtype == read.dtype
        assert ((read < 0) == (write < 0)).all(), "it would write outside of the pool"
    bias = None if dt_bias is None else dt_bias[:, 0]
    y = state_step(
        x, dt[..., 0], A[:, 0, 0], B, C, state, read_slots=read, write_slots=write, D=D[:, 0], z=z, dt_bias=bias
    )
    out.copy_(torch.where((read < 0)[:, None, None], torch.nan, y))
    return out


def allocate_checkpointing_ssu_scratch(batch_size, num_heads, num_predicted_tokens, max_window, dtype, device):
    """The shapes of 0.7.4 for up to 16 new tokens."""
    sys.modules["flashinfer.mamba"].calls.append(("allocate_checkpointing_ssu_scratch", dict(locals())))
    old = (max_window + 7) // 8 * 4
    return (
        torch.empty(batch_size, num_heads, 32, 8, dtype=dtype, device=device),
        torch.empty(batch_size, num_heads, 16, device=device),
        torch.empty(batch_size, num_heads, 32, old, dtype=dtype, device=device),
    )


def _check_layout(state, x, dt, A, B, C, D, z, dt_bias) -> None:
    """What the binding asserts of strides and dtypes."""
    head_dim, state_size = state.shape[2:]
    assert state[0].is_contiguous()
    assert x.dtype == torch.bfloat16
    assert x.stride()[-2:] == (head_dim, 1)
    assert z is None or z.stride()[-2:] == (head_dim, 1)
    assert z is None or z.dtype == x.dtype
    assert dt.stride()[-2:] == (1, 0)
    assert A.dtype == torch.float32
    assert A.stride() == (1, 0, 0)
    for tensor in (B, C):
        assert tensor.stride()[-2:] == (state_size, 1)
        assert tensor.dtype == x.dtype
    for tensor in (D, dt_bias):
        assert tensor is None or tensor.stride() == (1, 0)
