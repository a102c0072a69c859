"""Set-up of a checkout on a bare machine, before any package is installed: standard library, Python 3.8 or newer."""
