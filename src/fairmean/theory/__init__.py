"""The paper's theory as numbers: constants, bounds, the certificate of a run, and advice before one."""
