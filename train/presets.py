"""How large a model is and how it is trained. A preset names one way that was thought through."""

from dataclasses import dataclass, field

from statewise.demo.checkpoint import DemoSizes
from statewise.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Everything a run depends on besides the code: two runs with equal presets give equal weights on one machine."""

    sizes: DemoSizes
    steps: int
    rows: int  # sequences a step
    length: int  # tokens a sequence
    learning_rate: float  # the highest, at the end of the warm-up
    warmup: int  # steps
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = 1.0
    seed: int = 0
    kinds: tuple[str, ...] = field(default=())  # names of the kinds of problems to train on; empty: all
    log_every: int = 20  # steps
    evaluate_every: int = 1000  # steps
    evaluate_on: int = 200  # held-out problems
    report_on: int = 1000  # held-out problems, once the training is over

    def __post_init__(self) -> None:
        if self.evaluate_every % self.log_every:
            raise ConfigError(f"evaluate_every is {self.evaluate_every}, expected a multiple of {self.log_every}")

    @property
    def tokens_per_step(self) -> int:
        """Tokens that the model reads in a step."""
        return self.rows * self.length


# 6.1 M parameters, 11.6 MiB in bfloat16. Six state-space layers carry the text, two attention layers copy numbers.
SMALL = DemoSizes(
    hybrid_override_pattern="M-M-M*-M-M*-M-",
    vocab_size=1024,
    hidden_size=256,
    mamba_num_heads=8,
    mamba_head_dim=64,
    ssm_state_size=64,
    n_groups=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    intermediate_size=768,
)
TOY = DemoSizes(
    hybrid_override_pattern="M-*M-",
    vocab_size=1024,
    hidden_size=128,
    mamba_num_heads=8,
    mamba_head_dim=32,
    ssm_state_size=64,
    n_groups=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    intermediate_size=256,
)
TINY = DemoSizes(
    hybrid_override_pattern="M*-",
    vocab_size=1024,
    hidden_size=32,
    mamba_num_heads=4,
    mamba_head_dim=16,
    ssm_state_size=16,
    n_groups=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    intermediate_size=64,
)

PRESETS = {
    "h200": Preset(
        sizes=SMALL,
        steps=15_000,
        rows=64,
        length=1024,
        learning_rate=2e-3,
        warmup=500,
        log_every=100,
        evaluate_every=3000,
    ),
    "toy": Preset(
        sizes=TOY,
        steps=600,
        rows=8,
        length=256,
        learning_rate=4e-3,
        warmup=30,
        kinds=("single_purchase", "more_than", "ages"),
        log_every=10,
        evaluate_every=150,
        evaluate_on=24,
        report_on=60,
    ),
    "tiny": Preset(
        sizes=TINY,
        steps=40,
        rows=2,
        length=96,
        learning_rate=1e-2,
        warmup=5,
        kinds=("single_purchase",),
        log_every=1,
        evaluate_every=20,
        evaluate_on=4,
        report_on=4,
    ),
}
