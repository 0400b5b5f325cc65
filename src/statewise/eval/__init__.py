"""Evaluations: leaves that drive the engine and judge what it says."""
