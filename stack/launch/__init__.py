"""Set-up of a checkout on a bare machine. Runs before anything is installed: standard library, Python 3.8 or newer."""
