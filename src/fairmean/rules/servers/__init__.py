"""The rules of the server, one file per family. Importing this package registers them all."""

from fairmean.importing import import_files_of

import_files_of(__name__, __path__)
