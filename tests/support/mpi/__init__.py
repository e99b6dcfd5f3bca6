"""Environments with mpirun, mpi4py and SSH from PyPI, which take the place of images."""
