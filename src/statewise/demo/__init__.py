"""Data and weights to try the package with, made on the spot: nothing is downloaded.

`questions` generates arithmetic word problems in GSM8K's form; `checkpoint` writes a tiny untrained hybrid
model.
"""
