"""``python -m fairmean``."""

import sys

from fairmean.terminal.main import main

sys.exit(main())
