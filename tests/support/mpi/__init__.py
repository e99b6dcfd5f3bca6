"""Hosts for mpirun, and a program that shows where it ran."""
