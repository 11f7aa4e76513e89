"""Every client's gradient from one pass: a file per family of layers. Importing this package registers them all."""

from fairmean.importing import import_files_of

import_files_of(__name__, __path__)
