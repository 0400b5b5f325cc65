"""Trains the small hybrid that the repository ships: `python -m train --preset toy`. See README.md beside this."""
