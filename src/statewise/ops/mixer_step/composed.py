"""The mixer's step as the three ops that it is made of, of any backend."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def composed(
    conv: Callable[..., Tensor], step: Callable[..., Tensor], norm: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    """A `mixer_step` that calls these in turn: a `causal_conv_step`, a `checkpointed_step`, a `gated_rms_norm`."""

    def mixer_step(
        xBC: Tensor,
        dt: Tensor,
        z: Tensor | None,
        *,
        conv_weight: Tensor,
        conv_window: Tensor,
        A: Tensor,
        state: Tensor,
        read_slots: Tensor,
        write_slots: Tensor | None = None,
        conv_bias: Tensor | None = None,
        norm_weight: Tensor | None = None,
        eps: float = 1e-5,
        group_size: int | None = None,
        norm_before_gate: bool = False,
        out: Tensor | None = None,
        scratch: object = None,  # of no use here
        **options: Any,
    ) -> Tensor:
        _, heads, head_dim, state_size = state.shape
        write_slots = read_slots if write_slots is None else write_slots
        own = write_slots if read_slots is write_slots else torch.where(read_slots < 0, -1, write_slots)
        xBC = conv(xBC, conv_weight, conv_window, own, bias=conv_bias)
        states = (xBC.shape[1] - heads * head_dim) // 2
        x, B, C = xBC[:, None].split([heads * head_dim, states, states], -1)
        y = step(
            x.unflatten(-1, (heads, head_dim)),
            dt[:, None],
            A,
            B.unflatten(-1, (-1, state_size)),
            C.unflatten(-1, (-1, state_size)),
            state,
            read_slots=read_slots,
            write_slots=write_slots,
            **options,
        )
        y = norm(y.flatten(1), z, norm_weight, eps=eps, group_size=group_size, norm_before_gate=norm_before_gate)
        return y if out is None else out.copy_(y)

    return mixer_step
