"""Types of the CRDs and of the configuration file, their names, limits and kinds.

No behaviour beyond defaults.
"""
