"""Processes of control planes: started, supervised, and stopped with the program that owns them."""
