"""Every exception that Statewise raises on purpose.

    StatewiseError
    ├── ArgumentError (ValueError)     an op was called with tensors that do not fit together
    ├── ConfigError (ValueError)       an option, or a combination of options, that cannot work
    │   ├── BackendError               a backend that cannot run here
    │   └── MemoryBudgetError          a memory budget in which not even one request fits
    ├── CheckpointError                a model folder that cannot be read
    │   ├── UnsupportedModelError      a family or a layer kind that is not implemented
    │   └── WeightsError               missing, unexpected or wrongly shaped weights, all of them in one error
    ├── DataError (ValueError)         a questions file that cannot be read
    ├── RequestError (ValueError)      one request that cannot be served; the others go on
    ├── EngineError                    a step failed: requests are lost, and the engine runs no more
    └── IntegrityError                 the books of a pool do not balance: a bug of ours, never a user's mistake

A user's mistake is a line that says what was given and what is possible. The command line prints that line
and exits with 2; it shows a traceback only for what is not in this tree, and for what made the engine fail.
"""


class StatewiseError(Exception):
    """Base of every error that Statewise raises on purpose."""


class ArgumentError(StatewiseError, ValueError):
    """An op was called with tensors that do not fit together."""


class ConfigError(StatewiseError, ValueError):
    """An option, or a combination of options, that cannot work."""


class BackendError(ConfigError):
    """A backend that cannot run here; the message lists those that can."""


class MemoryBudgetError(ConfigError):
    """A memory budget in which not even one request fits."""


class CheckpointError(StatewiseError):
    """A model folder that cannot be read."""


class UnsupportedModelError(CheckpointError):
    """A model family, or a kind of layer in it, that is not implemented."""


class WeightsError(CheckpointError):
    """Missing, unexpected or wrongly shaped weights, all of them in one error."""


class DataError(StatewiseError, ValueError):
    """A questions file that cannot be read."""


class RequestError(StatewiseError, ValueError):
    """One request that cannot be served; the others go on."""


class EngineError(StatewiseError):
    """A step failed: the requests at work are lost, and the engine runs no more. The cause is attached."""


class IntegrityError(StatewiseError):
    """The books of a pool do not balance: a bug in Statewise."""
