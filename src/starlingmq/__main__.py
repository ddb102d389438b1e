"""``python -m starlingmq``: the same as the command ``starlingmq``."""

import sys

from starlingmq.cli.main import main

sys.exit(main())
