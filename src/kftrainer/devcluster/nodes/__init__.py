"""Process nodes: nodes whose pods run as processes on this machine."""
