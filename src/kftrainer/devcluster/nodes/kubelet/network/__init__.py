"""Names, addresses and Services as pods see them.

Records and files are computed by pure functions; the announcer passes them to the sandbox.
"""
