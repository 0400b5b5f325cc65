"""Public ops on plain tensors, each with a reference (a loop over time) that its implementations are tested against."""

from statewise.ops.add_rms_norm import add_rms_norm
from statewise.ops.advance_trackers import advance_trackers
from statewise.ops.apply_rope import apply_rope
from statewise.ops.causal_conv import causal_conv_prefill, causal_conv_step
from statewise.ops.checkpointed_step import checkpointed_step
from statewise.ops.choose_experts import choose_experts
from statewise.ops.fold_pending import fold_pending
from statewise.ops.gated_rms_norm import gated_rms_norm
from statewise.ops.grouped_linear import grouped_linear
from statewise.ops.mixer_step import mixer_step
from statewise.ops.mlp_activation import mlp_activation
from statewise.ops.move_slots import move_slots
from statewise.ops.paged_attention import paged_attention_prefill, paged_attention_step, store_kv
from statewise.ops.sort_by_expert import sort_by_expert
from statewise.ops.ssd_prefill import ssd_prefill
from statewise.ops.state_step import state_step

__all__ = [
    "add_rms_norm",
    "advance_trackers",
    "apply_rope",
    "causal_conv_prefill",
    "causal_conv_step",
    "checkpointed_step",
    "choose_experts",
    "fold_pending",
    "gated_rms_norm",
    "grouped_linear",
    "mixer_step",
    "mlp_activation",
    "move_slots",
    "paged_attention_prefill",
    "paged_attention_step",
    "sort_by_expert",
    "ssd_prefill",
    "state_step",
    "store_kv",
]
