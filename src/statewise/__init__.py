"""Checkpointed state updates for Mamba-2 and hybrid models: the state is read at every token, written once in W."""

__version__ = "0.1.0.dev0"
