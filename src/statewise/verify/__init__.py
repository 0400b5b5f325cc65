"""Checks of the ops against float64 on the machine at hand, at the shapes that are served."""
