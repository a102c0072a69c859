"""Imported by the fork server only: the compiled kernels, which every job process then has from the beginning."""

from runtime.kernels.loading import native

native()
