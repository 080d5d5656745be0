"""Names of BigDL, for programs written for it: orca_classic.aliases has the table."""

from orca_classic.aliases import install as _install

_install(__name__)
