"""``python -m statewise`` is the command line."""

import sys

from statewise.cli import main

sys.exit(main())
