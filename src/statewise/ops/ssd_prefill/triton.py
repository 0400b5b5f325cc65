"""Prefill on an NVIDIA GPU: one pass over the tokens with the state in registers. The README beside this says why.

The sequences' lengths are known on the device alone: grids are bounded from shapes, nothing waits for the host.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from statewise.ops.common import NO_LIMIT, expect
from statewise.ops.ssd_prefill.triton_kernels import scan_kernel, time_step_kernel
from statewise.ops.ssd_prefill.triton_segments import pass_states_kernel, segment_state_kernel
from statewise.ops.triton_common import cdiv, expect_last_contiguous, next_power_of_2, pdl_options

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHORTEST_SEGMENT = 512  # tokens; below this the two launches more cost more than they win


@dataclass(frozen=True)
class Plan:
    """Launch parameters.

    chunk: tokens at a time. block_p by block_n: the part of a state that a program holds. is_whole: such parts make up
    a state without padding. dot: how products are formed, see triton_kernels.py.
    """

    chunk: int
    block_p: int
    block_n: int
    is_whole: bool
    num_stages: int
    dot: str


def launch_plan(dtype: torch.dtype, head_dim: int, state_size: int, chunk_size: int, is_alone: bool, cpu: bool) -> Plan:
    """What fits the registers and the shared memory of an H200.

    chunk_size: the longest chunk that is of use. is_alone: there are fewer programs than two a multiprocessor, so each
    may have the memory of two and load earlier.
    cpu: under the interpreter, which gets products of bfloat16 wrong.
    """
    # bfloat16 products of more than 128 states need a narrow tile, and narrow tiles gave wrong final states.
    half = "tf32" if cpu or state_size > 128 else "bf16"
    dot = {torch.float32: "tf32x3", torch.float16: "tf32", torch.bfloat16: half}[dtype]
    block_n = max(16, next_power_of_2(state_size))
    narrow, wide = cdiv(head_dim, 32) * 32, cdiv(head_dim, 64) * 64
    if dot == "bf16" and block_n >= 64:
        block_p = 64  # small heads are padded; see the README
    elif head_dim <= 16:
        block_p = 16
    else:
        block_p = 32 if narrow < wide or block_n * (1 + (dot == "tf32x3")) > 128 else 64
    if dot == "bf16":
        most, num_stages = 64, 3 if is_alone else 2
    else:
        most, num_stages = 32 if block_n <= 128 else 16, 1
    chunk = min(most, max(16, next_power_of_2(chunk_size)))
    is_whole = head_dim % block_p == 0 and state_size == block_n
    return Plan(chunk, block_p, block_n, is_whole, num_stages, dot)


def programs_at_once(device: torch.device) -> int:
    """Two a multiprocessor; one under the interpreter, where nothing runs beside another."""
    return 2 * torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def segment_size(length: int, programs: int, chunk: int, device: torch.device) -> int | None:
    """Tokens a segment where ``programs`` a sequence leave most of the device idle, else None: a sequence is one piece.

    A segment is as long as each program's share of all the work, if the device were full; below four segments of that
    length in all, the second reading of x and B costs more than the balance wins.
    """
    share = max(SHORTEST_SEGMENT, length * programs // programs_at_once(device))
    return None if length < 4 * share else cdiv(share, chunk) * chunk


@dataclass(frozen=True)
class States:
    """Where states are read and written: row ``slots[i]`` of both tensors for sequence i, or row i without slots."""

    initial: Tensor | None
    has_initial: Tensor | None
    slots: Tensor | None
    final: Tensor

    def read(self) -> dict[str, Any]:
        """The arguments of a kernel that starts from them."""
        i = self.final if self.initial is None else self.initial
        return {
            "p_initial": i,
            "p_has_initial": self.has_initial,
            "p_slots": self.slots,
            "stride_i_s": i.stride(0),
            "stride_i_h": i.stride(1),
            "stride_i_p": i.stride(2),
            "reads_initial": int(self.initial is not None),
            "HAS_MASK": self.has_initial is not None,
            "HAS_SLOTS": self.slots is not None,
        }

    def written(self) -> dict[str, Any]:
        """The arguments of a kernel that leaves the final ones."""
        f = self.final
        return {
            "p_final": f,
            "stride_f_s": f.stride(0),
            "stride_f_h": f.stride(1),
            "stride_f_p": f.stride(2),
        }


def ssd_prefill(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    cu_seqlens: Tensor,
    initial_states: Tensor | None,
    has_initial_state: Tensor | None,
    state: Tensor | None,
    slots: Tensor | None,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_limit: tuple[float, float],
    chunk_size: int | None,
) -> tuple[Tensor, Tensor]:
    _expect_supported(x, dt, B, C, z, initial_states if state is None else state)
    (length, heads, head_dim), state_size = x.shape, B.shape[2]
    sequences = cu_seqlens.shape[0] - 1
    is_alone = heads * cdiv(head_dim, 64) * sequences < programs_at_once(x.device)
    average = max(1, length // max(1, sequences))  # short sequences leave most of a long chunk empty
    useful = average if chunk_size is None else min(average, chunk_size)
    plan = launch_plan(x.dtype, head_dim, state_size, useful, is_alone, x.device.type == "cpu")
    programs = heads * cdiv(head_dim, plan.block_p)
    segment = segment_size(length, programs, plan.chunk, x.device)
    if state is None:
        final = x.new_empty(sequences, heads, head_dim, state_size, dtype=torch.float32)
        states = States(initial_states, has_initial_state, None, final)
    else:
        states = States(None if has_initial_state is None else state, has_initial_state, slots, state)
    y = x.new_empty(length, heads, head_dim)
    steps = _time_steps(dt, A, cu_seqlens, dt_bias, dt_limit, plan.chunk)
    shared = _shared_arguments(x, B, steps, cu_seqlens, plan)
    blocks = sequences
    if segment is not None:
        states = _segment_states(shared, programs, length // segment + sequences, segment, states, sequences)
        blocks = length // segment + sequences
    scan_kernel[programs, blocks](
        p_C=C,
        p_D=D,
        p_z=z,
        p_y=y,
        sequences=sequences,
        segment=segment or 0,
        stride_C_l=C.stride(0),
        stride_C_g=C.stride(1),
        stride_z_l=0 if z is None else z.stride(0),
        stride_z_h=0 if z is None else z.stride(1),
        HAS_D=D is not None,
        HAS_Z=z is not None,
        SEGMENTED=segment is not None,
        **shared,
        **states.read(),
        **states.written(),
    )
    return y, states.final


def _expect_supported(x: Tensor, dt: Tensor, B: Tensor, C: Tensor, z: Tensor | None, states: Tensor | None) -> None:
    dtypes = {"x": x, "B": B, "C": C, "dt": dt} | ({} if z is None else {"z": z})
    given = ", ".join(f"{name} {tensor.dtype}" for name, tensor in dtypes.items())
    same = x.dtype == B.dtype == C.dtype and all(tensor.dtype in DTYPES for tensor in dtypes.values())
    message = f"{given}; the triton backend runs float32, bfloat16 and float16, with x, B and C alike"
    expect(same and (states is None or states.dtype in DTYPES), "ssd_prefill", message)
    expect_last_contiguous("ssd_prefill", x=x, B=B, C=C, z=z, states=states)


def _time_steps(
    dt: Tensor, A: Tensor, cu_seqlens: Tensor, dt_bias: Tensor | None, dt_limit: tuple[float, float], chunk: int
) -> Tensor:
    """The log2 of the decay since its chunk's start, and dt after bias, softplus and clamp: (H, L, 2), float32."""
    length, heads = dt.shape
    sequences = cu_seqlens.shape[0] - 1
    steps = dt.new_empty(heads, length, 2, dtype=torch.float32)
    block_h = min(1024 // chunk, next_power_of_2(heads))
    pdl = pdl_options(dt.device)
    time_step_kernel[length // chunk + sequences, cdiv(heads, block_h)](
        p_dt_raw=dt,
        p_A=A,
        p_dt_bias=dt_bias,
        p_cu_seqlens=cu_seqlens,
        p_steps=steps,
        length=length,
        sequences=sequences,
        heads=heads,
        dt_low=dt_limit[0],
        dt_high=dt_limit[1],
        stride_dt_l=dt.stride(0),
        stride_dt_h=dt.stride(1),
        HAS_BIAS=dt_bias is not None,
        HAS_LIMIT=dt_limit != NO_LIMIT,
        Q=chunk,
        BLOCK_H=block_h,
        USE_PDL=bool(pdl),
        num_warps=4,
        **pdl,
    )
    return steps


def _shared_arguments(x: Tensor, B: Tensor, steps: Tensor, cu_seqlens: Tensor, plan: Plan) -> dict[str, Any]:
    """What the kernels after the time steps take."""
    (length, heads, head_dim), (groups, state_size) = x.shape, B.shape[1:]
    pdl = pdl_options(x.device)
    return {
        "p_x": x,
        "p_B": B,
        "p_steps": steps,
        "p_cu_seqlens": cu_seqlens,
        "length": length,
        "stride_x_l": x.stride(0),
        "stride_x_h": x.stride(1),
        "stride_B_l": B.stride(0),
        "stride_B_g": B.stride(1),
        "H": heads,
        "P": head_dim,
        "N": state_size,
        "HEADS_PER_GROUP": heads // groups,
        "Q": plan.chunk,
        "BLOCK_P": plan.block_p,
        "BLOCK_N": plan.block_n,
        "WHOLE": plan.is_whole,
        "DOT": plan.dot,
        "num_warps": 4,
        "num_stages": plan.num_stages,
        "USE_PDL": bool(pdl),
    } | pdl


def _segment_states(
    shared: dict[str, Any], programs: int, segments: int, segment: int, states: States, sequences: int
) -> States:
    """The states with, as the initial ones, those that enter each segment: (segments, H, P, N), float32."""
    heads, head_dim, state_size = shared["H"], shared["P"], shared["N"]
    entering = states.final.new_empty(segments, heads, head_dim, state_size, dtype=torch.float32)
    total = states.final.new_empty(segments, heads, dtype=torch.float32)
    segment_state_kernel[programs, segments](
        p_states=entering, p_total=total, sequences=sequences, segment=segment, **shared
    )
    block = min(2048, next_power_of_2(head_dim * state_size))
    pass_states_kernel[cdiv(head_dim * state_size, block), heads, sequences](
        p_states=entering,
        p_total=total,
        p_cu_seqlens=shared["p_cu_seqlens"],
        segment=segment,
        H=heads,
        P=head_dim,
        N=state_size,
        BLOCK=block,
        num_warps=4,
        **states.read(),
        USE_PDL=shared["USE_PDL"],
        **pdl_options(entering.device),
    )
    return replace(states, initial=entering, has_initial=None)
