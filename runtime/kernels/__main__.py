"""`python -m runtime.kernels` compiles the kernels into the cache of this user, so that no job waits for it."""

from runtime.kernels.loading import native

native()
