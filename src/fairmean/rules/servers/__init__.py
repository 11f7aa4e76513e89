"""The rules of the server, one file per family. Importing this package registers them all."""

from fairmean.rules.servers import clipping, clustering, means, medians, minnorm, qffl, screening, tilting, trust

__all__ = ["clipping", "clustering", "means", "medians", "minnorm", "qffl", "screening", "tilting", "trust"]
