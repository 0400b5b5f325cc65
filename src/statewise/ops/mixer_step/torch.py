"""The mixer's step, of the torch ops."""

from functools import partial

from statewise.ops.causal_conv import causal_conv_step
from statewise.ops.checkpointed_step import checkpointed_step
from statewise.ops.gated_rms_norm import gated_rms_norm
from statewise.ops.mixer_step.composed import composed

mixer_step = composed(*(partial(op, backend="torch") for op in (causal_conv_step, checkpointed_step, gated_rms_norm)))
