"""Data and weights to try the package with: nothing is downloaded.

`questions` generates arithmetic word problems in GSM8K's form; `shipped` knows the model that was trained on them, in
`model`; `checkpoint` writes a tiny untrained one, for tests.
"""
