"""``python -m fairmean``."""

import sys

from fairmean.cli import main

sys.exit(main())
