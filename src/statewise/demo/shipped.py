"""The trained model that the package carries, and the name by which commands know it. Its card is its README.md."""

from pathlib import Path

NAME = "demo"
FOLDER = Path(__file__).parent / "model"


def model_folder(name: str) -> Path:
    """The folder that MODEL means: the shipped model's for `demo`, else the path itself.

    A folder of one's own that is called demo is `./demo`.
    """
    return FOLDER if name == NAME else Path(name)
