"""One thread: the tensors of the tests are small, and the workers of a parallel run share the cores."""

import torch

torch.set_num_threads(1)
