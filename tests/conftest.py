"""One thread: the tensors of the tests are small, and the workers of a parallel run share the cores."""

import os
import shutil

import pytest
import torch

from statewise.demo.checkpoint import write_demo_checkpoint

torch.set_num_threads(1)
if not torch.cuda.is_available():
    # Before anything imports Triton, as transformers does: its own functions too are interpreted from then on or never.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory):
    """The demo checkpoint. Not to be changed: copy it with ``broken``."""
    return write_demo_checkpoint(tmp_path_factory.mktemp("demo"))


@pytest.fixture
def broken(demo_folder, tmp_path):
    """A copy of the demo checkpoint that a test may damage."""
    return shutil.copytree(demo_folder, tmp_path / "model")
