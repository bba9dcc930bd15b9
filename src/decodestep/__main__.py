"""``python -m decodestep``: the same as the ``decodestep`` command."""

import sys

from decodestep.cli import main

sys.exit(main())
